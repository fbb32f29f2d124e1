"""Medians with their spread, and the read bandwidth of this machine."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import CDLL, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

__all__ = ["Reader", "Sample", "Undone", "alternate", "bandwidth", "choose", "once"]

SAMPLE_BYTES = 1 << 28  # read to find the faster way


class Sample(list[float]):
    """Seconds of several runs."""

    def __str__(self) -> str:
        ms = [1e3 * x for x in (statistics.median(self), min(self), max(self))]
        return f"{ms[0]:9.3f} ms  ({ms[1]:.3f} .. {ms[2]:.3f}, n={len(self)})"

    @property
    def median(self) -> float:
        """The middle run, in seconds."""
        return statistics.median(self)


@dataclass(frozen=True)
class Undone:
    """A call, and one that puts everything back after it, which is not timed."""

    run: Callable[[], object]
    undo: Callable[[], object]

    def __call__(self) -> None:
        """Run both."""
        self.run()
        self.undo()


def once(run: Callable[[], object]) -> float:
    """Return the seconds that one call takes, or that of an ``Undone`` which is timed."""
    if isinstance(run, Undone):
        seconds = once(run.run)
        run.undo()
        return seconds
    begin = perf_counter()
    run()
    return perf_counter() - begin


def alternate(
    runs: Sequence[Callable[[], object]],
    n: int,
    warm: int = 1,
    rest: float = 0.05,
    hold: AbstractContextManager[object] | None = None,
) -> list[Sample]:
    """Time several calls in turn, so that a slow minute hits all of them alike.

    Before each there is a rest in seconds: threads that the call before left spinning (OpenMP's do
    so for milliseconds) would take the cores of this one. ``hold`` is entered for each turn.
    """
    samples = [Sample() for _ in runs]
    for turn in range(warm + n):
        with hold or nullcontext():
            for run, sample in zip(runs, samples, strict=True):
                time.sleep(rest)
                seconds = once(run)
                if turn >= warm:
                    sample.append(seconds)
    return samples


def choose(
    trials: Mapping[str, Callable[[], object]],
    n: int = 5,
    hold: AbstractContextManager[object] | None = None,
) -> str:
    """Return the name of the call whose best time is least."""
    samples = alternate(list(trials.values()), n, warm=0, hold=hold)
    return min(zip(map(min, samples), trials, strict=True))[1]


@cache
def _read_lines() -> Callable[[int, int, int], int]:
    with TemporaryDirectory() as folder:
        library = f"{folder}/read.so"
        source = Path(__file__).with_name("read.c")
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        subprocess.run([*compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        read = CDLL(library).read_lines
    read.argtypes, read.restype = [c_void_p, c_size_t, c_size_t], c_int64
    return read


class Reader:
    """Reads memory once with several threads: what no decoding can be faster than."""

    def __init__(self, threads: int, n_bytes: int = 1 << 30, pages: int = 8) -> None:
        self.n_bytes, self.pages = n_bytes, pages
        self._parts = np.array_split(np.ones(n_bytes // 8, np.int64), threads)
        self._read = _read_lines()

    @classmethod
    def fastest(cls, threads: int, n_bytes: int = 1 << 30) -> Reader:
        """Return the one that reads fastest here: processors differ in how they like it."""
        tries = [cls(threads, SAMPLE_BYTES, pages) for pages in (1, 8)]
        seconds = [sample.median for sample in alternate(tries, 7)]
        return cls(threads, n_bytes, tries[seconds.index(min(seconds))].pages)

    def __call__(self) -> None:
        """Read all of it."""
        workers = [
            threading.Thread(target=self._read, args=(part.ctypes.data, part.nbytes, self.pages))
            for part in self._parts
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def bandwidth(read: Reader, n: int = 7) -> float:
    """Return the best bytes per second at which memory is read once."""
    read()
    return read.n_bytes / min(once(read) for _ in range(n))
