"""The one operation that NumPy lacks: a b + c, rounded once to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["F32", "fma"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

BELOW, MIDDLE = (1 << 29) - 1, 1 << 28  # bits of a float64 that a float32 does not have
SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def fma(a: Any, b: Any, c: Any) -> F32:
    """Return a b + c of float32 values, rounded once to the nearest float32, ties to even.

    Two roundings (to float64, then to float32) go wrong only where the first one lands on the
    middle between two float32, which 29 bits show, or more where the result is subnormal. Where
    that happens, rounding the first to odd keeps on which side of the middle the exact sum lies
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57(4), 2008).
    """
    parts = np.nditer(
        [a, b, c, None],
        ["external_loop", "buffered", "zerosize_ok"],
        [["readonly"], ["readonly"], ["readonly"], ["writeonly", "allocate"]],
        op_dtypes=[np.float64, np.float64, np.float64, np.float32],
        order="C",
        casting="same_kind",
        buffersize=1 << 12,  # a part stays in the processor's cache
    )
    with parts:
        for x, y, z, rounded in parts:
            product = x * y  # exact: 24 bits times 24 bits are 48 of 53
            total = product + z
            bits = total.view(np.int64)
            rounded[...] = total
            doubtful = (bits & BELOW) == MIDDLE
            tiny = np.abs(rounded) <= SMALLEST_NORMAL
            if tiny.any():
                doubtful |= tiny & (total != 0)
            if doubtful.any():
                given = (values[doubtful] for values in (product, total, z))
                rounded[doubtful] = _round_to_odd(*given)
        return parts.operands[3]


def _round_to_odd(product: F64, total: F64, addend: F64) -> F64:
    """Return product + addend, whose nearest float64 is `total`."""
    back = total - product
    lost = (product - (total - back)) + (addend - back)  # exact (Knuth's TwoSum)
    # All comparisons are false where nothing is lost, and where something is not finite.
    grows = np.where(total > 0, lost > 0, lost < 0)  # the exact sum is farther from zero
    shrinks = np.where(total > 0, lost < 0, lost > 0)
    bits = total.view(np.int64)
    return np.where(bits & 1 == 0, bits + grows - shrinks, bits).view(np.float64)
