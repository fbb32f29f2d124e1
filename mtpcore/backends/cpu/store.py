"""Pages of the KV cache as the kernels read them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.cpu.zeros import zeros_on_a_line
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE
from mtpcore.memory.types import KV_DTYPES, bytes_of_place, coded_widths

__all__ = ["CpuStore"]

_FLOATS = {"f16": np.float16, "f32": np.float32}


class CpuStore:
    """Rows of paged memory; implements ``mtpcore.backends.base.Store``.

    A page holds ``PAGE`` places of every layer; for each layer the keys of each head, transposed
    (dtype[k_width, PAGE]), then the values of each head (dtype[PAGE, v_width]); of a latent layer
    the keys alone. In ``q8_0`` a head's keys are int8[k_width / 4, PAGE, 4], its values
    int8[PAGE, v_width], widths rounded up to fours, and float32[scales, PAGE] follow each of both.

    Attributes
    ----------
    data : uint8[n_pages * page_bytes]
        Starts on a cache line; zero at first.
    page_bytes, n_pages : int
    dtype : str
        How values are stored.
    """

    def __init__(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> None:
        if dtype not in KV_DTYPES:
            raise BackendError("unknown type of memory", wanted=", ".join(KV_DTYPES), got=dtype)
        self.n_pages, self.dtype = n_pages, dtype
        self.page_bytes = PAGE * sum(bytes_of_place(layer, dtype) for layer in layers)
        self.data = zeros_on_a_line(
            n_pages * self.page_bytes, "keys and values", "make n_ctx or n_seq_max smaller"
        )
        self._pages = self.data.reshape(n_pages, self.page_bytes)
        self._offsets: dict[int, tuple[int, int]] = {}
        self._views: list[NDArray[Any]] = []  # by page, place and head, whatever the order here
        offset = 0
        for layer in layers:
            k_offset, offset = offset, self._add_views(offset, layer.n_heads, layer.k_width, True)
            v_offset = -1 if layer.latent else offset
            if not layer.latent:
                offset = self._add_views(offset, layer.n_heads, layer.v_width, False)
            self._offsets[layer.layer] = k_offset, v_offset

    def _add_views(self, begin: int, n_heads: int, width: int, transposed: bool) -> int:
        """View keys (transposed) or values of a layer by page, place, head; return their end."""
        n_pages = self.n_pages
        if self.dtype in _FLOATS:
            kind = np.dtype(_FLOATS[self.dtype])
            end = begin + n_heads * width * PAGE * kind.itemsize
            rows = self._pages[:, begin:end].view(kind).reshape(n_pages, n_heads, -1)
            self._views.append(_by_place(rows, 1 if transposed else width))
            return end
        n_codes, n_scales = coded_widths(width)
        end = begin + n_heads * (n_codes + 4 * n_scales) * PAGE
        heads = self._pages[:, begin:end].reshape(n_pages, n_heads, -1)
        codes = heads[:, :, : n_codes * PAGE].view(np.int8)
        self._views.append(_by_place(codes, 4 if transposed else n_codes))
        self._views.append(_by_place(heads[:, :, n_codes * PAGE :].view(np.float32), 1))
        return end

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return self.data.nbytes

    @property
    def place_bytes(self) -> int:
        """Bytes of one place in all layers together."""
        return self.page_bytes // PAGE

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
        parts = [
            np.ascontiguousarray(view[page, row : row + n]).reshape(n, -1).view(np.uint8)
            for view in self._views
        ]
        return np.concatenate(parts, axis=1).tobytes() if parts else b""

    def write(self, page: int, row: int, data: memoryview) -> None:
        """Store ``data``, places that ``read`` retransposed, from row ``row`` of a ``page`` on."""
        places = np.frombuffer(data, np.uint8).reshape(-1, max(self.place_bytes, 1))
        begin = 0
        for view in self._views:
            rows = view[page, row : row + len(places)]
            end = begin + rows[0].size * rows.itemsize
            part = np.ascontiguousarray(places[:, begin:end])
            rows[...] = part.view(view.dtype).reshape(rows.shape)
            begin = end


def _by_place(rows: NDArray[Any], together: int) -> NDArray[Any]:
    """See [pages, heads, entries * PAGE] by page, place, head, group and entry of the group.

    In memory a group's entries of all places follow each other: group, place, entry.
    """
    n_pages, n_heads, _ = rows.shape
    return rows.reshape(n_pages, n_heads, -1, PAGE, together).transpose(0, 3, 1, 2, 4)
