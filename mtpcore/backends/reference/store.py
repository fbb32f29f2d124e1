"""Pages of keys and values as NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE

__all__ = ["ReferenceStore"]

_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


class ReferenceStore:
    """Rows behind paged memory; implements ``mtpcore.backends.base.Store``.

    ``keys[layer]`` is dtype[n_pages, PAGE, n_heads, k_width] and ``values[layer]`` likewise, a view
    of the keys where the layer is latent; what is written is rounded to the store's type (``f16``,
    ``f32``, or ``f64`` for witnesses).
    """

    def __init__(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise BackendError("unknown type of memory", wanted=", ".join(_DTYPES), got=dtype)
        made = _DTYPES[dtype]
        self.dtype = dtype
        self.keys: dict[int, NDArray[Any]] = {
            m.layer: np.zeros((n_pages, PAGE, m.n_heads, m.k_width), made) for m in layers
        }
        self.values: dict[int, NDArray[Any]] = {
            m.layer: self.keys[m.layer][..., : m.v_width]
            if m.latent
            else np.zeros((n_pages, PAGE, m.n_heads, m.v_width), made)
            for m in layers
        }

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""
        return self.keys.keys()

    def _arrays(self) -> list[NDArray[Any]]:
        both = [array for layer in self.keys for array in (self.keys[layer], self.values[layer])]
        return [array for array in both if array.base is None]

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return sum(array.nbytes for array in self._arrays())

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page."""
        for array in self._arrays():
            array[dst] = array[src]

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy one place's rows of every layer."""
        for array in self._arrays():
            array[dst_page, dst_row] = array[src_page, src_row]

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places, in the order place, layer, K then V, head."""
        return b"".join(
            array[page, place].tobytes()
            for place in range(row, row + n)
            for array in self._arrays()
        )
