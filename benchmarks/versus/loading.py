"""Seconds from a file to its first token, in fresh processes, page cache warm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from versus.hold import Hold
from versus.results import Found

__all__ = ["measure_loading"]

HERE = Path(__file__).resolve().parent.parent
OURS = """
import sys, time, mtpcore
begin = time.perf_counter()
context = mtpcore.Context(mtpcore.load_model(sys.argv[1]), 512, threads=int(sys.argv[2]))
context.process(mtpcore.Batch.of([5])).logits
print(time.perf_counter() - begin)
"""
THEIRS = """
import sys, time
from pathlib import Path
from versus.peer import Peer, PeerModel
begin = time.perf_counter()
Peer(PeerModel(Path(sys.argv[1]), bool(int(sys.argv[3]))), True, 512, int(sys.argv[2])).process([5])
print(time.perf_counter() - begin)
"""


def measure_loading(
    name: str, path: Path, threads: int, pairs: int, hold: Hold, *, peer: bool = True
) -> Found:
    """Return ``load``: packed weights against llama.cpp's repacked ones."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    found = Found(
        name, "load", 1, [], {"repack, fa on": [], "no-repack, fa on": []} if peer else {}
    )
    for turn in range(pairs + 1):
        with hold:
            seconds = _run(OURS, path, threads)
            others = [_run(THEIRS, path, threads, repack) for repack in (1, 0)] if peer else []
        if turn:
            found.ours.append(seconds)
            for sample, other in zip(found.theirs.values(), others, strict=True):
                sample.append(other)
    return found


def _run(child: str, *arguments: object) -> float:
    command = [sys.executable, "-c", child, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    return float(done.stdout)
