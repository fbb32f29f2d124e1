"""Matrices in the order in which the kernels read them.

A product of ``kernels/matmul.cu`` takes 16 rows by 32 columns of weights. Lane ``4 g + q`` of its
warp holds rows g and g + 8, columns 4q..4q+3 and 16+4q..16+4q+3 (PTX ISA, matrix fragments of
``mma.m16n8k32`` with 8-bit integers), so a warp reads 32 columns of a tile as one straight line.
A type takes as many bits of a code as in the file. Where its blocks have whole factors of six bits,
these take eight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mtpcore.errors import BackendError

__all__ = ["FLOATS", "FORMATS", "NATIVE_TYPES", "TILE", "Field", "Format", "PackedMatrix", "pack"]

TILE = 16
STEP = 32
"""Columns of a product."""

U8 = NDArray[np.uint8]
_WORD = "<u4"

_FOUR_BITS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Field(NamedTuple):
    """Numbers in a block's bytes from ``at`` on, of ``width`` bits each.

    They come in runs of ``run`` bytes: those in the lowest bits of all of its bytes, then the next.
    """

    width: int
    at: int
    run: int

    def read(self, blocks: U8, n: int) -> U8:
        """Return the first n numbers of blocks [..., bytes] as uint8[..., n]."""
        raw = blocks[..., self.at : self.at + n * self.width // 8]
        runs = raw.reshape(*raw.shape[:-1], -1, 1, self.run)
        shifts = np.arange(0, 8, self.width, dtype=np.uint8)[:, None]
        return (runs >> shifts & np.uint8((1 << self.width) - 1)).reshape(*raw.shape[:-1], n)


class Format(msgspec.Struct, frozen=True):
    """A quantised type, as its blocks lie in a file and as kernels read it.

    A code has the bits of ``low`` and, above them, those of ``high``. ``scales`` is where the scale
    begins, and where a type has minima, their scale follows it. Whole factors are the bytes of the
    one field of ``factors``, or of two the bits of both, less 32; or six bits each from byte
    ``sixes`` on, and as many minima. What else there is ``kernels/quantised.cuh`` calls the same in
    capitals.
    """

    low: Field
    high: Field | None = None
    scales: int = 0
    factors: tuple[Field, ...] = ()
    sixes: int = 0
    offset: int = 0
    table: tuple[int, ...] = ()
    exponents: bool = False
    block: int = 32
    sub: int = 0
    minima: bool = False
    nibbles: bool = False

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of a code in the field ``low``, and in ``high``."""
        return self.low.width, self.high.width if self.high else 0

    @property
    def tile_bytes(self) -> int:
        """Bytes of a block of a tile's rows, in all planes."""
        n_sets = 1 + (self.minima and not self.nibbles)
        parts = n_sets * (self.block // self.sub) if self.sub else 0
        scales = (1 + self.minima) * (1 if self.exponents else 2)
        return TILE * (self.block * sum(self.widths) // 8 + parts + scales)

    def defines(self) -> tuple[tuple[str, str], ...]:
        """Return the macros of what reads the planes."""
        words = np.array(self.table, np.int8).view(np.uint32)
        names = ("offset", "exponents", "block", "sub", "minima", "nibbles")
        table = (("TABLE", ", ".join(f"{word:#010x}u" for word in words)),) if self.table else ()
        return (
            *zip(("LOW", "HIGH"), map(str, self.widths), strict=True),
            *((name.upper(), str(int(getattr(self, name)))) for name in names),
            *table,
        )

    def defines_of_blocks(self) -> tuple[tuple[str, str], ...]:
        """Return the macros that what reads the file's blocks has besides."""
        names = ("CODES", "UPPER", "FACTORS", "ABOVE")
        fields: list[Field | None] = [self.low, self.high, *self.factors]
        places = {"SCALES": self.scales, "SIXES": self.sixes}
        return (
            *(
                (name, ", ".join(map(str, field)))
                for name, field in zip(names, fields, strict=False)
                if field
            ),
            *((name, str(at)) for name, at in places.items()),
        )

    def codes_of(self, blocks: U8) -> U8:
        """Return the codes of blocks [..., bytes], uint8[..., columns]."""
        codes = self.low.read(blocks, self.block)
        if self.high:
            codes |= self.high.read(blocks, self.block) << np.uint8(self.low.width)
        return codes

    def scales_of(self, blocks: U8) -> NDArray[Any]:
        """Return the scales, [..., 1], with those of minima [..., 2]."""
        kind = np.uint8 if self.exponents else np.uint16
        n_bytes = np.dtype(kind).itemsize * (1 + self.minima)
        return np.ascontiguousarray(blocks[..., self.scales : self.scales + n_bytes]).view(kind)

    def sets_of(self, blocks: U8) -> list[U8]:
        """Return the factors and, where they have bytes of their own, minima; uint8[..., parts]."""
        if self.sixes:
            own, rest = blocks[..., self.sixes :][..., :8], blocks[..., self.sixes + 8 :][..., :4]
            lower = (own[..., :4], rest & 15), (own[..., 4:], rest >> 4)
            return [
                np.concatenate([six & 63, four | six >> 6 << 4], axis=-1) for six, four in lower
            ]
        fields = [field.read(blocks, self.block // self.sub) for field in self.factors]
        if len(fields) == 2:
            return [(fields[0] | fields[1] << np.uint8(4)) - np.uint8(32)]
        return fields


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

    This defines what ``kernels/pack.cu`` does with rows that are on a device. Of a float type whole
    groups of four columns stay where they are.

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
        if missing := -n_cols % 4 * n_bytes:
            rows = np.pad(rows, ((0, 0), (0, missing)))
        return PackedMatrix(kind, n_matrices, n_rows, n_cols, rows)
    n_tiles, n_blocks = -(-n_rows // TILE), n_cols // n_columns
    blocks = np.zeros((n_matrices, n_tiles * TILE, n_blocks, n_bytes), np.uint8)
    blocks[:, :n_rows] = raw.reshape(n_matrices, n_rows, n_blocks, n_bytes)
    layout = FORMATS[kind]
    tiles = blocks.reshape(n_matrices * n_tiles, TILE, n_blocks, n_bytes)
    low, high = _fragments(layout.codes_of(tiles), layout)
    scales, factors = layout.scales_of(tiles), None
    if sets := layout.sets_of(tiles):
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
    low = {8: lambda words: words, 4: of_four, 2: _pairs_of_bits}[layout.low.width](registers)
    if not layout.high:
        return _as_bytes(low), None
    of_upper = {1: _single_bits, 2: _pairs_of_bits}[layout.high.width]
    upper = of_upper(registers >> layout.low.width)
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


FORMATS: dict[int, Format] = {
    int(Type.Q8_0): Format(Field(8, 2, 32)),
    int(Type.Q4_0): Format(Field(4, 2, 16), offset=8),
    int(Type.Q4_1): Format(Field(4, 4, 16), minima=True),
    int(Type.Q5_0): Format(Field(4, 6, 16), Field(1, 2, 1), offset=16),
    int(Type.Q5_1): Format(Field(4, 8, 16), Field(1, 4, 1), minima=True),
    int(Type.IQ4_NL): Format(Field(4, 2, 16), table=_FOUR_BITS),
    int(Type.MXFP4): Format(Field(4, 1, 16), table=_FLOAT4, exponents=True),
    int(Type.Q2_K): Format(
        Field(2, 16, 32),
        scales=80,
        factors=(Field(8, 0, 16),),
        block=256,
        sub=16,
        minima=True,
        nibbles=True,
    ),
    int(Type.Q3_K): Format(
        Field(2, 32, 32),
        Field(1, 0, 32),
        scales=108,
        factors=(Field(4, 96, 8), Field(2, 104, 4)),
        offset=4,
        block=256,
        sub=16,
    ),
    int(Type.Q4_K): Format(Field(4, 16, 32), sixes=4, block=256, sub=32, minima=True),
    int(Type.Q5_K): Format(
        Field(4, 48, 32), Field(1, 16, 32), sixes=4, block=256, sub=32, minima=True
    ),
    int(Type.Q6_K): Format(
        Field(4, 0, 64),
        Field(2, 128, 32),
        scales=208,
        factors=(Field(8, 192, 16),),
        offset=32,
        block=256,
        sub=16,
    ),
    int(Type.IQ4_XS): Format(
        Field(4, 8, 16),
        factors=(Field(4, 4, 1), Field(2, 2, 1)),
        table=_FOUR_BITS,
        block=256,
        sub=32,
    ),
}
"""Quantised types that have kernels."""

FLOATS = {int(Type.F32): 0, int(Type.F16): 1, int(Type.BF16): 2}
"""Types that are multiplied in floating point, and their numbers in ``kernels/matmul_float.cu``."""

NATIVE_TYPES = (*FORMATS, *FLOATS)
"""Types that the kernels multiply; others become one of these at load."""
