"""Pages of the KV cache on the device."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE
from mtpcore.memory.types import KV_DTYPES, bytes_of_place, coded_widths

__all__ = ["CudaStore", "StoredLayer"]

_FLOAT_BYTES = {"f16": 2, "f32": 4}


class StoredLayer(msgspec.Struct, frozen=True):
    """Rows of a layer: ``rows`` uint8[n_pages * PAGE, bytes of a place], as ``stored.cuh`` says.

    Of a place the keys of all heads come first; values begin at byte ``v_begin``, and lie in rows
    of ``kept_width`` entries. Of a latent layer they are the first entries of the keys.
    """

    rows: DeviceArray
    dtype: str
    n_heads: int
    k_width: int
    v_begin: int
    kept_width: int


class CudaStore:
    """Rows of paged memory on a device; implements ``mtpcore.backends.base.Store``.

    Of each layer the places of all pages follow each other. What is read, and written, comes home
    in the same order as that of the ``cpu`` backend.

    Raises
    ------
    BackendError
        The type of memory is unknown, or the device has no room for it.
    """

    def __init__(
        self, device: Device, layers: Sequence[MemoryLayer], n_pages: int, dtype: str
    ) -> None:
        if dtype not in KV_DTYPES:
            raise BackendError("unknown type of memory", wanted=", ".join(KV_DTYPES), got=dtype)
        self.n_pages, self.dtype, self._device = n_pages, dtype, device
        self._layers: dict[int, StoredLayer] = {}
        for layer in layers:
            n_bytes = bytes_of_place(layer, dtype)
            self._layers[layer.layer] = StoredLayer(
                device.empty((n_pages * PAGE, n_bytes), np.uint8),
                dtype,
                layer.n_heads,
                layer.k_width,
                0 if layer.latent else _bytes_of_rows(layer.n_heads, layer.k_width, dtype),
                layer.k_width if layer.latent else layer.v_width,
            )

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return self.n_pages * PAGE * self.place_bytes

    @property
    def place_bytes(self) -> int:
        """Bytes of one place in all layers together."""
        return sum(layer.rows.shape[1] for layer in self._layers.values())

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""
        return self._layers.keys()

    def layer(self, number: int) -> StoredLayer:
        """Return a layer's rows."""
        return self._layers[number]

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page."""
        self._copy(src * PAGE, dst * PAGE, PAGE)

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy one place's rows of every layer."""
        self._copy(src_page * PAGE + src_row, dst_page * PAGE + dst_row, 1)

    def _copy(self, src: int, dst: int, n: int) -> None:
        for layer in self._layers.values():
            size = layer.rows.shape[1]
            self._device.copy(layer.rows, src * size, layer.rows, dst * size, n * size)

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places, in the order place, layer, K then V, head."""
        at, parts = page * PAGE + row, []
        for layer in self._layers.values():
            size = layer.rows.shape[1]
            part = self._device.read(layer.rows, at * size, n * size)
            parts.append(np.frombuffer(part, np.uint8).reshape(n, size))
        return np.concatenate(parts, axis=1).tobytes() if parts else b""

    def write(self, page: int, row: int, data: memoryview) -> None:
        """Store ``data``, places that ``read`` returned, from row ``row`` of a ``page`` on."""
        at, begin = page * PAGE + row, 0
        places = np.frombuffer(data, np.uint8).reshape(-1, max(self.place_bytes, 1))
        for layer in self._layers.values():
            size = layer.rows.shape[1]
            part = np.ascontiguousarray(places[:, begin : begin + size])
            self._device.write(layer.rows, at * size, part.data)
            begin += size


def _bytes_of_rows(n_heads: int, width: int, dtype: str) -> int:
    """Return the bytes of a place's keys, or of its values."""
    if dtype in _FLOAT_BYTES:
        return n_heads * width * _FLOAT_BYTES[dtype]
    n_codes, n_scales = coded_widths(width)
    return n_heads * (n_codes + 4 * n_scales)
