"""Tokens over time from the start of a process: weights packed first, behind tokens, or never.

``python benchmarks/readiness.py`` generates a 1 GB file once and starts fresh processes, in turn
with each way and in changing order, page cache warm. Each generates greedily for some seconds.
Printed are medians and ranges: seconds from before ``import mtpcore`` to the first token, tokens in
the first seconds, seconds until tokens come at full speed (the first of five tokens in a row that
take at most 1.15 times the median of the last ones), and the process's peak memory, interpreter
included.

A virtual machine may have to ask its host for memory, page by page, which takes longer than all
else, and finds memory at hand that another process has just given back. So ``--rest`` says how many
seconds to wait before each process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from files import default_folder, generate
from timing import Sample

CHILD = """
import json, sys, time
import numpy as np
path, threads, way, n_prompt, seconds = sys.argv[1], *map(eval, sys.argv[2:6])
begin = time.perf_counter()
import mtpcore
model = mtpcore.load_model(path, repack=way != "never")
context = mtpcore.Context(model, 2048, threads=threads)
if way == "first":
    context.prepare()
times, batch = [], mtpcore.Batch.of([5 + i % 50 for i in range(n_prompt)], outputs="last")
while not times or times[-1] < seconds:
    token = int(np.argmax(context.process(batch).logits[-1]))
    times.append(time.perf_counter() - begin)
    batch = mtpcore.Batch.of([token], pos=context.length(0))
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))
print(json.dumps([times, peak]))
"""
WAYS = ("first", "behind", "never")
WHAT = ("first token", "tokens in 1 s", "tokens in 3 s", "full speed after", "peak memory, GB")


def _figures(times: list[float], peak: float) -> list[float]:
    """Return what is printed of one process."""
    gaps = [b - a for a, b in pairwise(times)]
    fast = 1.15 * median(gaps[-20:])
    full = next((times[i] for i in range(len(gaps) - 4) if max(gaps[i : i + 5]) <= fast), times[-1])
    counts = [sum(t <= end for t in times) for end in (1.0, 3.0)]
    return [times[0], *counts, full, peak]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--model", type=Path, help="another file than the generated one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=1, help="tokens of the prompt")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    given = parser.parse_args()
    path = given.model or generate("llama-1b-q8_0", given.folder, by="mtpcore")
    path.read_bytes()
    found: dict[str, list[Sample]] = {way: [Sample() for _ in WHAT] for way in given.ways}
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for turn in range(1 + given.repetitions):
            for way in (*given.ways, *given.ways)[turn % len(given.ways) :][: len(given.ways)]:
                samples = found[way]
                time.sleep(given.rest)
                arguments = [str(given.threads), repr(way), str(given.prompt), str(given.seconds)]
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, str(path), *arguments],
                    capture_output=True, text=True, check=True, env=environment,
                )  # fmt: skip
                for sample, value in zip(samples, _figures(*json.loads(done.stdout)), strict=True):
                    if turn:
                        sample.append(value)
    print(f"{path.name} ({path.stat().st_size / 1e9:.2f} GB), prompt of {given.prompt}")
    for i, what in enumerate(WHAT):
        said = [f"{way} {s[i].median:.2f} ({min(s[i]):.2f} .. {max(s[i]):.2f})"
                for way, s in found.items()]  # fmt: skip
        print(f"{what:18} {', '.join(said)}")


if __name__ == "__main__":
    main()
