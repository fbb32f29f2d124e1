"""The mean and the mix of a block's rows, to the last bit: chains, from the first row on."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.reference.arithmetic.fused import F32, fma

__all__ = ["block_mean", "block_mix"]


def block_mean(x: F32) -> F32:
    """Return the sum of the rows, divided by their number: [rows, width] -> [rows, width]."""
    total = np.zeros(x.shape[1], np.float32)
    for row in x:
        total = total + row
    return np.tile(total / np.float32(len(x)), (len(x), 1))


def block_mix(x: F32, w: F32) -> F32:
    """Return the sum over j <= i of w[i, j] x[j], each product added unrounded."""
    mixed = np.zeros_like(x)
    for i in range(len(x)):
        for j in range(i + 1):
            mixed[i] = fma(w[i, j], x[j], mixed[i])
    return mixed
