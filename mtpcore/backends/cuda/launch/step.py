"""A node with its arrays on the device, and the launches that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import Device, DeviceArray

__all__ = [
    "THREADS",
    "Launch",
    "Launcher",
    "Step",
    "blocks_of",
    "counters_for",
    "n_of_row",
    "n_parts_of",
    "start",
]

THREADS = 256


class Launch(msgspec.Struct, frozen=True):
    """One kernel with its grid, and its arguments in order.

    A grid takes less than 2^31 CTAs along its first axis, 2^16 along each other: the number of rows
    belongs to the first. An early one waits itself for what was launched before it; see
    ``kernels/early.cuh``.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    block: int = THREADS
    is_early: bool = False


class Step(msgspec.Struct, frozen=True):
    """A node with its arrays on the device, each as large as the largest batch needs.

    ``scratch(name, shape, dtype)`` gives an array that the next step may overwrite, and
    ``constant(array)`` one with these contents, uploaded once. ``chosen`` int32[n] are the rows of
    the batch whose outputs are wanted, where the step's rows are these alone. ``memory`` is what a
    node that keeps something of each sequence reaches of it.
    """

    inputs: tuple[DeviceArray, ...]
    weights: tuple[Any, ...]
    outputs: tuple[DeviceArray, ...]
    attrs: dict[str, Any]
    scratch: Callable[[str, tuple[int, ...], DTypeLike], DeviceArray]
    constant: Callable[[NDArray[Any]], DeviceArray]
    chosen: DeviceArray | None = None
    memory: Any = None


Launcher = Callable[[Step, int], list[Launch]]


def start(device: Device, launches: Iterable[Launch]) -> None:
    """Start kernels one after the other."""
    for launch in launches:
        loaded, arguments = device.load(launch.kernel), launch.arguments
        device.launch(loaded, launch.grid, launch.block, arguments, is_early=launch.is_early)


def n_of_row(array: DeviceArray) -> int:
    """Return how many values a row has."""
    return int(np.prod(array.shape[1:]))


def n_parts_of(array: DeviceArray, n_rows: int) -> int:
    """Return how many parts rows have along the last axis: heads, or the rows themselves."""
    return n_rows * int(np.prod(array.shape[1:-1]))


def blocks_of(n: int) -> int:
    """Return how many blocks give each of n values a thread."""
    return -(-n // THREADS)


def counters_for(step: Step, n: int) -> DeviceArray:
    """Return n counters or more, all zero; a launch that counts leaves them so (``last.cuh``)."""
    return step.constant(np.zeros(1 << max(n - 1, 0).bit_length(), np.uint32))
