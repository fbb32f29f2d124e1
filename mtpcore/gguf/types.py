"""The tensor types of GGUF: block sizes, names, and their values as NumPy arrays."""

from __future__ import annotations

from functools import cache

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

__all__ = ["BLOCKS", "F16", "F32", "PLAIN", "block_type", "dequantize", "is_float", "type_name"]

BLOCKS = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
"""Type id -> (values per block, bytes per block)."""

F32, F16 = int(GGMLQuantizationType.F32), int(GGMLQuantizationType.F16)

PLAIN = {
    int(GGMLQuantizationType[name]): np.dtype(code)
    for name, code in {
        "F32": "<f4",
        "F16": "<f2",
        "F64": "<f8",
        "I8": "<i1",
        "I16": "<i2",
        "I32": "<i4",
        "I64": "<i8",
    }.items()
}
"""Type id -> dtype, for the types that NumPy stores as they are."""


def type_name(kind: int) -> str:
    """Name a type id, as in ``"Q8_0"``; one without a name is ``"type 99"``."""
    return str(GGMLQuantizationType(kind).name) if kind in BLOCKS else f"type {kind}"


def block_type(name: str) -> int | None:
    """Return the id of a type by its name, as ``"MXFP4"``; None where there is none."""
    kind = GGMLQuantizationType.__members__.get(name)
    return None if kind is None else int(kind)


def dequantize(blocks: np.ndarray, kind: int) -> np.ndarray | None:
    """Turn rows of blocks into values.

    Parameters
    ----------
    blocks : uint8[..., row_bytes]
    kind : int
        Type id.

    Returns
    -------
    array[..., row_values] or None
        In the stored dtype for plain types, else float32; None where no conversion is known.
    """
    if kind in PLAIN:
        return blocks.view(PLAIN[kind])
    try:
        # Scales of garbage or of infinities overflow; that is the file's affair, not a warning.
        with np.errstate(all="ignore"):
            return np.asarray(quants.dequantize(blocks, GGMLQuantizationType(kind)), np.float32)
    except NotImplementedError:
        return None


@cache
def is_float(kind: int) -> bool:
    """Say whether values of a type id are floating-point numbers, stored or dequantised."""
    values = dequantize(np.zeros((1, BLOCKS[kind][1]), np.uint8), kind)
    return values is not None and values.dtype.kind == "f"
