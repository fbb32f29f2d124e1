"""The one operation that NumPy lacks: a b + c, rounded once to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["F32", "fma"]

F32 = NDArray[np.float32]


def fma(a: Any, b: Any, c: Any) -> F32:
    """Return a b + c of float32 values, rounded once to the nearest float32, ties to even.

    Two roundings (to float64, then to float32) would go wrong where the first one lands on the
    middle between two float32. Rounding the first to odd keeps on which side of the middle the
    exact sum lies (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
    algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008).
    """
    product = np.multiply(a, b, dtype=np.float64)  # exact: 24 bits times 24 bits are 48 of 53
    total = np.add(product, c, dtype=np.float64)
    back = total - product
    lost = (product - (total - back)) + (c - back)  # exact (Knuth's TwoSum)
    # All comparisons are false where nothing is lost, and where something is not finite.
    grows = np.where(total > 0, lost > 0, lost < 0)  # the exact sum is farther from zero
    shrinks = np.where(total > 0, lost < 0, lost > 0)
    bits = np.asarray(total).view(np.int64)
    odd = np.where(bits & 1 == 0, bits + grows - shrinks, bits)
    return odd.view(np.float64).astype(np.float32)
