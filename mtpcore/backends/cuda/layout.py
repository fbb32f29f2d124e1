"""Matrices in the order in which the kernels read them.

A product of ``kernels/matmul.cu`` takes 16 rows by 32 columns of weights. Lane ``4 g + q`` of its
warp holds rows g and g + 8, columns 4q..4q+3 and 16+4q..16+4q+3 (PTX ISA, matrix fragments of
``mma.m16n8k32`` with 8-bit integers), so a warp reads 32 columns of a tile as one straight line.
A type takes as many bits of a code as in the file. Where its blocks have whole factors of six bits,
these take eight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mtpcore.errors import BackendError

__all__ = ["FLOATS", "FORMATS", "NATIVE_TYPES", "TILE", "Format", "PackedMatrix", "pack"]

TILE = 16
STEP = 32
"""Columns of a product."""

U8 = NDArray[np.uint8]
_WORD = "<u4"

_FOUR_BITS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Parts(NamedTuple):
    """Blocks [..., bytes] of a file taken apart.

    ``codes`` uint8[..., columns]; ``scales`` uint8[..., bytes], of the scale and, where a type has
    minima, of their scale; ``factors`` and ``minima`` uint8[..., parts].
    """

    codes: U8
    scales: U8
    factors: U8 | None = None
    minima: U8 | None = None


class Format(msgspec.Struct, frozen=True):
    """What ``kernels/matmul.cu`` calls the same in capitals, and what takes blocks apart."""

    read: Callable[[U8], Parts]
    low: int
    high: int = 0
    offset: int = 0
    table: tuple[int, ...] = ()
    exponents: bool = False
    block: int = 32
    sub: int = 0
    minima: bool = False
    nibbles: bool = False

    @property
    def tile_bytes(self) -> int:
        """Bytes of a block of a tile's rows, in all planes."""
        n_sets = 1 + (self.minima and not self.nibbles)
        parts = n_sets * (self.block // self.sub) if self.sub else 0
        scales = (1 + self.minima) * (1 if self.exponents else 2)
        return TILE * (self.block * (self.low + self.high) // 8 + parts + scales)

    def defines(self) -> tuple[tuple[str, str], ...]:
        """Return the macros of the kernel's variant."""
        words = np.array(self.table, np.int8).view(np.uint32)
        names = ("low", "high", "offset", "exponents", "block", "sub", "minima", "nibbles")
        table = (("TABLE", ", ".join(f"{word:#010x}u" for word in words)),) if self.table else ()
        return (*((name.upper(), str(int(getattr(self, name)))) for name in names), *table)


class PackedMatrix(msgspec.Struct, frozen=True):
    """A stack of matrices [n_matrices, n_rows, n_cols]; one matrix is a stack of one.

    Of a quantised type each matrix is tiles of 16 rows; missing rows have scales of zero. ``low``
    and ``high`` uint8[tiles, steps, 32 lanes, bytes] hold the lower and upper bits of codes,
    ``factors`` uint8[tiles, blocks, sets, 16 rows, parts], ``scales`` uint16 (uint8 where they are
    exponents) [tiles, blocks, scales, 16 rows]. What a type lacks is None. Of a float type ``low``
    is uint8[all rows, bytes], whole groups of four columns, and the others are None.
    """

    type: int
    n_matrices: int
    n_rows: int
    n_cols: int
    low: U8
    high: U8 | None = None
    factors: U8 | None = None
    scales: NDArray[Any] | None = None

    @property
    def planes(self) -> tuple[NDArray[Any] | None, ...]:
        """``low``, ``high``, ``factors``, ``scales``; the first axis of each counts tiles."""
        return self.low, self.high, self.factors, self.scales


def pack(raw: U8, kind: int, shape: tuple[int, ...]) -> PackedMatrix:
    """Reorder the bytes of a GGUF matrix [n_rows, n_cols], or of a stack of them.

    Raises
    ------
    BackendError
        The type has no kernel, or its blocks do not fill the rows.
    """
    n_matrices, n_rows, n_cols = (1, *shape)[-3:]
    n_columns, n_bytes = GGML_QUANT_SIZES[Type(kind)]
    if kind not in NATIVE_TYPES or n_cols % n_columns:
        raise BackendError(
            "no CUDA kernel for a matrix of this type and width",
            wanted=", ".join(Type(native).name for native in NATIVE_TYPES),
            got=f"{Type(kind).name}, {n_cols} columns",
        )
    if kind in FLOATS:
        rows = raw.reshape(n_matrices * n_rows, n_cols * n_bytes)
        filled = np.zeros((len(rows), -(-n_cols // 4) * 4 * n_bytes), np.uint8)
        filled[:, : rows.shape[1]] = rows
        return PackedMatrix(kind, n_matrices, n_rows, n_cols, filled)
    n_tiles, n_blocks = -(-n_rows // TILE), n_cols // n_columns
    blocks = np.zeros((n_matrices, n_tiles * TILE, n_blocks, n_bytes), np.uint8)
    blocks[:, :n_rows] = raw.reshape(n_matrices, n_rows, n_blocks, n_bytes)
    layout = FORMATS[kind]
    parts = layout.read(blocks.reshape(n_matrices * n_tiles, TILE, n_blocks, n_bytes))
    low, high = _fragments(parts.codes, layout)
    scales = parts.scales if layout.exponents else parts.scales.view(np.uint16)
    factors = None
    if parts.factors is not None:
        sets = [part for part in parts[2:] if part is not None]
        factors = np.ascontiguousarray(np.stack(sets).transpose(1, 3, 0, 2, 4))
    return PackedMatrix(
        kind,
        n_matrices,
        n_rows,
        n_cols,
        low,
        high,
        factors,
        np.ascontiguousarray(scales.transpose(0, 2, 3, 1)),
    )


def _fragments(codes: U8, layout: Format) -> tuple[U8, U8 | None]:
    """Return the lower and upper bits of codes [tiles, 16, blocks, columns] as lanes hold them.

    Four codes are handled at once, as one word: of a file there are billions.
    """
    n_tiles, words = len(codes), np.ascontiguousarray(codes).view(_WORD)
    # row half, g, step, column half, q -> step, lane (g, q), register
    split = words.reshape(n_tiles, 2, 8, -1, 2, 4).transpose(0, 3, 2, 5, 4, 1)
    registers = split.reshape(n_tiles, -1, STEP, 4)
    of_four = _places if layout.table else _nibbles
    low = {8: lambda words: words, 4: of_four, 2: _pairs_of_bits}[layout.low](registers)
    if not layout.high:
        return _as_bytes(low), None
    upper = {1: _single_bits, 2: _pairs_of_bits}[layout.high](registers >> layout.low)
    return _as_bytes(low), _as_bytes(upper)


def _as_bytes(words: NDArray[Any]) -> U8:
    """Return words [tiles, steps, lanes, n] as their bytes."""
    return np.ascontiguousarray(words).view(np.uint8)


def _nibbles(registers: NDArray[Any]) -> NDArray[Any]:
    """Of two words the low halves are registers 0 and 1, the high ones 2 and 3."""
    halves = registers & 0x0F0F0F0F
    return halves[..., :2] | halves[..., 2:] << 4


def _places(registers: NDArray[Any]) -> NDArray[Any]:
    """Of two words the low halves are registers 0 and 1, too, but each has its codes in order."""
    halves = registers & 0x0F0F0F0F
    joined = halves | halves >> 4  # bytes 0 and 2 have two codes each
    pairs = joined & 0xFF | joined >> 8 & 0xFF00
    return pairs[..., :2] | pairs[..., 2:] << 16


def _pairs_of_bits(registers: NDArray[Any]) -> NDArray[Any]:
    """Of each byte of a word register i is the bits 2i and 2i + 1."""
    pairs = registers & 0x03030303
    return pairs[..., :1] | pairs[..., 1:2] << 2 | pairs[..., 2:3] << 4 | pairs[..., 3:] << 6


def _single_bits(registers: NDArray[Any]) -> NDArray[Any]:
    """Of four bits register i is bit i: bytes 0 and 1 in the low halves, 2 and 3 in the high."""
    bits = registers & 0x01010101
    fours = bits[..., :1] | bits[..., 1:2] << 1 | bits[..., 2:3] << 2 | bits[..., 3:] << 3
    return (fours | fours >> 12).astype("<u2")  # which cuts off bytes 2 and 3


def _above(low: U8, high: U8, n_bits: int) -> U8:
    """Join lower bits, of which there are ``n_bits``, and those above them."""
    return low | high << np.uint8(n_bits)


def _fields(raw: U8, width: int) -> U8:
    """Return [..., n bytes] as [..., 8 / width, n]: fields of ``width`` bits, the lowest first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields: U8 = raw[..., None, :] >> shifts & np.uint8((1 << width) - 1)
    return fields


def _flat(fields: U8, n_axes: int = 2) -> U8:
    return fields.reshape(*fields.shape[:-n_axes], -1)


def _bits(raw: U8) -> U8:
    return np.unpackbits(raw, axis=-1, bitorder="little")


def _q8_0(raw: U8) -> Parts:
    return Parts(raw[..., 2:], _copied(raw[..., :2]))


def _copied(raw: U8) -> U8:
    return np.ascontiguousarray(raw)


def _four_bits(n_scale_bytes: int) -> Callable[[U8], Parts]:
    def read(raw: U8) -> Parts:
        codes = _flat(_fields(raw[..., n_scale_bytes:], 4))
        return Parts(codes, _copied(raw[..., :n_scale_bytes]))

    return read


def _five_bits(n_scale_bytes: int) -> Callable[[U8], Parts]:
    def read(raw: U8) -> Parts:
        scales, upper, lower = np.split(raw, [n_scale_bytes, n_scale_bytes + 4], axis=-1)
        return Parts(_above(_flat(_fields(lower, 4)), _bits(upper), 4), _copied(scales))

    return read


def _six_bits(packed: U8) -> tuple[U8, U8]:
    """Return the factors and minima of 8 parts, whose upper bits lie above those of others."""
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    factors = np.concatenate([low & 63, (high & 15) | low >> 6 << 4], axis=-1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=-1)
    return factors, minima


def _runs(raw: U8, n: int) -> U8:
    """See [..., bytes] as [..., bytes / n, n]."""
    return raw.reshape(*raw.shape[:-1], -1, n)


def _q2_k(raw: U8) -> Parts:
    codes = _flat(_fields(_runs(raw[..., 16:80], 32), 2), 3)
    return Parts(codes, _copied(raw[..., 80:]), raw[..., :16])


def _q3_k(raw: U8) -> Parts:
    low = _flat(_fields(_runs(raw[..., 32:96], 32), 2), 3)
    codes = _above(low, _flat(_fields(raw[..., :32], 1)), 2)
    lower, upper = _flat(_fields(raw[..., 96:104], 4)), _flat(_fields(raw[..., 104:108], 2))
    return Parts(codes, _copied(raw[..., 108:]), _above(lower, upper, 4) - np.uint8(32))


def _q4_k(raw: U8) -> Parts:
    codes = _flat(_fields(_runs(raw[..., 16:], 32), 4), 3)
    return Parts(codes, _copied(raw[..., :4]), *_six_bits(raw[..., 4:16]))


def _q5_k(raw: U8) -> Parts:
    low = _flat(_fields(_runs(raw[..., 48:], 32), 4), 3)
    codes = _above(low, _flat(_fields(raw[..., 16:48], 1)), 4)
    return Parts(codes, _copied(raw[..., :4]), *_six_bits(raw[..., 4:16]))


def _q6_k(raw: U8) -> Parts:
    low = _flat(_fields(_runs(raw[..., :128], 64), 4), 3)
    codes = _above(low, _flat(_fields(_runs(raw[..., 128:192], 32), 2), 3), 4)
    return Parts(codes, _copied(raw[..., 208:]), raw[..., 192:208])


def _iq4_xs(raw: U8) -> Parts:
    codes = _flat(_fields(_runs(raw[..., 8:], 16), 4), 3)
    upper = np.swapaxes(_fields(raw[..., 2:4], 2), -1, -2)
    lower = np.swapaxes(_fields(raw[..., 4:8], 4), -1, -2)
    factors = _above(_flat(lower), _flat(upper), 4) - np.uint8(32)
    return Parts(codes, _copied(raw[..., :2]), factors)


FORMATS: dict[int, Format] = {
    int(Type.Q8_0): Format(_q8_0, 8),
    int(Type.Q4_0): Format(_four_bits(2), 4, offset=8),
    int(Type.Q4_1): Format(_four_bits(4), 4, minima=True),
    int(Type.Q5_0): Format(_five_bits(2), 4, 1, offset=16),
    int(Type.Q5_1): Format(_five_bits(4), 4, 1, minima=True),
    int(Type.IQ4_NL): Format(_four_bits(2), 4, table=_FOUR_BITS),
    int(Type.MXFP4): Format(_four_bits(1), 4, table=_FLOAT4, exponents=True),
    int(Type.Q2_K): Format(_q2_k, 2, block=256, sub=16, minima=True, nibbles=True),
    int(Type.Q3_K): Format(_q3_k, 2, 1, offset=4, block=256, sub=16),
    int(Type.Q4_K): Format(_q4_k, 4, block=256, sub=32, minima=True),
    int(Type.Q5_K): Format(_q5_k, 4, 1, block=256, sub=32, minima=True),
    int(Type.Q6_K): Format(_q6_k, 4, 2, offset=32, block=256, sub=16),
    int(Type.IQ4_XS): Format(_iq4_xs, 4, table=_FOUR_BITS, block=256, sub=32),
}
"""Quantised types that have kernels."""

FLOATS = {int(Type.F32): 0, int(Type.F16): 1, int(Type.BF16): 2}
"""Types that are multiplied in floating point, and their numbers in ``kernels/matmul_float.cu``."""

NATIVE_TYPES = (*FORMATS, *FLOATS)
"""Types that the kernels multiply; others become one of these at load."""
