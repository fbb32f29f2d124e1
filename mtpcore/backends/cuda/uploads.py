"""Matrices on their way from a model file to a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mtpcore.acts.guards import exclusive
from mtpcore.backends.base import WeightTensor
from mtpcore.backends.cuda.device import Device
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.layout import FLOATS, TILE, pack
from mtpcore.backends.cuda.ring import Ring
from mtpcore.backends.workers import run_all

__all__ = ["MatrixRoom", "Upload", "convert", "send_all"]

_WINDOW = 1 << 18
"""Values that are reordered at once, which takes a few bytes for each."""


class MatrixRoom:
    """Room on a device for a matrix, or for a stack of them, and what fills it.

    Parameters
    ----------
    device : Device
    kind : int
        The type of the rows in the file.
    shape : tuple of int
        Of the matrix, or of the stack.

    Raises
    ------
    BackendError
        The type has no kernel, or its blocks do not fill the rows; the device has no room.
    """

    def __init__(self, device: Device, kind: int, shape: tuple[int, ...]) -> None:
        self._n_rows, self._n_cols = shape[-2:]
        self._kind, self._tile = kind, 1 if kind in FLOATS else TILE
        self._n_tiles = -(-self._n_rows // self._tile)
        n_matrices = int(np.prod(shape[:-2]))
        n_values, n_bytes = GGML_QUANT_SIZES[Type(kind)]
        empty = np.zeros(self._tile * self._n_cols // n_values * n_bytes, np.uint8)
        self._planes: list[Any] = [  # one tile says how large the others are
            None
            if plane is None
            else device.empty((n_matrices * self._n_tiles, *plane.shape[1:]), plane.dtype)
            for plane in pack(empty, kind, (self._tile, self._n_cols)).planes
        ]
        self.matrix = DeviceMatrix(kind, n_matrices, self._n_rows, self._n_cols, *self._planes)

    def fill(self, ring: Ring, row: int, rows: NDArray[np.uint8]) -> None:
        """Send rows uint8[n, row bytes] of one matrix; all rows of the stack are counted.

        The first one begins a tile, and the last one ends one, or the matrix.
        """
        packed = pack(rows.reshape(-1), self._kind, (len(rows), self._n_cols))
        number, row = divmod(row, self._n_rows)
        tile = number * self._n_tiles + row // self._tile
        for plane, target in zip(packed.planes, self._planes, strict=True):
            if plane is not None and target is not None:
                ring.send(plane, target, tile * plane[0].nbytes)


def _windows(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return ranges of rows, of which none has rows of two matrices, or a part of a tile."""
    n_rows, n_cols = shape[-2:]
    step = max(_WINDOW // n_cols // TILE, 1) * TILE
    return [
        (first + begin, first + min(begin + step, n_rows))
        for first in range(0, int(np.prod(shape[:-1])), n_rows)
        for begin in range(0, n_rows, step)
    ]


class Upload:
    """A matrix that has room on the device, while its rows are in the file.

    ``bytes_left`` are those that were not sent yet; other threads may ask, and send.

    Parameters
    ----------
    device : Device
    tensors : sequence of WeightTensor
        Parts of the matrix, or of the stack, one after the other, of one type that has kernels;
        their file may be closed afterwards.
    shape : tuple of int
    """

    def __init__(
        self, device: Device, tensors: Sequence[WeightTensor], shape: tuple[int, ...]
    ) -> None:
        self._device, self._shape, self._tensors = device, shape, tensors
        self._room = MatrixRoom(device, tensors[0].type, shape)
        raw = [tensor.raw() for tensor in tensors]
        n_bytes = sum(part.nbytes for part in raw)
        of_row = n_bytes // int(np.prod(shape[:-1]))
        self._rows: list[NDArray[np.uint8]] | None = [part.reshape(-1, of_row) for part in raw]
        self.matrix, self.bytes_left = self._room.matrix, n_bytes
        self._mark: Any = None
        self.lock = threading.Lock()

    @exclusive
    def send(self, ring: Ring, check: Callable[[], None]) -> None:
        """Send all rows that are left, and let the system reclaim their pages of the file.

        Where that fails they are left as they were; ``check`` raises what ends it early.
        """
        parts, first = self._rows, 0
        if parts is None:
            return
        try:
            for tensor, rows in zip(self._tensors, parts, strict=True):
                for begin, end in _windows((len(rows) // self._shape[-2], *self._shape[-2:])):
                    check()
                    self._room.fill(ring, first + begin, rows[begin:end])
                    tensor.release(begin, end)
                    self.bytes_left -= rows[begin:end].nbytes
                first += len(rows)
            self._mark, self._rows = ring.mark(), None
        finally:
            self.bytes_left = 0 if self._rows is None else sum(rows.nbytes for rows in parts)

    @exclusive
    def wait(self) -> None:
        """Wait until what was sent has arrived."""
        if self._mark is not None:
            self._device.wait(self._mark)
            self._mark = None


def convert(
    device: Device, tensor: WeightTensor, shape: tuple[int, ...], kinds: Collection[int]
) -> DeviceMatrix:
    """Return a matrix on the device, converted to one of some types piece by piece."""
    ring, made = Ring(device), list[DeviceMatrix]()

    def start(kind: int) -> Callable[[int, NDArray[np.uint8]], None]:
        device.wait(ring.mark())  # the room of an earlier try is still being filled
        room = MatrixRoom(device, kind, shape)
        made[:] = [room.matrix]
        return lambda row, rows: room.fill(ring, row, rows)

    try:
        tensor.stream(kinds, _windows(shape), start)
    finally:
        device.wait(ring.mark())
    return made[0]


def send_all(device: Device, uploads: Sequence[Upload], threads: int) -> None:
    """Send matrices, several at a time: most of the work is to reorder them.

    Raises
    ------
    BackendError
        The device does not answer; what has not arrived is left to be sent.
    """
    ring, is_over = Ring(device), False

    def check() -> None:
        if is_over:
            raise CancelledError

    def stop() -> None:
        nonlocal is_over
        is_over = True

    try:
        run_all([partial(upload.send, ring, check) for upload in uploads], threads, stop)
    finally:
        device.wait(ring.mark())  # its buffers are in use until then
    for upload in uploads:
        upload.wait()
