"""Quantised matrices in the order in which the lanes of a tensor-core product read them.

A product of ``kernels/matmul.cu`` takes 16 rows by 32 columns of weights. Lane ``4 g + q`` of its
warp holds rows g and g + 8, columns 4q..4q+3 and 16+4q..16+4q+3 (PTX ISA, matrix fragments of
``mma.m16n8k32`` with 8-bit integers), so a warp reads one block of a tile as one straight line.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

__all__ = ["BITS", "TILE", "PackedMatrix", "pack"]

TILE = 16
BLOCK = 32
BITS = {int(Type.Q8_0): 8, int(Type.Q4_0): 4}
"""Bits of a code, by GGUF type, for the types that have a kernel."""

U8 = NDArray[np.uint8]


class PackedMatrix(msgspec.Struct, frozen=True):
    """A matrix [n_rows, n_cols] in tiles of 16 rows; missing rows have scales of zero.

    ``codes`` uint32[n_tiles, n_blocks, 32 lanes, bits / 2] and ``scales`` float16[n_tiles,
    n_blocks, 16].
    """

    type: int
    n_rows: int
    n_cols: int
    codes: NDArray[np.uint32]
    scales: NDArray[np.float16]


def pack(raw: U8, kind: int, n_rows: int, n_cols: int) -> PackedMatrix:
    """Reorder the bytes of a GGUF matrix, whose blocks are a float16 scale and then the codes."""
    n_tiles, n_blocks = -(-n_rows // TILE), n_cols // BLOCK
    n_bytes = BITS[kind] * BLOCK // 8
    blocks = np.zeros((n_tiles * TILE, n_blocks, 2 + n_bytes), np.uint8)
    blocks[:n_rows] = raw.reshape(n_rows, n_blocks, 2 + n_bytes)
    tiles = blocks.reshape(n_tiles, TILE, n_blocks, 2 + n_bytes).transpose(0, 2, 1, 3)
    scales = np.ascontiguousarray(tiles[..., :2]).view(np.float16)[..., 0]
    codes = np.ascontiguousarray(_LANES[BITS[kind]](tiles[..., 2:])).view(np.uint32)
    return PackedMatrix(kind, n_rows, n_cols, codes, np.ascontiguousarray(scales))


def _lanes8(codes: U8) -> U8:
    """[tile, block, row, 32] -> [tile, block, lane, 16]: (columns 4q.., 16+4q..) x (g, g + 8)."""
    split = codes.reshape(*codes.shape[:2], 2, 8, 2, 4, 4)  # row half, g, column half, q, byte
    return split.transpose(0, 1, 3, 5, 4, 2, 6).reshape(*codes.shape[:2], 32, 16)


def _lanes4(codes: U8) -> U8:
    """[tile, block, row, 16] -> [tile, block, lane, 8]: rows g and g + 8.

    A GGUF byte j holds column j in its low half and column 16 + j in its high half, which is how
    the fragment pairs them.
    """
    split = codes.reshape(*codes.shape[:2], 2, 8, 4, 4)  # row half, g, q, byte
    return split.transpose(0, 1, 3, 4, 2, 5).reshape(*codes.shape[:2], 32, 8)


_LANES: dict[int, Callable[[U8], U8]] = {8: _lanes8, 4: _lanes4}
