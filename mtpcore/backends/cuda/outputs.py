"""Rows that stay on the device until somebody asks for them, and room for those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import start

__all__ = ["DeviceRowBuffer", "DeviceRows", "rows_on"]

F32 = NDArray[np.float32]


class DeviceRows:
    """Some rows of an array on a device that nobody writes to any more.

    A slice of rows stays on the device. Anything else, ``np.asarray`` first of all, copies them to
    the host, once.
    """

    def __init__(self, device: Device, array: DeviceArray, begin: int, n: int) -> None:
        self.device, self.array, self.begin = device, array, begin
        self.shape = (n, *array.shape[1:])
        self._host: NDArray[Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        kind: np.dtype[Any] = np.dtype(self.array.dtype)
        return kind

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape[1:])) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            begin, end, step = which.indices(len(self))
            if step == 1:
                n = max(end - begin, 0)
                return DeviceRows(self.device, self.array, self.begin + begin, n)
        return np.asarray(self)[which]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if self._host is None:
            n_bytes = len(self) * self.row_bytes
            raw = self.device.read(self.array, self.begin * self.row_bytes, n_bytes)
            self._host = np.frombuffer(raw, self.dtype).reshape(self.shape)
        values = self._host if dtype is None else self._host.astype(dtype, copy=False)
        return values.copy() if copy else values


class DeviceRowBuffer:
    """Room for ``n_rows`` rows float32[width]; implements ``mtpcore.backends.base.RowBuffer``."""

    def __init__(self, device: Device, n_rows: int, width: int) -> None:
        self._device, self._width = device, width
        self._array = device.empty((n_rows, width), np.float32)

    def __len__(self) -> int:
        return self._array.shape[0]

    def write(self, at: int, parts: Sequence[F32 | DeviceRows]) -> None:
        """Store rows from row ``at`` on; of several parts each fills its columns."""
        left = 0
        for part in parts:
            if len(part):
                rows = rows_on(self._device, part)
                launch = copy_rows(
                    rows.array, self._array, len(part), from_row=rows.begin, to_row=at, to=left
                )
                start(self._device, [launch])
            left += part.shape[1]

    def read(self, begin: int, end: int) -> Any:
        """Return a copy of rows [begin, end), which stays on the device."""
        n_bytes = 4 * self._width
        copied = self._device.empty((end - begin, self._width), np.float32)
        size = (end - begin) * n_bytes
        self._device.copy(self._array, begin * n_bytes, copied, 0, size)
        return DeviceRows(self._device, copied, 0, end - begin)

    def not_finite(self, begin: int, end: int) -> list[int]:
        """Return which of rows [begin, end) hold NaN or infinity, ascending."""
        n = end - begin
        if not n:
            return []
        marks = self._device.empty((n,), np.int32)
        start(self._device, [mark_not_finite(self._array, marks, begin, n)])
        found: list[int] = (begin + np.flatnonzero(self._device.download(marks, n))).tolist()
        return found


def rows_on(device: Device, rows: F32 | DeviceRows) -> DeviceRows:
    """Return rows on a device: as they are if they are there, else uploaded."""
    if isinstance(rows, DeviceRows) and rows.device is device:
        return rows
    host = np.ascontiguousarray(rows, np.float32)
    return DeviceRows(device, device.upload(host), 0, len(host))
