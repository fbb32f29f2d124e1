"""Activations as the integer kernels see them: blocks of int8 with one scale each."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

__all__ = ["BLOCK_OF_TYPE", "quantise", "rounded"]

_REST_STEPS = 2**14

_BY_32 = (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.IQ4_NL, Type.MXFP4)
_BY_256 = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS)

BLOCK_OF_TYPE = {int(kind): 32 for kind in _BY_32} | {int(kind): 256 for kind in _BY_256}
"""Activations that share a scale, by the type of the matrix that they meet; others stay float."""


def quantise(x: NDArray[Any], block: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return whole numbers float32[n / block, block] in -127..127 and scales float32[n / block].

    ``t = x * (127 / amax)`` and ``q = t`` rounded to the nearest, half to even. The scale is
    ``amax / 127`` times ``1 + sum((t - q) q) / sum(q q)``, which leaves the least squared error;
    ``t - q`` is counted in whole steps of 2^-14. A block whose ``amax / 127`` is subnormal counts
    as zeros, with scale 0; one that holds a NaN or an infinity has scale NaN.
    """
    blocks = np.asarray(x, np.float32).reshape(-1, block)
    amax = np.abs(blocks).max(axis=1)
    scale = np.where(np.isfinite(amax), amax / np.float32(127), np.float32(np.nan))
    scale[scale < np.finfo(np.float32).tiny] = 0
    whole: NDArray[np.float32] = np.zeros(blocks.shape, np.float32)
    used = scale > 0
    exact = blocks[used] * (np.float32(127) / amax[used])[:, None]
    whole[used] = np.rint(exact)
    rest = np.rint((exact - whole[used]) * np.float32(_REST_STEPS)).astype(np.int64)
    codes = whole[used].astype(np.int64)
    along, square = (rest * codes).sum(axis=1), (codes * codes).sum(axis=1)
    more = along.astype(np.float32) / (square.astype(np.float32) * np.float32(_REST_STEPS))
    scale[used] = np.maximum(scale[used] + scale[used] * more, np.finfo(np.float32).tiny)
    return whole, scale


def rounded(x: NDArray[Any], block: int) -> NDArray[np.float64]:
    """Return x as its quantised blocks hold it, float64[n]."""
    whole, scale = quantise(x, block)
    return (whole.astype(np.float64) * scale.astype(np.float64)[:, None]).reshape(-1)
