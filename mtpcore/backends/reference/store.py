"""Pages of the KV cache as NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.coded import CodedRows
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE

__all__ = ["ReferenceStore"]

_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_DTYPES = (*_FLOATS, "q8_0")


class ReferenceStore:
    """Rows of paged memory; implements ``mtpcore.backends.base.Store``.

    ``keys[layer]`` is dtype[n_pages, PAGE, n_heads, k_width] and ``values[layer]`` likewise, a view
    of the keys where the layer is latent; what is written is rounded to the store's type (``f16``,
    ``f32``, ``q8_0``, or ``f64`` for witnesses).
    """

    def __init__(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise BackendError("unknown type of memory", wanted=", ".join(_DTYPES), got=dtype)
        self.dtype = dtype
        self.keys: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self._arrays: list[NDArray[Any]] = []  # [n_pages, PAGE, n_heads, entries]
        for layer in layers:
            keys = self._add(n_pages, layer.n_heads, layer.k_width)
            self.keys[layer.layer] = keys
            if not layer.latent:
                self.values[layer.layer] = self._add(n_pages, layer.n_heads, layer.v_width)
            elif isinstance(keys, CodedRows):
                self.values[layer.layer] = keys.first_entries(layer.v_width)
            else:
                self.values[layer.layer] = keys[..., : layer.v_width]

    def _add(self, n_pages: int, n_heads: int, width: int) -> Any:
        if self.dtype in _FLOATS:
            pages = np.zeros((n_pages, PAGE, n_heads, width), _FLOATS[self.dtype])
            self._arrays.append(pages)
            return pages
        coded = CodedRows.zeros(n_pages, PAGE, n_heads, width)
        self._arrays += [coded.codes, coded.scales]
        return coded

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""
        return self.keys.keys()

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return sum(array.nbytes for array in self._arrays)

    @property
    def place_bytes(self) -> int:
        """Bytes of one place in all layers together."""
        return sum(array[0, 0].nbytes for array in self._arrays)

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page."""
        for array in self._arrays:
            array[dst] = array[src]

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy one place's rows of every layer."""
        for array in self._arrays:
            array[dst_page, dst_row] = array[src_page, src_row]

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places, in the order place, layer, K then V, head."""
        return b"".join(
            array[page, place].tobytes() for place in range(row, row + n) for array in self._arrays
        )

    def write(self, page: int, row: int, data: memoryview) -> None:
        """Store ``data``, places that ``read`` returned, from row ``row`` of a ``page`` on."""
        begin = 0
        for place in range(row, row + len(data) // max(self.place_bytes, 1)):
            for array in self._arrays:
                there = array[page, place]
                part = data[begin : begin + there.nbytes]
                there[...] = np.frombuffer(part, array.dtype).reshape(there.shape)
                begin += there.nbytes
