"""How keys and values are stored: floats, or int8 codes with scales."""

from __future__ import annotations

from typing import Final

from mtpcore.graph.program import MemoryLayer

__all__ = ["CODES", "KV_DTYPES", "bytes_of_place", "coded_widths"]

KV_DTYPES: Final = ("f16", "f32", "q8_0")
"""What ``kv_dtype`` may be."""

CODES: Final = 64
"""Entries of a row that share a scale in ``q8_0``."""

_FLOAT_BYTES = {"f16": 2, "f32": 4}


def coded_widths(width: int) -> tuple[int, int]:
    """Return how many codes (in whole fours) and how many scales a row of this width takes."""
    return -(-width // 4) * 4, -(-width // CODES)


def bytes_of_place(layer: MemoryLayer, dtype: str) -> int:
    """Return the bytes that a layer keeps of each place."""
    if dtype in _FLOAT_BYTES:
        return layer.n_values * _FLOAT_BYTES[dtype]
    widths = [layer.k_width] if layer.latent else [layer.k_width, layer.v_width]
    coded = [coded_widths(width) for width in widths]
    return layer.n_heads * sum(n_codes + 4 * n_scales for n_codes, n_scales in coded)
