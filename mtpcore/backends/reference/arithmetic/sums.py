"""The order of sums: which additions, one after the other, make up a sum of many values.

A sum of float32 depends on its order, so the order is part of what a kernel computes. There are two
of them. A *chain* adds value after value to one total: products with matrices and with keys use it,
because there a lane of the vector unit is one output. Sums along a row use *lanes*: sixteen totals
side by side, and one tree at the end, because there a vector holds sixteen values of the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpcore.backends.reference.arithmetic.fused import F32, fma

__all__ = ["LANES", "in_lanes", "sum_of_lanes", "sum_of_products", "sum_of_row", "sum_of_squares"]

LANES = 16


def in_lanes(x: F32) -> F32:
    """See [..., n] as [..., ceil(n / 16), 16], with zeros after the last value."""
    filled = np.zeros((*x.shape[:-1], -(-x.shape[-1] // LANES) * LANES), np.float32)
    filled[..., : x.shape[-1]] = x
    return filled.reshape(*x.shape[:-1], -1, LANES)


def sum_of_lanes(lanes: F32) -> F32:
    """Return the sum of sixteen lanes, [..., 16] -> [...], by halves.

    Lane i plus lane i + 8, of these eight i plus i + 4, then i + 2, then i + 1: each step adds the
    two halves of a register.
    """
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def sum_of_row(x: F32) -> F32:
    """Return the sum over the last axis: value i goes to lane i mod 16, in ascending i."""
    total: Any = np.float32(0)
    for step in np.moveaxis(in_lanes(x), -2, 0):
        total = total + step
    return sum_of_lanes(total)


def sum_of_squares(x: F32) -> F32:
    """Return the sum of squares over the last axis, each square added to its lane unrounded."""
    return sum_of_products(x, x)


def sum_of_products(x: F32, y: F32) -> F32:
    """Return the sum of x y over the last axis, each product added to its lane unrounded."""
    total: Any = np.float32(0)
    for a, b in zip(*(np.moveaxis(in_lanes(one), -2, 0) for one in (x, y)), strict=True):
        total = fma(a, b, total)
    return sum_of_lanes(total)
