"""Time ``mtpcore quantize`` beside llama.cpp's quantiser, in turn, each as a process of its own.

    python benchmarks/quantising.py MODEL LLAMA_QUANTIZE [--mixes q4_k_m,q6_k] [--turns 3]

``MODEL`` is a GGUF file of floats. Seconds that passed, CPU seconds and the peak of memory
are medians, with the least and the most; both files have to be the same bytes.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ENVIRONMENT = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""With which Python keeps what it compiled of the package for the next turn."""


def run(command: list[str]) -> tuple[float, float, float]:
    """Return seconds that passed, CPU seconds, and the peak of memory in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT
    )
    _, status, used = os.wait4(process.pid, 0)
    passed = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return passed, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def spell(values: list[float]) -> str:
    """Return the median, the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--mixes", default="q4_k_m,q6_k")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print("| mix | program | seconds | CPU seconds | MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.model.parent) as folder:
        theirs, ours = Path(folder) / "theirs.gguf", Path(folder) / "ours.gguf"
        for mix in args.mixes.split(","):
            commands = {
                "llama.cpp": [args.peer, args.model, theirs, mix.upper(), os.cpu_count()],
                "mtpcore": [
                    *(sys.executable, "-m", "mtpcore", "quantize", args.model, ours, "-q"),
                    *("--outtype", mix, "--mtp-type", "mix"),
                ],
            }
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
            for _ in range(args.turns):
                for name, command in commands.items():
                    found[name].append(run([str(part) for part in command]))
            if not filecmp.cmp(theirs, ours, shallow=False):
                raise SystemExit(f"{mix}: the files differ")
            for name, turns in found.items():
                print(
                    f"| {mix} | {name} |",
                    " | ".join(spell([*v]) for v in zip(*turns, strict=True)),
                    "|",
                )


if __name__ == "__main__":
    main()
