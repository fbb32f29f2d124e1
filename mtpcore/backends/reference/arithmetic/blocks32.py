"""Types in blocks of 32 columns with one scale, and for some a minimum."""

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

__all__ = ["iq4_nl", "mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]

_FLOAT4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
"""Twice the floats with two bits of exponent and one of fraction."""


def _codes(raw: Raw) -> Raw:
    """Read 16 bytes: low halves are codes 0-15, high ones 16-31."""
    return nibbles(raw).reshape(*raw.shape[:-1], 32)


def _fifth_bits(raw: Raw) -> Raw:
    """Read 4 bytes, a bit for each column, lowest first."""
    bits: Raw = np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)
    return bits


def _plain(codes: NDArray[np.integer], scale: Raw, offset: int = 0) -> Blocks:
    return Blocks(codes.astype(np.float64) - offset, halves(scale))


def _with_minimum(codes: Raw, scales: Raw) -> Blocks:
    """Read two float16: the scale and what is added to every weight."""
    minus_one = np.full(codes.shape, -1.0)
    return Blocks(
        codes.astype(np.float64), halves(scales[..., :2]), minus_one, halves(scales[..., 2:])
    )


def q8_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then 32 codes."""
    return _plain(raw[..., 2:].view(np.int8), raw[..., :2])


def q4_0(raw: Raw) -> Blocks:
    """Read a float16 scale, then codes with an offset."""
    return _plain(_codes(raw[..., 2:]), raw[..., :2], offset=8)


def q4_1(raw: Raw) -> Blocks:
    """Read a scale and a minimum, then codes."""
    return _with_minimum(_codes(raw[..., 4:]), raw[..., :4])


def q5_0(raw: Raw) -> Blocks:
    """Read a float16 scale, fifth bits, then lower four of codes with an offset."""
    codes = _codes(raw[..., 6:]) | _fifth_bits(raw[..., 2:6])
    return _plain(codes, raw[..., :2], offset=16)


def q5_1(raw: Raw) -> Blocks:
    """Read a scale and a minimum, fifth bits, then lower four of codes."""
    return _with_minimum(_codes(raw[..., 8:]) | _fifth_bits(raw[..., 4:8]), raw[..., :4])


def iq4_nl(raw: Raw) -> Blocks:
    """Read a float16 scale, then places in a table."""
    return _plain(FOUR_BIT_VALUES[_codes(raw[..., 2:])], raw[..., :2])


def mxfp4(raw: Raw) -> Blocks:
    """Read a scale's exponent with an offset of 128, then places in a table."""
    scale = np.ldexp(np.float32(1), raw[..., 0].astype(np.int32) - 128)
    return Blocks(_FLOAT4_VALUES[_codes(raw[..., 1:])].astype(np.float64), scale)
