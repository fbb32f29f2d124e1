"""Seconds from an unloaded 1 GB file to its first token, page cache warm; packed, and mapped.

``python benchmarks/load.py`` generates the file once and loads it in fresh processes, in turn with
its weights packed right behind the first token and left in the file. Memory is the process's peak,
interpreter included. The modules' bytecode is compiled before, as in an installed package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from files import default_folder, generate
from timing import Sample

CHILD = """
import sys, time
import numpy as np
begin = time.perf_counter()
import mtpcore.names
times = [time.perf_counter()]
model = mtpcore.load_model(sys.argv[1], repack=sys.argv[3] == "packed")
times.append(time.perf_counter())
context = mtpcore.Context(model, 1024, threads=int(sys.argv[2]))
times.append(time.perf_counter())
context.process(mtpcore.Batch.of([5])).logits
times.append(time.perf_counter())
context.prepare()
times.append(time.perf_counter())
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))
def each(n, repetitions):
    seconds = []
    for _ in range(repetitions):
        context.remove(0)
        begin = time.perf_counter()
        context.process(mtpcore.Batch.of([5] * n)).logits
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))
times += [times[-1] + each(n, 5 if n < 16 else 1) for n in (1, 4, 8, 512)]
print(times[0] - begin, times[3] - times[0], *(times[i + 1] - times[i] for i in range(4)),
      *(t - times[4] for t in times[5:]), peak)
"""
WHAT = ("import mtpcore", "load to first token", "load", "Context", "first token", "packing",
        "a token later", "4 tokens", "8 tokens", "512 tokens", "peak memory")  # fmt: skip


def _load(path: Path, threads: int, way: str, bytecode: str) -> list[float]:
    """Return what a fresh process prints that keeps its bytecode in a folder."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", CHILD, str(path), str(threads), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(value) for value in done.stdout.split()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--model", type=Path, help="another file than the generated one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    given = parser.parse_args()
    path = given.model or generate("llama-1b-q8_0", given.folder, by="mtpcore")
    path.read_bytes()
    found = {way: [Sample() for _ in WHAT] for way in ("packed", "mapped")}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(1 + given.repetitions):
            for way, samples in found.items():
                values = _load(path, given.threads, way, bytecode)
                for sample, value in zip(samples, values, strict=True):
                    if turn:
                        sample.append(value)
    print(f"{path} ({path.stat().st_size / 1e9:.2f} GB)")
    for what, packed, mapped in zip(WHAT[:-1], *found.values(), strict=False):
        print(f"{what:20} packed {packed}, mapped {mapped}")
    peaks = [f"{way} {samples[-1].median:.2f} GB" for way, samples in found.items()]
    print(f"{WHAT[-1]:20} {', '.join(peaks)}")


if __name__ == "__main__":
    main()
