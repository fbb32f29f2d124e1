"""The tensor types of GGUF: block sizes, names, and their values as NumPy arrays."""

from __future__ import annotations

from functools import cache

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

__all__ = [
    "BF16",
    "BLOCKS",
    "F16",
    "F32",
    "PLAIN",
    "block_type",
    "dequantize",
    "is_float",
    "type_name",
]

Q1_0, Q2_0 = 41, 42  # the gguf package unpacks neither

_NAMES = {int(kind): str(kind.name) for kind in GGMLQuantizationType} | {Q1_0: "Q1_0", Q2_0: "Q2_0"}

BLOCKS = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()} | {
    Q1_0: (128, 18),
    Q2_0: (64, 18),
}
"""Type id -> (values per block, bytes per block)."""

_CODES = {Q1_0: np.array([-1, 1], np.float32), Q2_0: np.array([-1, 0, 1, 2], np.float32)}
"""What the codes of a block mean, which lie after its scale in half precision, low bits first."""

F32, F16 = int(GGMLQuantizationType.F32), int(GGMLQuantizationType.F16)
BF16 = int(GGMLQuantizationType.BF16)

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
    return _NAMES.get(kind, f"type {kind}")


def block_type(name: str) -> int | None:
    """Return the id of a type by its name, as ``"MXFP4"``; None where there is none."""
    return next((kind for kind, known in _NAMES.items() if known == name), None)


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
    if kind in _CODES:
        return _scale_codes(blocks, kind)
    try:
        # Scales of garbage or of infinities overflow; that is the file's affair, not a warning.
        with np.errstate(all="ignore"):
            return np.asarray(quants.dequantize(blocks, GGMLQuantizationType(kind)), np.float32)
    except NotImplementedError:
        return None


def _scale_codes(blocks: np.ndarray, kind: int) -> np.ndarray:
    """Turn rows of blocks of small codes into values, as ggml's ``dequantize_row_*`` do."""
    n_values, n_bytes = BLOCKS[kind]
    bits = (n_bytes - 2) * 8 // n_values
    whole = blocks.reshape(-1, n_bytes)
    scales = np.ascontiguousarray(whole[:, :2]).view("<f2").astype(np.float32)
    shifts = np.arange(0, 8, bits).astype(np.uint8)
    codes = whole[:, 2:, None] >> shifts & (1 << bits) - 1
    with np.errstate(all="ignore"):
        values = scales * _CODES[kind][codes.reshape(-1, n_values)]
    return np.asarray(values.reshape(*blocks.shape[:-1], -1), np.float32)


@cache
def is_float(kind: int) -> bool:
    """Say whether values of a type id are floating-point numbers, stored or dequantised."""
    values = dequantize(np.zeros((1, BLOCKS[kind][1]), np.uint8), kind)
    return values is not None and values.dtype.kind == "f"
