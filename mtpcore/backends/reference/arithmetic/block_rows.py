"""What rows of a block make of each other, to the last bit: chains of sums."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.reference.arithmetic.fused import F32, fma

__all__ = ["block_conv", "block_mean", "block_mix"]


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


def block_conv(x: F32, changes: F32, w: F32, *, part: int) -> F32:
    """Return the sum over taps, a row's own first, each product added unrounded."""
    kernel, y = w[part], np.zeros_like(x)
    changes = changes.reshape(len(x), len(kernel), -1)
    changes = np.repeat(changes, x.shape[1] // changes.shape[2], axis=2)
    for j in range(min(len(kernel), len(x))):
        y[j:] = fma(kernel[j] + changes[j:, j], x[: len(x) - j], y[j:])
    return y
