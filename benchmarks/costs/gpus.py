"""Published figures of GPUs, and what is assumed where nothing is published.

Sources: NVIDIA's data sheets and architecture papers of A100, H100, H200 and Ada (multiprocessors,
clock, memory, dense int8 rate, from which the multiply-adds of a cycle follow); the tables
"Throughput of Native Arithmetic Instructions" and "Technical Specifications per Compute Capability"
of the CUDA documentation (pipes, registers, shared memory, warps); latencies of memory and L2 as
measured by Luo and others, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv
2402.13499, who also find that ``mma.sync`` reaches 63 % of the tensor cores' rate on Hopper. A copy
reached 4.3 of 4.8 TB/s on an H200; others are assumed to reach the same share.
"""

from __future__ import annotations

import msgspec

__all__ = ["GPUS", "LOADED", "MEASURED_COPY", "Gpu"]

MEASURED_COPY = 4.3 / 4.8
"""Share of the published bandwidth that a copy reaches; measured on an H200."""

LOADED = 1.5
"""Latency of memory that is busy over that of memory that is not: an assumption."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU's figures: bytes, cycles per second, and of a multiprocessor what it does in a cycle.

    ``float_lanes`` results of float32 arithmetic, ``mma`` int8 multiply-adds of ``mma.sync``;
    ``memory_cycles`` and ``l2_cycles`` are latencies.
    """

    name: str
    architecture: str
    multiprocessors: int
    clock: float
    bandwidth: float
    shared: int
    warps: int
    blocks: int
    float_lanes: int
    mma: int
    memory_cycles: int
    l2_cycles: int

    registers = 65536
    schedulers = 4

    @property
    def copy(self) -> float:
        """Bytes a second that a copy reaches, read and written bytes together."""
        return self.bandwidth * MEASURED_COPY

    @property
    def copy_of_cycle(self) -> float:
        """The same for one multiprocessor and cycle."""
        return self.copy / self.multiprocessors / self.clock

    @property
    def in_flight(self) -> float:
        """Bytes that each multiprocessor must have under way: latency times bandwidth."""
        return self.memory_cycles * LOADED * self.copy_of_cycle


GPUS = (
    Gpu("A100", "sm_80", 108, 1.41e9, 2.039e12, 164 << 10, 64, 32, 64, 2048, 466, 262),
    Gpu("RTX 4090", "sm_89", 128, 2.52e9, 1.008e12, 100 << 10, 48, 24, 128, 1024, 542, 273),
    Gpu("H100", "sm_90", 132, 1.83e9, 3.35e12, 228 << 10, 64, 32, 128, 2580, 479, 263),
    Gpu("H200", "sm_90", 132, 1.83e9, 4.8e12, 228 << 10, 64, 32, 128, 2580, 479, 263),
)
"""A100 and H100 are the modules with SXM sockets, of 80 GB."""
