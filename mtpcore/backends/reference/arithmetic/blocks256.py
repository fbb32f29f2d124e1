"""Types in blocks of 256 columns: sub-blocks have whole scales, and minima, of their own.

The columns of a sub-block are consecutive; there are 16 of 16 columns or 8 of 32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.blocks import (
    FOUR_BIT_VALUES,
    Blocks,
    Raw,
    halves,
    nibbles,
)

__all__ = ["iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]

WholeNumbers = NDArray[np.float64]


def _scaled(codes: NDArray[np.integer], scales: NDArray[np.integer]) -> WholeNumbers:
    """Multiply the columns of sub-blocks [..., sub-blocks]; return [..., 256]."""
    leading, n_sub = scales.shape[:-1], scales.shape[-1]
    whole = codes.reshape(*leading, n_sub, 256 // n_sub).astype(np.float64)
    return (whole * scales[..., None]).reshape(*leading, 256)


def _spread(minima: NDArray[np.integer]) -> WholeNumbers:
    """Return the minima of sub-blocks for each of their columns."""
    return np.repeat(minima, 256 // minima.shape[-1], axis=-1).astype(np.float64)


def _bits(raw: Raw, width: int, n: int) -> Raw:
    """Return [..., n bytes] as [..., n, bytes]: fields of ``width`` bits, the lowest first."""
    shifts = np.arange(0, n * width, width, dtype=np.uint8)[:, None]
    fields: Raw = raw[..., None, :] >> shifts & np.uint8((1 << width) - 1)
    return fields


def _six_bits(packed: Raw) -> tuple[Raw, Raw]:
    """Return the scales and minima of 8 sub-blocks that 12 bytes hold.

    Of the 12 bytes the first four hold the scales 0-3 and the next four the minima 0-3, in their
    lower 6 bits; the last four hold the lower 4 bits of scales and minima 4-7, whose upper two are
    the upper two of the first eight bytes.
    """
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | low >> 6 << 4], axis=-1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=-1)
    return scales, minima


def q2_k(raw: Raw) -> Blocks:
    """Read 16 bytes of scales (low halves) and minima, 64 of codes, and two float16 scales.

    In each half of 128 columns a byte serves the columns j, 32 + j, 64 + j and 96 + j.
    """
    both, codes = raw[..., :16], raw[..., 16:80].reshape(*raw.shape[:-1], 2, 32)
    return Blocks(
        _scaled(_bits(codes, 2, 4), both & 15),
        halves(raw[..., 80:82]),
        _spread(both >> 4),
        halves(raw[..., 82:]),
    )


def q3_k(raw: Raw) -> Blocks:
    """Read 32 bytes of third bits, 64 of lower two, 12 of scales, and a float16 scale.

    Columns are as in Q2_K; byte j of the third bits serves column j of all eight runs of 32. Of the
    6-bit scales the lower four are 8 bytes' low halves, then high ones; the upper two are in 4
    bytes, lowest first. Codes and scales have offsets.
    """
    leading = raw.shape[:-1]
    low = _bits(raw[..., 32:96].reshape(*leading, 2, 32), 2, 4).reshape(*leading, 8, 32)
    codes = (low | _bits(raw[..., :32], 1, 8) << 2).astype(np.int64) - 4
    lower = nibbles(raw[..., 96:104]).reshape(*leading, 16)
    upper = _bits(raw[..., 104:108], 2, 4).reshape(*leading, 16)
    scales = (lower | upper << 4).astype(np.int64) - 32
    return Blocks(_scaled(codes, scales), halves(raw[..., 108:]))


def q4_k(raw: Raw) -> Blocks:
    """Read two float16 scales, 12 bytes with scales and minima of 8 sub-blocks, 128 of codes.

    32 bytes of codes serve two sub-blocks.
    """
    scales, minima = _six_bits(raw[..., 4:16])
    codes = nibbles(raw[..., 16:].reshape(*raw.shape[:-1], 4, 32))
    return Blocks(
        _scaled(codes, scales), halves(raw[..., :2]), _spread(minima), halves(raw[..., 2:4])
    )


def q5_k(raw: Raw) -> Blocks:
    """Read the same as of Q4_K with 32 bytes of fifth bits before the codes.

    Byte j serves column j of all sub-blocks.
    """
    scales, minima = _six_bits(raw[..., 4:16])
    low = nibbles(raw[..., 48:].reshape(*raw.shape[:-1], 4, 32)).reshape(*raw.shape[:-1], 8, 32)
    codes = low | _bits(raw[..., 16:48], 1, 8) << 4
    return Blocks(
        _scaled(codes, scales), halves(raw[..., :2]), _spread(minima), halves(raw[..., 2:4])
    )


def q6_k(raw: Raw) -> Blocks:
    """Read 128 bytes of lower bits, 64 of upper ones, 16 int8 scales, and a float16 scale.

    In each half of 128 columns, byte j of the 32 upper ones serves the columns j, 32 + j, 64 + j
    and 96 + j, two bits each, lowest first; the lower four bits of these are the low halves of two
    bytes, then the high halves.
    """
    leading = raw.shape[:-1]
    low = nibbles(raw[..., :128].reshape(*leading, 2, 64)).reshape(*leading, 2, 4, 32)
    high = _bits(raw[..., 128:192].reshape(*leading, 2, 32), 2, 4)
    codes = (low | high << 4).astype(np.int64) - 32
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8)
    return Blocks(_scaled(codes, scales), halves(raw[..., 208:]))


def iq4_xs(raw: Raw) -> Blocks:
    """Read a float16 scale, 2 and 4 bytes of scales of 8 sub-blocks, 128 bytes of table places.

    Of the 6-bit scales, which have an offset, the upper two are in the 2 bytes, the lower four in
    the 4. Of a sub-block's 16 bytes the low halves come first.
    """
    leading = raw.shape[:-1]
    upper = np.swapaxes(_bits(raw[..., 2:4], 2, 4), -1, -2).reshape(*leading, 8)
    lower = np.swapaxes(nibbles(raw[..., 4:8]), -1, -2).reshape(*leading, 8)
    scales = (lower | upper << 4).astype(np.int64) - 32
    values = FOUR_BIT_VALUES[nibbles(raw[..., 8:].reshape(*leading, 8, 16))]
    return Blocks(_scaled(values, scales), halves(raw[..., :2]))
