"""exp and the functions built on it, as polynomials in fused multiply-adds.

No library's function is used, because their last bits differ from version to version.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.fused import F32, fma

__all__ = ["ACTIVATIONS", "exp", "expm1", "log", "sigmoid"]

F64 = NDArray[np.float64]
_f = np.float32
ONE, TWO, HALF = _f(1), _f(2), _f(0.5)


def polynomial(x: F32, *coefficients: np.float32) -> F32:
    """Return c[0] x^n + ... + c[n] by Horner's rule: one fma a coefficient, highest first."""
    y: F32 = np.asarray(coefficients[0])
    for coefficient in coefficients[1:]:
        y = fma(y, x, coefficient)
    return y


SHIFT = _f(1.5 * 2**23)
"""Added to a number, it rounds it to a whole one, which the lowest bits then hold."""
LOG2_E = _f(float.fromhex("0x1.715476p0"))
LN2_HIGH = _f(float.fromhex("0x1.62e4p-1"))  # 14 bits: its product with n is exact
LN2_LOW = _f(float.fromhex("0x1.7f7d1cp-20"))
TAYLOR = [ONE / _f(n) for n in (5040, 720, 120, 24, 6, 2, 1, 1)]
SMALLEST, LARGEST = _f(-87.3), _f(88.37)


def exp(x: F32) -> F32:
    """Return exp(x) = 2^n exp(r): n is x / ln 2 rounded, r = x - n ln 2 with ln 2 in two parts.

    exp(r) is its Taylor series up to r^7. 0 below -87.3, so that no result is subnormal; infinite
    above 88.37; NaN stays.
    """
    shifted = fma(x, LOG2_E, SHIFT)
    n = shifted - SHIFT
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    exponent = (shifted.view(np.uint32) << np.uint32(23)) + np.uint32(127 << 23)
    scaled = polynomial(r, *TAYLOR) * exponent.view(np.float32)
    return np.where(x < SMALLEST, _f(0), np.where(x > LARGEST, _f(np.inf), scaled))


LN2_PARTS = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
ROOT_OF_HALF_BITS = 0x3FE6A09E667F3BCD


def log(x: F64) -> F64:
    """Return log(x) of positive normal doubles, as the sampler's: x = 2^e m, m near 1.

    log m is 2 atanh(s), s = (m - 1) / (m + 1), by its Taylor series; nothing is fused.
    """
    bits = x.view(np.int64)
    exponent = (bits - ROOT_OF_HALF_BITS) >> 52
    m = (bits - (exponent << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z, e = s * s, exponent.astype(np.float64)
    p = np.full_like(s, 2.0 / 21)
    for n in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        p = p * z + 2.0 / n
    high, low = LN2_PARTS
    return np.asarray(e * high + (2.0 * s + (s * z * p + e * low)))


EXPM1_SERIES = [ONE / _f(n) for n in (5040, 720, 120, 24, 6, 2, 1)]


def expm1(x: F32) -> F32:
    """Return exp(x) - 1, below 0.3 x times the series of (exp(x) - 1) / x."""
    return np.where(magnitude(x) < _f(0.3), x * polynomial(x, *EXPM1_SERIES), exp(x) - ONE)


def sigmoid(x: F32) -> F32:
    """Return 1 / (1 + exp(0 - x))."""
    return np.asarray(ONE / (ONE + exp(_f(0) - x)))


def magnitude(x: F32) -> F32:
    """Return the larger of x and 0 - x."""
    return np.where(x > _f(0) - x, x, _f(0) - x)


TANH_SERIES = [
    _f(-1382) / _f(155925), _f(62) / _f(2835), _f(-17) / _f(315), TWO / _f(15), -ONE / _f(3), ONE,
]  # fmt: skip


def tanh(x: F32) -> F32:
    """Return x times the series of tanh(x) / x in x^2 below 0.3, else 1 - 2 / (exp(2|x|) + 1)."""
    size = magnitude(x)
    near = x * polynomial(x * x, *TANH_SERIES)
    far = ONE - TWO / (exp(size + size) + ONE)
    return np.where(size < _f(0.3), near, np.where(x < 0, _f(0) - far, far))


ERFC = [_f(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0)]
ROOT_OF_HALF = _f(float.fromhex("0x1.6a09e6p-1"))


def gelu(x: F32) -> F32:
    """Return x times the normal distribution's integral, whose tail is erfc(|x| / sqrt 2) / 2.

    erfc by formula 7.1.26 of Abramowitz and Stegun's handbook, a polynomial in 1 / (1 + p z).
    """
    z = magnitude(x) * ROOT_OF_HALF
    series = polynomial(ONE / fma(_f(0.3275911), z, ONE), *ERFC)
    tail = HALF * (series * exp(_f(0) - z * z))
    return np.asarray(x * np.where(x < 0, tail, ONE - tail))


ROOT_OF_TWO_OVER_PI = _f(float.fromhex("0x1.988454p-1"))


def gelu_tanh(x: F32) -> F32:
    """Return x / 2 + x / 2 tanh(sqrt(2 / pi) (x + 0.044715 x^3)), x^3 as (x x) x."""
    half = HALF * x
    inner = ROOT_OF_TWO_OVER_PI * fma(_f(0.044715), (x * x) * x, x)
    return fma(half, tanh(inner), half)


ATANH_SERIES = [ONE / _f(n) for n in (15, 13, 11, 9, 7, 5, 3, 1)]


def softplus(x: F32) -> F32:
    """Return the larger of x and 0, plus log(1 + e) with e = exp(0 - |x|).

    log(1 + e) is 2 atanh(s) with s = e / (2 + e), at most 1/3: s + s times the series of
    atanh(s) / s in s^2. Nothing is lost where e is small. Above 17.4 the sum is x.
    """
    e = exp(_f(0) - magnitude(x))
    s = e / (TWO + e)
    return np.where(x > 0, x, _f(0)) + (s + s) * polynomial(s * s, *ATANH_SERIES)


def gelu_sigmoid(x: F32) -> F32:
    """Return x sigmoid(1.702 x), the product with 1.702 rounded."""
    return np.asarray(x * sigmoid(_f(1.702) * x))


ACTIVATIONS: dict[str, Callable[[F32], F32]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.where(x < 0, _f(0), x),
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "gelu_sigmoid": gelu_sigmoid,
}
