"""Operations that treat every value alike, norms, and the rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.functions import ACTIVATIONS, expm1, log
from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.backends.reference.arithmetic.sums import sum_of_row, sum_of_squares

__all__ = [
    "activation",
    "clamp",
    "gated",
    "gaussian_topk",
    "l2_norm",
    "layer_norm",
    "rms_norm",
    "rope",
    "scale",
    "scale_by_position",
    "xielu",
]


def scale(x: F32, *, factor: float) -> F32:
    """Return factor x, the factor rounded to float32 first."""
    return np.asarray(x * np.float32(factor))


def clamp(x: F32, *, limit: float) -> F32:
    """Return x, cut to the limit as it is rounded to float32; what is not a number stays."""
    most = np.float32(limit)
    x = np.where(most < x, most, x)
    return np.where(x < -most, -most, x)


def scale_by_position(
    x: F32, positions: NDArray[np.int32], *, beta: float, n: int, offset: int
) -> F32:
    """Return factor x; the factor is computed in double, and rounded to float32 like beta."""
    parts = np.maximum(positions[:, 0].astype(np.int64) + offset, 0) // n
    factors = 1.0 + float(np.float32(beta)) * log(1.0 + parts.astype(np.float64))
    return np.asarray(factors.astype(np.float32).reshape(-1, *[1] * (x.ndim - 1)) * x)


def activation(x: F32, *, kind: str) -> F32:
    """Return kind(x)."""
    return ACTIVATIONS[kind](x)


def xielu(x: F32, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> F32:
    """Return (alpha_p x + beta) x above 0, else alpha_n (expm1(min(x, eps)) - x) + beta x.

    The numbers are rounded to float32; the products with both alphas are not rounded. What is not
    a number stays.
    """
    up, down, slope, most = map(np.float32, (alpha_p, alpha_n, beta, eps))
    above = fma(up, x, slope) * x
    below = fma(down, expm1(np.where(most < x, most, x)) - x, slope * x)
    return np.where(x > 0, above, below)


def gated(gate: F32, up: F32, *, kind: str, limit: float, offset: int) -> F32:
    """Return kind(gate) (up + offset): activation and sum are rounded before they are multiplied.

    What is cut at the limit stays where it is not a number.
    """
    most = np.float32(limit)
    if most > 0:
        gate, up = np.where(most < gate, most, gate), clamp(up, limit=limit)
    return np.asarray(ACTIVATIONS[kind](gate) * (up + np.float32(offset) if offset else up))


def inverse_size(x: F32, n: int, eps: float) -> F32:
    """Return 1 / sqrt(sum(x^2) / n + eps), [..., width] -> [..., 1]; each step is rounded."""
    mean = sum_of_squares(x) / np.float32(n)
    return np.asarray(np.float32(1) / np.sqrt(mean + np.float32(eps)))[..., None]


def rms_norm(x: F32, w: F32 | None = None, *, eps: float) -> F32:
    """Return w (x inverse): one division a row, then products only."""
    y = x * inverse_size(x, x.shape[-1], eps)
    return np.asarray(y if w is None else w * y)


def l2_norm(x: F32, *, eps: float) -> F32:
    """Return x inverse, where the sum of squares itself is what eps is added to."""
    return np.asarray(x * inverse_size(x, 1, eps))


def layer_norm(x: F32, w: F32 | None = None, bias: F32 | None = None, *, eps: float) -> F32:
    """Return (w (c inverse)) + bias, where c = x - mean is rounded before its squares are added."""
    centred = x - (sum_of_row(x) / np.float32(x.shape[-1]))[..., None]
    y = centred * inverse_size(centred, x.shape[-1], eps)
    y = y if w is None else w * y
    return np.asarray(y if bias is None else y + bias)


def gaussian_topk(x: F32, *, n_deviations: float) -> F32:
    """Return c - cutoff where that is not below 0, else 0; c = x - mean is rounded, as in norms.

    The cutoff is the number of deviations, rounded to float32, times one, sqrt(sum(c^2) / n).
    """
    n = np.float32(x.shape[-1])
    centred = x - (sum_of_row(x) / n)[..., None]
    deviation = np.sqrt(sum_of_squares(centred) / n)
    y = centred - (np.float32(n_deviations) * deviation)[..., None]
    return np.where(y < 0, np.float32(0), y)


def rope(
    x: F32,
    positions: NDArray[np.int32],
    factors: F32 | None = None,
    *,
    frequencies: Sequence[float],
    axes: Sequence[int],
    style: str,
    magnitude: float,
) -> F32:
    """Turn pairs (a, b) to (a cos - b sin, a sin + b cos).

    Angles, sines and cosines are double (the system's ``libm``, as in the kernels; NumPy's own
    differ from it in last bits), times the magnitude, and then rounded to float32. Of each result
    the product with b is rounded; the one with a is not.
    """
    rates = np.asarray(frequencies)
    if factors is not None:
        rates = rates / factors[: len(rates)]
    angles = positions[:, np.asarray(axes)].astype(np.float64) * rates
    cos, sin = (
        (np.array([[f(a) for a in row] for row in angles.tolist()]) * magnitude).astype(np.float32)
        for f in (math.cos, math.sin)
    )
    cos, sin = cos[:, None], sin[:, None]  # the same for all heads
    n = len(frequencies)
    if style == "halves":
        first, second = np.arange(n), np.arange(n, 2 * n)
    else:
        first, second = np.arange(0, 2 * n, 2), np.arange(1, 2 * n, 2)
    a, b, y = x[..., first], x[..., second], x.copy()
    y[..., first] = fma(a, cos, (np.float32(0) - b) * sin)
    y[..., second] = fma(a, sin, b * cos)
    return y
