"""How long each room of the tests takes: a table of CPU minutes, and of minutes on two cores.

``python tools/room_minutes.py`` runs all, one after the other, ``... cli gguf`` these. It counts
what processors compute, also for commands that tests start: a busy machine says about the same.
``... run.xml`` says of a run that wrote ``--junitxml=run.xml`` which share each room had of it, by
the clock.
"""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).parents[1] / "tests"


def seconds_of(room: str) -> float:
    """Return the CPU seconds that a room's tests take in one process, its start included."""

    def taken() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = taken()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", str(TESTS / room)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout[-4000:])
    return taken() - before


def shares(report: Path) -> Iterator[tuple[str, float]]:
    """Yield the rooms of a run and their shares of its time, the longest first."""
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        where = case.attrib["classname"] or case.attrib["name"]  # a file that was skipped
        room = where.split(".")[1]
        seconds[room] = seconds.get(room, 0.0) + float(case.attrib["time"])
    for room, taken in sorted(seconds.items(), key=lambda one: -one[1]):
        yield room, taken / sum(seconds.values())


def rooms() -> list[str]:
    """Return the folders that hold tests, and the files beside them."""
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")})


if __name__ == "__main__":
    names = sys.argv[1:]
    if names and names[0].endswith(".xml"):
        print("| room | share |\n| --- | --- |")
        for name, share in shares(Path(names[0])):
            print(f"| `{name}` | {share:.1%} |")
        sys.exit()
    print("| room | CPU minutes | minutes on two cores |\n| --- | --- | --- |")
    for name in names or rooms():
        minutes = seconds_of(name) / 60
        print(f"| `{name}` | {minutes:.1f} | {minutes / 2:.1f} |", flush=True)
