"""Activations in int8, as products with quantised matrices read them."""

from __future__ import annotations

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import THREADS, Launch, Step
from mtpcore.graph.ops import ACTIVATIONS

__all__ = ["KERNELS", "Codes", "arrays_of", "codes_for", "quantise", "quantise_gated"]

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


def arrays_of(codes: Codes | None) -> dict[str, DeviceArray | None]:
    """Return the arrays by the names that most kernels which write codes have for them."""
    if codes is None:
        return dict.fromkeys(("codes", "scales", "sums"))
    return {"codes": codes.codes, "scales": codes.scales, "sums": codes.sums}


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
    kernel = _QUANTISE[codes.block, up is not None]
    n_of_row = codes.scales.shape[1]
    n_blocks = n_rows * n_of_row
    arguments = kernel.arguments(
        x=x,
        up=up,
        **arrays_of(codes),
        n_blocks=n_blocks,
        kind=ACTIVATIONS.index(kind),
        limit=limit,
        offset=offset,
        x_begin=x.begin,
        x_pitch=x.pitch or codes.codes.shape[1],
        n_of_row=n_of_row,
    )
    grid = (-(-n_blocks // (THREADS // 32)), 1)
    return Launch(kernel, grid, arguments, is_early=True)
