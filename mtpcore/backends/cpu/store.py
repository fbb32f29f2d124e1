"""Pages of keys and values as the kernels read them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import BackendError, CapacityError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE

__all__ = ["CpuStore"]

_DTYPES = {"f16": np.float16, "f32": np.float32}
_LINE = 64


class CpuStore:
    """Rows behind paged memory; implements ``mtpcore.backends.base.Store``.

    A page holds ``PAGE`` places of every layer; for each layer the keys of each head, turned
    (dtype[k_width, PAGE]), then the values of each head (dtype[PAGE, v_width]); of a latent layer
    the keys alone.

    Attributes
    ----------
    data : uint8[n_pages * page_bytes]
        Starts on a cache line; zero at first.
    page_bytes, n_pages : int
    is_half : bool
        Values are float16, else float32.
    """

    def __init__(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise BackendError("unknown type of memory", wanted=", ".join(_DTYPES), got=dtype)
        self.n_pages, self.is_half = n_pages, dtype == "f16"
        size, offset = np.dtype(_DTYPES[dtype]).itemsize, 0
        self._offsets: dict[int, tuple[int, int]] = {}
        for layer in layers:
            k_offset, offset = offset, offset + layer.n_heads * layer.k_width * PAGE * size
            v_offset = -1 if layer.latent else offset
            offset = k_offset + layer.n_values * PAGE * size
            self._offsets[layer.layer] = k_offset, v_offset
        self.page_bytes = offset
        try:
            memory = np.zeros(n_pages * self.page_bytes + 2 * _LINE, np.uint8)
        except MemoryError as error:
            raise CapacityError(
                "no memory for keys and values",
                wanted=f"{n_pages * self.page_bytes} bytes",
                fix="make n_ctx or n_seq_max smaller",
            ) from error
        begin = -memory.ctypes.data % _LINE
        self.data: NDArray[np.uint8] = memory[begin : begin + n_pages * self.page_bytes]
        self._pages = self.data.reshape(n_pages, self.page_bytes)
        values = self._pages.view(_DTYPES[dtype])
        # By place, head and entry, whatever the order in memory.
        self._views: list[NDArray[Any]] = []
        for layer in layers:
            k = self._offsets[layer.layer][0] // size
            v, end = (k + layer.n_heads * layer.k_width * PAGE, k + layer.n_values * PAGE)
            keys = values[:, k:v].reshape(n_pages, layer.n_heads, layer.k_width, PAGE)
            self._views.append(keys.transpose(0, 3, 1, 2))
            if not layer.latent:
                rows = values[:, v:end].reshape(n_pages, layer.n_heads, PAGE, layer.v_width)
                self._views.append(rows.transpose(0, 2, 1, 3))

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return self.data.nbytes

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""
        return self._offsets.keys()

    def offsets(self, layer: int) -> tuple[int, int]:
        """Return where keys and values of a layer begin in a page, in bytes.

        A latent layer, which has no values, has -1.
        """
        if layer not in self._offsets:
            raise BackendError("layer has no memory", where=f"layer {layer}")
        return self._offsets[layer]

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page."""
        self._pages[dst] = self._pages[src]

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy one place's rows of every layer."""
        for view in self._views:
            view[dst_page, dst_row] = view[src_page, src_row]

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places, in the order place, layer, K then V, head."""
        parts = [view[page, row : row + n].reshape(n, -1) for view in self._views]
        return np.concatenate(parts, axis=1).tobytes() if parts else b""
