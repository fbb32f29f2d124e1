"""Rows that stay on the device until somebody asks for them, and room for those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore._ext._dlpack import make_capsule
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import n_of_row, start
from mtpcore.boundary.dlpack import HOST, ForeignRows
from mtpcore.errors import BackendError

__all__ = ["DeviceRowBuffer", "DeviceRows", "rows_on"]

F32 = NDArray[np.float32]
_LEGACY, _NO_WAIT = 1, -1
"""The legacy default stream among DLPack's numbers of streams, and no stream that waits."""


class DeviceRows:
    """Some rows of an array on a device that nobody writes to any more.

    A slice of rows stays on the device, and so do rows that other libraries take by DLPack.
    Anything else, ``np.asarray`` first of all, copies them to the host, once.
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

    def find_not_finite(self, others: Sequence[DeviceRows] = ()) -> list[int]:
        """Return which rows hold NaN or infinity, here or in others beside them, ascending."""
        parts, n = (self, *others), len(self)
        if not n:
            return []
        marks = self.device.empty((len(parts), n), np.int32)
        launches = [
            mark_not_finite(part.array, marks, part.begin, n, i * n) for i, part in enumerate(parts)
        ]
        start(self.device, launches)
        is_bad = self.device.download(marks, len(parts)).any(axis=0)
        found: list[int] = np.flatnonzero(is_bad).tolist()
        return found

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if self._host is None:
            n_bytes = len(self) * self.row_bytes
            raw = self.device.read(self.array, self.begin * self.row_bytes, n_bytes)
            self._host = np.frombuffer(raw, self.dtype).reshape(self.shape)
        values = self._host if dtype is None else self._host.astype(dtype, copy=False)
        return values.copy() if copy else values

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind and the number of the device."""
        return self.device.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return the rows as a DLPack capsule, which keeps their memory.

        They are read-only. Before DLPack 1.0 no capsule can say so, and one has a copy.

        Parameters
        ----------
        stream : int, optional
            The consumer's, which waits for the rows: None or 1 is the legacy default stream, 2 the
            default stream of the thread. -1: none waits.
        max_version : tuple of int, optional
            The newest version that the consumer knows.
        dl_device : tuple of int, optional
            Where the rows are wanted: on their device, or as a copy on the host, (1, 0).
        copy : bool, optional
            Whether the consumer wants a copy of its own, or none; default: as it must be.

        Raises
        ------
        BufferError
            What is asked for cannot be had.
        """
        versioned = max_version is not None and max_version[0] >= 1
        here = self.device.dlpack_device
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        copied = bool(copy) or not versioned or wanted != here
        if copied and copy is False:
            raise BufferError(
                "read-only rows of a device are copied to the host or before DLPack 1"
            )
        if wanted not in (here, HOST):
            raise BufferError(f"rows of device {here} go there or to the host, not to {wanted}")
        if wanted != here:
            host = self.__array__(copy=True)
            return self._capsule(host, host.ctypes.data, wanted, versioned, copied)
        rows = self._copy() if copied else self
        address = self.device.address(rows.array) + rows.begin * rows.row_bytes
        if stream != _NO_WAIT:
            self._check_stream(stream)
            self.device.precede(stream)
        return self._capsule(Lent(rows, stream), address, wanted, versioned, copied)

    def _copy(self) -> DeviceRows:
        copied = self.device.empty(self.shape, self.dtype)
        n_bytes = len(self) * self.row_bytes
        self.device.copy(self.array, self.begin * self.row_bytes, copied, 0, n_bytes)
        return DeviceRows(self.device, copied, 0, len(self))

    def _check_stream(self, stream: int | None) -> None:
        """Refuse a stream that does not say which it is, or where there are none."""
        if stream == 0 or (stream is not None and self.device.stream is None):
            raise BufferError(f"no stream of device {self.device.dlpack_device}: {stream}")

    def _capsule(
        self, owner: object, address: int, device: tuple[int, int], versioned: bool, copied: bool
    ) -> object:
        return make_capsule(
            owner,
            address,
            self.shape,
            self.dtype.kind,
            8 * self.dtype.itemsize,
            device,
            versioned=versioned,
            read_only=not copied,
            copied=copied,
        )


class Lent:
    """Keeps rows for another library, which read them in a stream of its own.

    When it lets go of them, the memory may be given to others only after what it began with them.
    Of streams with other numbers than the legacy default one nobody knows whether they are still
    there.
    """

    def __init__(self, rows: DeviceRows, stream: int | None) -> None:
        self._rows, self._stream = rows, stream

    def __del__(self) -> None:
        device = self._rows.device
        if device.stream is not None and self._stream in (None, _LEGACY):
            with suppress(BackendError):  # a device that was lost has no order any more
                device.follow()


class DeviceRowBuffer:
    """Room for ``n_rows`` rows float32[width]; implements ``mtpcore.backends.base.RowBuffer``."""

    def __init__(self, device: Device, n_rows: int, width: int) -> None:
        self._device, self._width = device, width
        self._array = device.empty((n_rows, width), np.float32)

    def __len__(self) -> int:
        return self._array.shape[0]

    def write(self, at: int, parts: Sequence[F32 | DeviceRows]) -> None:
        """Store rows from row ``at`` on; of several parts each fills its columns."""
        left, n_bytes = 0, 4 * self._width
        for part in filter(len, parts):
            rows = rows_on(self._device, part)
            if part.shape[1] == self._width:
                begin, size = rows.begin * n_bytes, len(part) * n_bytes
                self._device.copy(rows.array, begin, self._array, at * n_bytes, size)
            else:
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


def rows_on(device: Device, rows: F32 | DeviceRows | ForeignRows) -> DeviceRows:
    """Return rows on a device: as they are if they are there, else uploaded.

    Those of another library on the device are copied there.
    """
    if isinstance(rows, DeviceRows) and rows.device is device:
        return rows
    if isinstance(rows, ForeignRows) and rows.device == device.dlpack_device:
        copied, taken = device.empty(rows.shape, rows.dtype), rows.take(device.stream)
        device.take(taken.address, len(rows) * n_of_row(copied) * 4, copied)
        return DeviceRows(device, copied, 0, len(rows))
    host = np.ascontiguousarray(rows, np.float32)
    return DeviceRows(device, device.upload(host), 0, len(host))
