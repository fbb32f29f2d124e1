"""Which kernel launches compute each operation.

An operation that is not in ``LAUNCHERS`` has no kernel yet. A launcher is a plain function of
sizes and arrays, so that the table can be checked, and run, without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.layout import BITS, TILE

__all__ = ["ARGMAX", "KERNELS", "LAUNCHERS", "DeviceMatrix", "Launch", "Step", "choose"]

THREADS = 256
TOKENS_AT_ONCE = 8

RMS_NORM = Kernel("rms_norm")
QUANTISE = Kernel("quantise")
MATMUL = {kind: Kernel("matmul", (("BITS", str(bits)),)) for kind, bits in BITS.items()}
ARGMAX = Kernel("argmax")
KERNELS = (RMS_NORM, QUANTISE, *MATMUL.values(), ARGMAX)


class DeviceMatrix(msgspec.Struct, frozen=True):
    """A packed matrix on a device; see ``layout.PackedMatrix``."""

    type: int
    n_rows: int
    n_cols: int
    codes: DeviceArray
    scales: DeviceArray


class Launch(msgspec.Struct, frozen=True):
    """One kernel with its grid, and its arguments in order."""

    kernel: Kernel
    grid: tuple[int, int]
    arguments: tuple[Any, ...]
    block: int = THREADS


class Step(msgspec.Struct, frozen=True):
    """A node with its arrays on the device, each as large as the largest batch needs.

    ``scratch(name, shape, dtype)`` gives an array that the next step may overwrite.
    """

    inputs: tuple[DeviceArray, ...]
    weights: tuple[Any, ...]
    outputs: tuple[DeviceArray, ...]
    attrs: dict[str, Any]
    scratch: Callable[[str, tuple[int, ...], DTypeLike], DeviceArray]


def rms_norm(step: Step, n_rows: int) -> list[Launch]:
    """Normalise the last axis by its root mean square; heads are rows of their own."""
    return [_norm(step, n_rows, step.inputs[0].shape[-1])]


def l2_norm(step: Step, n_rows: int) -> list[Launch]:
    """Normalise the last axis by its length; heads are rows of their own."""
    return [_norm(step, n_rows, 1)]


def _norm(step: Step, n_rows: int, n: int) -> Launch:
    """Divide by the root of the sum of squares by n."""
    x = step.inputs[0]
    weight = step.weights[0] if step.weights else None
    grid = (n_rows * int(np.prod(x.shape[1:-1])), 1)
    sizes = (np.int32(x.shape[-1]), np.float32(n), np.float32(step.attrs["eps"]))
    return Launch(RMS_NORM, grid, (x, weight, step.outputs[0], *sizes))


def matmul(step: Step, n_rows: int) -> list[Launch]:
    """Quantise the rows, then multiply eight of them at a time."""
    x, w = step.inputs[0], step.weights[0]
    bias = step.weights[1] if len(step.weights) > 1 else None
    n_blocks = w.n_cols // 32
    codes = step.scratch("codes", (x.shape[0], w.n_cols), np.int8)
    scales = step.scratch("scales", (x.shape[0], n_blocks), np.float32)
    sizes = (np.int32(w.n_rows), np.int32(n_blocks), np.int32(n_rows))
    warps = THREADS // 32
    return [
        Launch(QUANTISE, (-(-n_blocks // warps), n_rows), (x, codes, scales, np.int32(n_blocks))),
        Launch(
            MATMUL[w.type],
            (-(-w.n_rows // TILE), -(-n_rows // TOKENS_AT_ONCE)),
            (w.codes, w.scales, codes, scales, bias, step.outputs[0], *sizes),
        ),
    ]


def choose(logits: DeviceArray, ids: DeviceArray, n_rows: int) -> Launch:
    """Take each row's best id, as draft loops and greedy sampling do."""
    return Launch(ARGMAX, (n_rows, 1), (logits, ids, np.int32(logits.shape[-1])))


LAUNCHERS: dict[str, Callable[[Step, int], list[Launch]]] = {
    "rms_norm": rms_norm,
    "l2_norm": l2_norm,
    "matmul": matmul,
}
