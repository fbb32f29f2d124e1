"""Activations in int8, as products with quantised matrices read them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import THREADS, Launch, Step
from mtpcore.graph.ops import ACTIVATIONS

__all__ = ["KERNELS", "Codes", "arrays_of", "codes_for", "made_of", "quantise", "quantise_gated"]

_QUANTISE = {
    (block, is_gated): Kernel("quantise", (("BLOCK", str(block)), ("GATED", str(int(is_gated)))))
    for block in (32, 256)
    for is_gated in (False, True)
}
KERNELS = tuple(_QUANTISE.values())


class Codes(msgspec.Struct, frozen=True):
    """Rows in int8: ``codes`` [rows, n], and for each ``block`` of them one of ``scales``.

    ``sums`` are those of 16 codes each.
    """

    block: int
    codes: DeviceArray
    scales: DeviceArray
    sums: DeviceArray


def codes_for(step: Step, block: int, x: DeviceArray, n_cols: int, name: str = "codes") -> Codes:
    """Return room for the values of x, in rows of ``n_cols``; another one for each name."""
    most = int(np.prod(x.shape)) // n_cols
    return Codes(
        block,
        step.scratch(name, (most, n_cols), np.int8),
        step.scratch(f"scales of {name}", (most, n_cols // block), np.float32),
        step.scratch(f"sums of {name}", (most, n_cols // 16), np.int16),
    )


def arrays_of(codes: Codes | None) -> tuple[DeviceArray | None, ...]:
    """Return the arrays as kernels take them that write codes."""
    return (codes.codes, codes.scales, codes.sums) if codes else (None, None, None)


def made_of(codes: Codes | None) -> tuple[Any, ...]:
    """Return the arrays, and how many codes are a block, as kernels take them that do more."""
    return *arrays_of(codes), np.int32(codes.block if codes else 0)


def quantise(x: DeviceArray, codes: Codes, n_rows: int) -> Launch:
    """Turn rows into codes."""
    return _quantise(x, None, codes, n_rows)


def quantise_gated(step: Step, codes: Codes, n_rows: int) -> Launch:
    """Multiply an activation with the second input, and turn that into codes."""
    (x, up), attrs = step.inputs, step.attrs
    return _quantise(
        x,
        up,
        codes,
        n_rows,
        kind=attrs["kind"],
        limit=attrs["limit"],
        offset=attrs["offset"],
    )


def _quantise(
    x: DeviceArray,
    up: DeviceArray | None,
    codes: Codes,
    n_rows: int,
    *,
    kind: str = ACTIVATIONS[0],
    limit: float = 0,
    offset: float = 0,
) -> Launch:
    n_blocks = n_rows * codes.scales.shape[1]
    arguments = (
        *(x, up, *arrays_of(codes), np.uint32(n_blocks), np.int32(ACTIVATIONS.index(kind))),
        *map(np.float32, (limit, offset)),
        *map(np.int32, (x.begin, x.pitch or codes.codes.shape[1])),
        np.uint32(codes.scales.shape[1]),
    )
    grid = (-(-n_blocks // (THREADS // 32)), 1)
    kernel = _QUANTISE[codes.block, up is not None]
    return Launch(kernel, grid, arguments, is_early=True)
