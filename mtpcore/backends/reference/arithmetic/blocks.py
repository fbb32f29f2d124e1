"""Weights as the kernels multiply them: whole numbers and a scale for each block of columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.fused import F32

__all__ = ["FOUR_BIT_VALUES", "Blocks", "Raw", "halves", "nibbles"]

FOUR_BIT_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
)
"""What the codes of the IQ4 types stand for."""

Raw = NDArray[np.uint8]


class Blocks(NamedTuple):
    """Rows of blocks; a weight is ``scale * whole - min_scale * minimum``.

    ``whole`` float64[outputs, blocks, columns] holds whole numbers (a sub-block's own scale is
    one, too, and is multiplied in); ``scale`` is float32[outputs, blocks]. ``minimum`` and
    ``min_scale`` likewise, where a type has them.
    """

    whole: NDArray[np.float64]
    scale: F32
    minimum: NDArray[np.float64] | None = None
    min_scale: F32 | None = None


def halves(raw: Raw) -> F32:
    """Return [..., 2 bytes] as [...] float16, widened (exactly)."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0].astype(np.float32)


def nibbles(raw: Raw) -> Raw:
    """Return [..., n] bytes as [..., 2, n]: all low halves, then all high ones."""
    return np.stack([raw & 15, raw >> 4], axis=-2)
