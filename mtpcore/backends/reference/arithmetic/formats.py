"""Tensor types that the kernels multiply as they are stored."""

from __future__ import annotations

from collections.abc import Callable

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from mtpcore.backends.base import WeightTensor
from mtpcore.backends.reference.arithmetic.blocks import Blocks, Raw
from mtpcore.backends.reference.arithmetic.blocks32 import (
    iq4_nl,
    mxfp4,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
)
from mtpcore.backends.reference.arithmetic.blocks256 import iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k

__all__ = ["BLOCKS", "NATIVE_TYPES", "blocks_of", "stored"]

BLOCKS: dict[int, Callable[[Raw], Blocks]] = {
    int(Type.Q8_0): q8_0,
    int(Type.Q4_0): q4_0,
    int(Type.Q4_1): q4_1,
    int(Type.Q5_0): q5_0,
    int(Type.Q5_1): q5_1,
    int(Type.IQ4_NL): iq4_nl,
    int(Type.MXFP4): mxfp4,
    int(Type.Q2_K): q2_k,
    int(Type.Q3_K): q3_k,
    int(Type.Q4_K): q4_k,
    int(Type.Q5_K): q5_k,
    int(Type.Q6_K): q6_k,
    int(Type.IQ4_XS): iq4_xs,
}
"""What reads the blocks uint8[..., block bytes] of a type."""

NATIVE_TYPES = (*BLOCKS, int(Type.F32), int(Type.F16), int(Type.BF16))
"""Types that the kernels multiply; others become one of these at load."""


def blocks_of(kind: int, raw: Raw) -> Blocks:
    """Read rows of a type in ``BLOCKS``, uint8[outputs, row bytes]."""
    _, block_bytes = GGML_QUANT_SIZES[Type(kind)]
    return BLOCKS[kind](raw.reshape(len(raw), -1, block_bytes))


def stored(tensor: WeightTensor) -> tuple[int, Raw]:
    """Return the type in which a matrix is multiplied, and its rows uint8[..., row bytes]."""
    return (
        (tensor.type, tensor.raw()) if tensor.type in NATIVE_TYPES else tensor.native(NATIVE_TYPES)
    )
