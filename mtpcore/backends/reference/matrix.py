"""Matrices as the integer kernels multiply them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.activation import rounded
from mtpcore.backends.reference.run import Array

__all__ = ["QuantisedMatrix"]


class QuantisedMatrix:
    """A matrix (or a stack of them) whose products first quantise the other factor.

    ``w @ x`` multiplies the dequantised values, float64[..., outputs, inputs], by x as blocks of
    ``block`` int8 hold it. Sums of a block's whole numbers are exact in float64.
    """

    def __init__(self, values: NDArray[np.float64], block: int) -> None:
        self.values, self.block = values, block

    def __matmul__(self, x: Array) -> Array:
        return np.asarray(self.values @ rounded(x, self.block))

    def __getitem__(self, index: int) -> QuantisedMatrix:
        return QuantisedMatrix(self.values[index], self.block)
