"""Interrupt commands at random moments, as Ctrl-C does, and look at how they end.

``python -m harness.signals FOLDER BEGIN END`` prints a JSON line for each seed: the command, after
how many seconds which signals came, how it ended, and what was wrong with that ("" is nothing).
"""

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

# As the installed command, but for a byte that tells that the interpreter itself has started, and
# bars and lines of progress that need not be waited for.
COMMAND = """
import os, sys, threading
from mtpcore.__main__ import run
if sys.argv.pop(1) == "shows progress":
    wait = threading.Event.wait
    threading.Event.wait = lambda self, timeout=None: wait(self, timeout and 0.002)
os.write(int(sys.argv.pop(1)), b"!")
sys.exit(run())
"""
TEXT = "def read_config(path):\n    return open(path).read()\n" * 200
COMMANDS = {
    "run": ["run", "demo", "def read", "-n", "200", "--draft", "3", "--ignore-eos"],
    "long": ["run", "demo", "-f", "{text}", "-n", "4", "-b", "4096", "--json"],
    "compare": ["run", "demo", "-p", "def read", "-n", "60", "--temp", "1", "--compare", "--json"],
    "inspect": ["inspect", "demo", "--tensors"],
    "vocabulary": ["vocabulary", "demo", "-f", "{text}", "-o", "{out}"],
    "quantize": ["quantize", "{demo}", "{out}", "--outtype", "q8_0"],
    "bench": ["bench", "demo", "-p", "def", "-n", "4", "-r", "1"],
    "plugins": ["plugins"],
    "help": ["run", "--help"],
}
FORBIDDEN = ("Traceback", "Exception ignored", "KeyboardInterrupt", "Fatal", "Error:")


def heed_interrupts():
    """Let a command be interrupted, also where whoever runs the tests ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def prepare(folder):
    """Write what the commands read."""
    import mtpcore

    (folder / "text.txt").write_text(TEXT)
    with mtpcore.load_model("demo") as model:
        return {"text": folder / "text.txt", "demo": model.path, "out": folder / "out"}


def start(name, paths, shows):
    """Start a command; return it when its first line runs, and where its standard error is read.

    ``shows`` is how: "" as always, "a bar" on a terminal, or "lines".
    """
    reads, writes = os.pipe()
    words = [word.format(**paths) for word in COMMANDS[name]]
    said, says = pty.openpty() if shows == "a bar" else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "shows progress" if shows else "", str(writes), *words],
        pass_fds=[writes],
        preexec_fn=heed_interrupts,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=says,
    )
    os.close(writes)
    os.close(says)
    os.read(reads, 1)
    os.close(reads)
    return process, said


def end(process, said):
    """Wait for a command's end; return what it wrote to standard error."""
    report = b""
    with suppress(OSError):  # as a terminal says that nobody is at its other end
        while part := os.read(said, 4096):
            report += part
    os.close(said)
    process.wait(timeout=60)
    return report.decode(errors="replace")


@cache
def duration(name, paths):
    """Return how long a command takes that nobody interrupts."""
    process, said = start(name, dict(paths), "")
    begin = time.perf_counter()
    report = end(process, said)
    assert process.returncode == 0, report
    return time.perf_counter() - begin


def interrupt(seed, paths):
    """Interrupt a command once, or twice soon after each other."""
    rng = random.Random(seed)
    name = rng.choice(sorted(COMMANDS))
    paths["out"].unlink(missing_ok=True)
    before = rng.choice([None, b"before"])
    if before:
        paths["out"].write_bytes(before)
    moments = [1e-3 + rng.random() * 1.1 * duration(name, tuple(paths.items()))]
    if rng.random() < 0.3:
        moments.append(rng.random() * 0.02)
    shows = rng.choice(["", "a bar", "lines"])
    process, said = start(name, paths, shows)
    for moment in moments:
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
    report = end(process, said)
    wrong = [word for word in FORBIDDEN if word in report]
    # At its very end the interpreter has given the signal back to the system.
    if process.returncode not in (0, 130, -signal.SIGINT):
        wrong.append(f"exit status {process.returncode}")
    if process.returncode == 130 and report.count("mtpcore: interrupted") > 1 + len(moments) // 2:
        wrong.append("said twice")
    if len(moments) == 1:
        wrong += left_behind(paths["out"], before, process.returncode == 0)
    return {
        "seed": seed,
        "command": f"{name} with {shows}" if shows else name,
        "after": moments,
        "code": process.returncode,
        "wrong": ", ".join(wrong) and f"{', '.join(wrong)}: {report[-2000:]}",
    }


def left_behind(out, before, done):
    """Say what is wrong with the file that was written: it is the old or the new one, whole."""
    if any(out.parent.glob("*.part")):
        yield "a part is left"
    found = out.read_bytes() if out.exists() else None
    if found not in (None, before) and not (found.startswith(b"GGUF") or found.endswith(b"}\n")):
        yield "half a file"


def main(folder, begin, end):
    folder = Path(folder)
    paths = prepare(folder)
    for seed in range(int(begin), int(end)):
        print(json.dumps(interrupt(seed, paths)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
