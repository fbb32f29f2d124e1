"""Seconds from a file to its first token, in fresh processes, page cache warm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from versus.hold import Hold
from versus.results import Found

__all__ = ["measure_loading"]

HERE = Path(__file__).resolve().parent.parent
OURS = """
import sys, time, mtpcore.names
begin = time.perf_counter()
model = mtpcore.load_model(sys.argv[1], repack=bool(int(sys.argv[3])))
context = mtpcore.Context(model, 512, threads=int(sys.argv[2]))
context.process(mtpcore.Batch.of([5])).logits
seconds = time.perf_counter() - begin
context.prepare()
print(seconds, time.perf_counter() - begin)
"""
THEIRS = """
import sys, time
from pathlib import Path
from versus.peer import Peer, PeerModel
begin = time.perf_counter()
Peer(PeerModel(Path(sys.argv[1]), bool(int(sys.argv[3]))), True, 512, int(sys.argv[2])).process([5])
print(time.perf_counter() - begin)
"""
TOUCH = """
import mmap, sys, time
from threading import Thread
import numpy as np
size, threads = int(sys.argv[1]) // 2**21 * 2**21, int(sys.argv[2])
begin = time.perf_counter()
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
workers = [Thread(target=pages[i::threads].fill, args=(1,)) for i in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(time.perf_counter() - begin)
"""
PEERS = {"repack, fa on": 1, "no-repack, fa on": 0}


def measure_loading(
    name: str, path: Path, threads: int, pairs: int, hold: Hold, *, peer: bool = True
) -> Iterator[Found]:
    """Yield ``load`` and ``load mapped``: weights packed after the first token, or never.

    ``packed`` is how many seconds it takes until all are packed, if that follows at once. A virtual
    machine may have to ask its host for memory, page by page, which takes longer than all else. So
    each turn ends with as many threads that take as many bytes as the file has and do nothing with
    them (``touch``, seconds), and another load, which finds these (``at_hand``, seconds).
    """
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    peers = PEERS if peer else {}
    said = ("load mapped", "load", "packed", "touch", "at_hand")
    ours: dict[str, list[float]] = {what: [] for what in said}
    theirs: dict[str, list[float]] = {said: [] for said in peers}
    for turn in range(pairs + 1):
        with hold:
            others = [_run(THEIRS, path, threads, repack)[0] for repack in peers.values()]
            found = [_run(OURS, path, threads, 0)[0], *_run(OURS, path, threads, 1)]
            found += _run(TOUCH, path.stat().st_size, threads)
            found.append(_run(OURS, path, threads, 1)[1])
        for sample, seconds in zip((*ours.values(), *theirs.values()), found + others, strict=True):
            if turn:
                sample.append(seconds)
    more = {what: median(ours[what]) for what in ("packed", "touch", "at_hand")}
    yield Found(name, "load", 1, ours["load"], theirs, more)
    yield Found(name, "load mapped", 1, ours["load mapped"], dict(theirs))


def _run(child: str, *arguments: object) -> list[float]:
    """Return what a fresh process prints."""
    command = [sys.executable, "-c", child, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    return [float(seconds) for seconds in done.stdout.split()]
