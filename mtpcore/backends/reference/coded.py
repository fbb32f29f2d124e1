"""Rows of keys or values as int8 codes, with a scale for each block of entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.activation import quantise
from mtpcore.memory.types import CODES, coded_widths

__all__ = ["CodedRows", "codes_of"]


def codes_of(rows: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return codes float32[..., blocks, CODES], zeros after the last, and scales [..., blocks]."""
    *shape, width = rows.shape
    _, n_blocks = coded_widths(width)
    filled = np.zeros((*shape, n_blocks * CODES), np.float32)
    filled[..., :width] = rows
    codes, scales = quantise(filled, CODES)
    return codes.reshape(*shape, n_blocks, CODES), scales.reshape(*shape, n_blocks)


class CodedRows:
    """What an array [n_pages, places, n_heads, width] holds when it is stored as ``q8_0``.

    Rows are quantised when they are set; what is read is codes times scales, in float64.

    Attributes
    ----------
    codes : int8[n_pages, places, n_heads, width rounded up to fours]
    scales : float32[n_pages, places, n_heads, blocks]
    """

    def __init__(self, codes: NDArray[np.int8], scales: NDArray[np.float32], width: int) -> None:
        self.codes, self.scales, self.width = codes, scales, width

    @classmethod
    def zeros(cls, n_pages: int, n_places: int, n_heads: int, width: int) -> CodedRows:
        """Make rows of zeros."""
        n_codes, n_scales = coded_widths(width)
        shape = (n_pages, n_places, n_heads)
        return cls(
            np.zeros((*shape, n_codes), np.int8), np.zeros((*shape, n_scales), np.float32), width
        )

    def first_entries(self, width: int) -> CodedRows:
        """Return rows of the first entries alone, which are not stored a second time."""
        return CodedRows(self.codes, self.scales, width)

    def __setitem__(self, where: Any, rows: NDArray[Any]) -> None:
        codes, scales = codes_of(np.broadcast_to(rows, (*self.codes[where].shape[:-1], self.width)))
        flat = codes.reshape(*codes.shape[:-2], -1)
        self.codes[where] = flat[..., : self.codes.shape[-1]].astype(np.int8)
        self.scales[where] = scales

    def __getitem__(self, where: Any) -> NDArray[np.float64]:
        scales = np.repeat(self.scales[where].astype(np.float64), CODES, axis=-1)
        return np.asarray(self.codes[where][..., : self.width] * scales[..., : self.width])
