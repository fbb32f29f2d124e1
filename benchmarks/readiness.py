"""Tokens over time from the loading of a file: weights packed first, after tokens, or never.

``python benchmarks/readiness.py`` generates a 1 GB file once and starts fresh processes, in turn
with each way and in changing order, page cache warm. Where ``llama-cpp-python`` is installed,
llama.cpp runs, too, its weights repacked or as they are in the file. Each process generates
greedily for some seconds. Printed are medians and ranges: seconds from the imported library to the
first token, tokens in the first seconds, seconds until tokens come at full speed (the first of five
tokens in a row that take at most 1.15 times the median of the last ones), and the process's peak
memory, interpreter and mapped pages of the file included.

A virtual machine may have to ask its host for memory, page by page, which takes longer than all
else, and finds memory at hand that another process has just given back. With ``--at-hand`` another
process takes as much memory as the file has, and gives it back, before each measured one; without
it ``--rest`` says how many seconds to wait, so that the host has taken it.
"""

from __future__ import annotations

import argparse
import importlib.util
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
from versus.loading import TOUCH

HERE = Path(__file__).resolve().parent
OURS = """
from mtpcore import Batch, Context, load_model
def load():
    context = Context(load_model(path, repack=way != "never"), 2048, threads=threads)
    if way == "first":
        context.prepare()
    def process(tokens):
        batch = Batch.of(tokens, pos=context.length(0), outputs="last")
        return context.process(batch).logits[-1]
    return process
"""
THEIRS = """
from pathlib import Path
from versus.peer import Peer, PeerModel
def load():
    engine = Peer(PeerModel(Path(path), way == "llama.cpp, repack"), True, 2048, threads)
    return lambda tokens: engine.process(tokens)[-1]
"""
CHILD = """
import json, sys, time
import numpy as np
path, threads, way, n_prompt, seconds = sys.argv[1], *map(eval, sys.argv[2:6])
{library}
begin = time.perf_counter()
process, times, tokens = load(), [], [5 + i % 50 for i in range(n_prompt)]
while len(times) < 6 or times[-1] < seconds:
    tokens = [int(np.argmax(process(tokens)))]
    times.append(time.perf_counter() - begin)
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))
print(json.dumps([times, peak]))
"""
PEERS = ("llama.cpp, repack", "llama.cpp") if importlib.util.find_spec("llama_cpp") else ()
WAYS = ("first", "after", "never", *PEERS)
WHAT = ("first token", "tokens in 1 s", "tokens in 3 s", "full speed after", "peak memory, GB")


def _figures(times: list[float], peak: float) -> list[float]:
    """Return what is printed of one process."""
    gaps = [b - a for a, b in pairwise(times)]
    fast = 1.15 * median(gaps[-20:])
    full = next((times[i] for i in range(len(gaps) - 4) if max(gaps[i : i + 5]) <= fast), times[-1])
    counts = [sum(t <= end for t in times) for end in (1.0, 3.0)]
    return [times[0], *counts, full, peak]


def _run(child: str, environment: dict[str, str], *arguments: object) -> str:
    """Return what a fresh process prints."""
    command = [sys.executable, "-c", child, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=HERE
    )
    return done.stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--model", type=Path, help="another file than the generated one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=1, help="tokens of the prompt")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--at-hand", action="store_true")
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
                if given.at_hand:
                    _run(TOUCH, environment, path.stat().st_size, given.threads)
                else:
                    time.sleep(given.rest)
                child = CHILD.replace("{library}", THEIRS if way in PEERS else OURS)
                arguments = [given.threads, repr(way), given.prompt, given.seconds]
                said = _run(child, environment, path, *arguments)
                for sample, value in zip(samples, _figures(*json.loads(said)), strict=True):
                    if turn:
                        sample.append(value)
    print(f"{path.name} ({path.stat().st_size / 1e9:.2f} GB), prompt of {given.prompt}")
    for i, what in enumerate(WHAT):
        shown = [f"{way} {s[i].median:.2f} ({min(s[i]):.2f} .. {max(s[i]):.2f})"
                 for way, s in found.items()]  # fmt: skip
        print(f"{what:18} {'; '.join(shown)}")


if __name__ == "__main__":
    main()
