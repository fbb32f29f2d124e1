"""How long each room of the tests takes: a table of CPU minutes, and of minutes on two cores.

``python tools/room_minutes.py`` runs all, one after the other, ``... cli gguf`` these. It counts
what processors compute, also for commands that tests start: a busy machine says about the same.
"""

import resource
import subprocess
import sys
from pathlib import Path

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


def rooms() -> list[str]:
    """Return the folders that hold tests, and the files beside them."""
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")})


if __name__ == "__main__":
    print("| room | CPU minutes | minutes on two cores |\n| --- | --- | --- |")
    for name in sys.argv[1:] or rooms():
        minutes = seconds_of(name) / 60
        print(f"| `{name}` | {minutes:.1f} | {minutes / 2:.1f} |", flush=True)
