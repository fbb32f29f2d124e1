"""Interrupt commands at random moments, as Ctrl-C does, and look at how they end.

``python -m harness.signals FOLDER BEGIN END`` prints a JSON line for each seed: the command, after
how many seconds which signals came, how it ended, and what was wrong with that ("" is nothing).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

# As the installed command, but for a byte that tells that the interpreter itself has started.
COMMAND = """
import os, sys
from mtpcore.__main__ import run
os.write(int(sys.argv.pop(1)), b"!")
sys.exit(run())
"""
TEXT = "def read_config(path):\n    return open(path).read()\n" * 200
COMMANDS = {
    "run": ["run", "demo", "-p", "def read", "-n", "200", "--draft", "3", "--ignore-eos"],
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


def start(name, paths):
    """Start a command; return it when its first line runs."""
    reads, writes = os.pipe()
    words = [word.format(**paths) for word in COMMANDS[name]]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(writes), *words],
        pass_fds=[writes],
        preexec_fn=heed_interrupts,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(writes)
    os.read(reads, 1)
    os.close(reads)
    return process


@cache
def duration(name, paths):
    """Return how long a command takes that nobody interrupts."""
    process = start(name, dict(paths))
    begin = time.perf_counter()
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    return time.perf_counter() - begin


def interrupt(seed, paths):
    """Interrupt a command once, or twice soon after each other."""
    dice = random.Random(seed)
    name = dice.choice(sorted(COMMANDS))
    paths["out"].unlink(missing_ok=True)
    before = dice.choice([None, b"before"])
    if before:
        paths["out"].write_bytes(before)
    moments = [1e-3 + dice.random() * 1.1 * duration(name, tuple(paths.items()))]
    if dice.random() < 0.3:
        moments.append(dice.random() * 0.02)
    process = start(name, paths)
    for moment in moments:
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    report = said.decode(errors="replace")
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
        "command": name,
        "after": moments,
        "code": process.returncode,
        "wrong": ", ".join(wrong) and f"{', '.join(wrong)}: {report[-2000:]}",
    }


def left_behind(out, before, done):
    """Say what is wrong with the file that was written: it is the old or the new one, whole."""
    if out.with_name(out.name + ".part").exists():
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
