"""Types in blocks of 32 columns with one scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.blocks import Blocks, Raw, halves, nibbles

__all__ = ["q4_0", "q8_0"]


def _codes(raw: Raw) -> NDArray[np.float64]:
    """Read 16 bytes: low halves are codes 0-15, high ones 16-31."""
    return nibbles(raw).reshape(*raw.shape[:-1], 32).astype(np.float64)


def q8_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then 32 codes."""
    return Blocks(raw[..., 2:].view(np.int8).astype(np.float64), halves(raw[..., :2]))


def q4_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then codes with an offset."""
    return Blocks(_codes(raw[..., 2:]) - 8, halves(raw[..., :2]))
