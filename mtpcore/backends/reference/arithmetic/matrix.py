"""Matmuls."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from mtpcore.backends.base import WeightTensor
from mtpcore.backends.reference.activation import quantise
from mtpcore.backends.reference.arithmetic.blocks import Blocks, Raw
from mtpcore.backends.reference.arithmetic.formats import BLOCKS, blocks_of, stored
from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.graph.program import Weight

__all__ = ["FloatMatrix", "Matrix", "load_matrix", "load_table", "matrix_of"]


class Matrix(Protocol):
    """A weight matrix, [outputs, inputs]."""

    n_outputs: int

    def times(self, x: F32) -> F32:
        """Return the products with rows, [rows, inputs] -> [rows, outputs]."""


def _settled(y: F32) -> F32:
    """Give all values that are not numbers the same bits."""
    return np.where(np.isnan(y), np.float32(np.nan), y)


class FloatMatrix:
    """F32, F16 and BF16, widened to float32: for each output one chain, column after column."""

    def __init__(self, values: F32) -> None:
        self.n_outputs = len(values)
        self.columns = np.ascontiguousarray(values.T)

    def times(self, x: F32) -> F32:
        """Return the products with rows."""
        y = np.zeros((len(x), self.n_outputs), np.float32)
        for column, of_rows in zip(self.columns, x.T, strict=True):
            y = fma(column, of_rows[:, None], y)
        return _settled(y)


class BlockMatrix:
    """Quantised types: for each output one chain, block after block.

    A block of a row becomes int8 codes with one scale. The sum of products of whole numbers inside
    a block is exact in any order; only then is it rounded to float32, and added times the product
    of the two scales, which is rounded, too. Where a type has minima, they follow as a second term
    of the same block.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.n_outputs = len(blocks.whole)
        self.blocks = blocks

    def times(self, x: F32) -> F32:
        """Return the products with rows."""
        whole, scale, minimum, min_scale = self.blocks
        _, n_blocks, n_columns = whole.shape
        codes, x_scale = quantise(x, n_columns)
        codes = codes.reshape(len(x), n_blocks, n_columns).astype(np.float64)
        x_scale = x_scale.reshape(len(x), n_blocks, 1)
        y = np.zeros((len(x), self.n_outputs), np.float32)
        for b in range(n_blocks):
            integers = (codes[:, b] @ whole[:, b].T).astype(np.float32)
            y = fma(integers, scale[:, b] * x_scale[:, b], y)
            if minimum is not None and min_scale is not None:
                minima = (codes[:, b] @ minimum[:, b].T).astype(np.float32)
                y = fma(-minima, min_scale[:, b] * x_scale[:, b], y)
        return _settled(y)


def matrix_of(kind: int, raw: Raw) -> Matrix:
    """Return the matrix that rows of a type hold, uint8[outputs, row bytes]."""
    if kind not in BLOCKS:
        return FloatMatrix(quants.dequantize(raw, GGMLQuantizationType(kind)))
    return BlockMatrix(blocks_of(kind, raw))


def load_matrix(tensor: WeightTensor, weight: Weight) -> Any:
    """Return a matrix, or a list of them."""
    kind, raw = stored(tensor)
    shape = weight.shape
    raw = raw.reshape(*shape[:-1], -1)
    return matrix_of(kind, raw) if len(shape) == 2 else [matrix_of(kind, part) for part in raw]


def load_table(tensor: WeightTensor, weight: Weight) -> F32:
    """Return the values of a matrix whose rows are looked up, in its type's own definition."""
    kind, raw = stored(tensor)
    values: NDArray[np.float32] = quants.dequantize(raw, GGMLQuantizationType(kind))
    return values.reshape(weight.shape)
