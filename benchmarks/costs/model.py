"""How long a launch takes on paper: the longest of the times that bound it.

``memory``: its bytes at the rate of a copy. ``issue`` and the pipes: its instructions at the rates
of the multiprocessor with most blocks. ``latency``: so many rounds of resident blocks as it needs,
each as long as a warp takes that waits for its own loads alone. The first bytes come one latency
after the start.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from costs.gpus import LOADED, Gpu
from costs.sass import Code, Pace

__all__ = ["Launched", "Price", "pace_of", "price", "rates_of", "resident"]

_RESERVED = 1024
"""Bytes of shared memory that the system takes of each block."""


class Launched(msgspec.Struct, frozen=True):
    """A launch: blocks of ``threads``, and what of memory they read and write.

    ``loops`` says how often a warp goes through each loop, ``streamed`` which of the kernel's
    pointers lead to what lies in memory and not in L2.
    """

    n_blocks: int
    threads: int
    n_bytes: float
    loops: dict[tuple[int, int], float]
    streamed: set[int]


class Price(msgspec.Struct, frozen=True):
    """Seconds that bound a launch, by what bounds it, and the whole."""

    bounds: dict[str, float]
    start: float

    @property
    def bound(self) -> str:
        """What bounds it."""
        return max(self.bounds, key=self.bounds.__getitem__)

    @property
    def seconds(self) -> float:
        """The longest bound, behind the first latency."""
        return self.start + max(self.bounds.values())

    @property
    def share(self) -> float:
        """Share of a copy's bandwidth."""
        return self.bounds["memory"] / self.seconds


def resident(gpu: Gpu, registers: int, shared: int, threads: int) -> int:
    """Return how many blocks a multiprocessor holds at once."""
    warps = -(-threads // 32)
    of_warp = -(-registers // 8) * 8 * 32
    by_registers = gpu.registers // of_warp // warps
    by_shared = gpu.shared // (-(-shared // 128) * 128 + _RESERVED)
    return min(by_registers, by_shared, gpu.warps // warps, gpu.blocks)


def rates_of(gpu: Gpu) -> dict[str, float]:
    """Return instructions of a warp that a multiprocessor carries out in a cycle, by pipe.

    Those of the tensor cores are multiply-adds.
    """
    return {
        "tensor": gpu.mma,
        "float": gpu.float_lanes / 32,
        "multiply": 2.0,
        "alu": 2.0,
        "convert": 0.5,
        "load": 1.0,
    }


def pace_of(gpu: Gpu) -> Pace:
    """Return how long a busy GPU lets its warps wait."""
    return Pace(gpu.memory_cycles * LOADED, gpu.l2_cycles)


def price(
    gpu: Gpu, code: Code, launch: Launched, registers: int, shared: int, most: int = 8
) -> Price:
    """Return what bounds a launch."""
    counts = code.counts(launch.loops)
    n_warps = launch.n_blocks * -(-launch.threads // 32)
    # a multiprocessor has whole blocks: those of the busiest one count
    per_unit = -(-launch.n_blocks // gpu.multiprocessors) * (n_warps / launch.n_blocks)
    second = gpu.clock
    rates = rates_of(gpu)
    bounds = {"memory": launch.n_bytes / gpu.copy}
    bounds["issue"] = per_unit * counts.total() / gpu.schedulers / second
    for pipe, rate in rates.items():
        bounds[pipe] = per_unit * _cycles(code, launch, counts, pipe, rate) / second
    if gpu.float_lanes == 64:  # one pipe for both
        bounds["float"] += bounds["multiply"]
    held = resident(gpu, registers, shared, launch.threads)
    rounds = math.ceil(launch.n_blocks / (held * gpu.multiprocessors))
    alone = code.cycles(pace_of(gpu), launch.streamed, launch.loops, most)
    bounds["latency"] = rounds * alone / second
    return Price(bounds, gpu.memory_cycles / second)


def _cycles(code: Code, launch: Launched, counts: Counter[str], pipe: str, rate: float) -> float:
    """Return the cycles of a pipe; wide loads and stores move 128 bytes in each."""
    if pipe not in ("load", "tensor"):
        return counts[pipe] / rate
    found = 0.0
    for at, times in code.path(launch.loops):
        instruction = code.instructions[at]
        if instruction.pipe == pipe:
            found += times * (instruction.macs if pipe == "tensor" else instruction.width)
    return found / rate
