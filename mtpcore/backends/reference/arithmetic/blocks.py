"""Weights as the kernels multiply them: whole numbers and a scale for each block of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from numpy.typing import NDArray

from mtpcore.backends.base import WeightTensor
from mtpcore.backends.reference.arithmetic.fused import F32
from mtpcore.graph.program import Weight

__all__ = ["BLOCKS", "NATIVE", "Blocks", "stored"]


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


Raw = NDArray[np.uint8]


def _halves(raw: Raw) -> F32:
    """Return [..., 2 bytes] as [...] float16, widened (exactly)."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0].astype(np.float32)


def _nibbles(raw: Raw) -> Raw:
    """Return [..., n] bytes as [..., 2, n]: all low halves, then all high ones."""
    return np.stack([raw & 15, raw >> 4], axis=-2)


def q8_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then 32 codes."""
    return Blocks(raw[..., 2:].view(np.int8).astype(np.float64), _halves(raw[..., :2]))


def q4_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then 16 bytes: low halves are codes 0-15, high ones 16-31."""
    codes = _nibbles(raw[..., 2:]).reshape(*raw.shape[:-1], 32)
    return Blocks(codes.astype(np.float64) - 8, _halves(raw[..., :2]))


def q4_k(raw: Raw) -> Blocks:
    """Read two float16 scales, 12 bytes with scales and minima of 8 sub-blocks, 128 of codes.

    Of the 12 bytes the first four hold the scales 0-3 and the next four the minima 0-3, in their
    lower 6 bits; the last four hold the lower 4 bits of scales and minima 4-7, whose upper two are
    the upper two of the first eight bytes. 32 bytes of codes serve two sub-blocks.
    """
    packed, codes = raw[..., 4:16], raw[..., 16:].reshape(*raw.shape[:-1], 4, 32)
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | low >> 6 << 4], axis=-1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=-1)
    shape = (*raw.shape[:-1], 256)
    whole = _nibbles(codes).reshape(*raw.shape[:-1], 8, 32).astype(np.float64) * scales[..., None]
    return Blocks(
        whole.reshape(shape),
        _halves(raw[..., :2]),
        np.repeat(minima, 32, axis=-1).astype(np.float64),
        _halves(raw[..., 2:4]),
    )


def q6_k(raw: Raw) -> Blocks:
    """Read 128 bytes of lower bits, 64 of upper ones, 16 int8 scales, and a float16 scale.

    In each half of 128 columns, byte j of the 32 upper ones serves the columns j, 32 + j, 64 + j
    and 96 + j, two bits each, lowest first; the lower four bits of these are the low halves of two
    bytes, then the high halves. An int8 scale serves 16 columns.
    """
    leading = raw.shape[:-1]
    low = _nibbles(raw[..., :128].reshape(*leading, 2, 64)).reshape(*leading, 2, 4, 32)
    high = raw[..., 128:192].reshape(*leading, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3
    codes = (low | high << 4).astype(np.float64) - 32
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8)
    whole = codes.reshape(*leading, 16, 16) * scales[..., None]
    return Blocks(whole.reshape(*leading, 256), _halves(raw[..., 208:]))


BLOCKS: dict[int, tuple[int, int, Callable[[Raw], Blocks]]] = {
    int(Type.Q8_0): (32, 34, q8_0),
    int(Type.Q4_0): (32, 18, q4_0),
    int(Type.Q4_K): (256, 144, q4_k),
    int(Type.Q6_K): (256, 210, q6_k),
}
"""Columns and bytes of a block, and its reader."""

NATIVE = (*BLOCKS, int(Type.F32), int(Type.F16), int(Type.BF16))
"""Types that the kernels multiply; others become one of these at load."""


def stored(tensor: WeightTensor, weight: Weight) -> tuple[int, Raw]:
    """Return the type in which a matrix is multiplied, and its rows uint8[..., row bytes]."""
    if weight.retype is not None:
        kind = Type[weight.retype]
        return int(kind), quants.quantize(tensor.array(), kind).view(np.uint8)
    return (tensor.type, tensor.raw()) if tensor.type in NATIVE else tensor.native(NATIVE)
