"""Matrices on their way from a model file to a device."""

from __future__ import annotations

import threading
from collections import deque
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
from mtpcore.backends.cuda.launch.pack import PACK
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.layout import FLOATS, TILE, pack
from mtpcore.backends.cuda.packer import WINDOW, Packer
from mtpcore.backends.cuda.ring import Ring
from mtpcore.backends.workers import run_all

__all__ = ["MatrixRoom", "Upload", "convert", "send_all"]

_CONVERTED = 1 << 18
"""Values that are converted at once, which takes a few bytes for each."""

_MOST_THREADS = 8
"""Of those that send: each one takes pinned memory, and room on the device."""


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
        self._kind, tile = kind, 1 if kind in FLOATS else TILE
        self._n_tiles = -(-self._n_rows // tile)
        n_matrices = int(np.prod(shape[:-2]))
        n_values, n_bytes = GGML_QUANT_SIZES[Type(kind)]
        empty = np.zeros(tile * self._n_cols // n_values * n_bytes, np.uint8)
        planes: list[Any] = [  # one tile says how large the others are
            None
            if plane is None
            else device.empty((n_matrices * self._n_tiles, *plane.shape[1:]), plane.dtype)
            for plane in pack(empty, kind, (tile, self._n_cols)).planes
        ]
        self.matrix = DeviceMatrix(kind, n_matrices, self._n_rows, self._n_cols, *planes)
        if kind in PACK:
            device.load(PACK[kind])

    def fill(self, packer: Packer, row: int, rows: NDArray[np.uint8]) -> None:
        """Send rows uint8[n, row bytes] of one matrix, or all of several; the stack's are counted.

        The first one begins a tile, and the last one ends one, or a matrix.
        """
        if self._kind in FLOATS:
            filled = pack(rows.reshape(-1), self._kind, (len(rows), self._n_cols)).low
            packer.ring.send(filled, self.matrix.low, row * filled.shape[1])
        else:
            number, row = divmod(row, self._n_rows)
            packer.send(rows, self.matrix, number * self._n_tiles + row // TILE)


def _windows(shape: tuple[int, ...], most: int) -> list[tuple[int, int]]:
    """Return ranges of rows, of which none has parts of two matrices, or a part of a tile.

    They have at most ``most`` rows where that is a tile.
    """
    n_rows, n_of_all = shape[-2], int(np.prod(shape[:-1]))
    if n_rows <= most:
        step = most // n_rows * n_rows
        return [(begin, min(begin + step, n_of_all)) for begin in range(0, n_of_all, step)]
    step = max(most // TILE, 1) * TILE
    return [
        (first + begin, first + min(begin + step, n_rows))
        for first in range(0, n_of_all, n_rows)
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
    def send(self, packer: Packer, check: Callable[[], None]) -> None:
        """Send all rows that are left, and let the system reclaim their pages of the file.

        Where that fails they are left as they were; ``check`` raises what ends it early.
        """
        parts, first = self._rows, 0
        if parts is None:
            return
        try:
            for tensor, rows in zip(self._tensors, parts, strict=True):
                shape = (len(rows) // self._shape[-2], *self._shape[-2:])
                for begin, end in _windows(shape, WINDOW // rows.shape[1]):
                    check()
                    self._room.fill(packer, first + begin, rows[begin:end])
                    tensor.release(begin, end)
                    self.bytes_left -= rows[begin:end].nbytes
                first += len(rows)
            self._mark, self._rows = self._device.mark(), None
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
    packer, made = Packer(device, Ring(device)), list[DeviceMatrix]()

    def start(kind: int) -> Callable[[int, NDArray[np.uint8]], None]:
        device.wait(device.mark())  # the room of an earlier try is still being filled
        room = MatrixRoom(device, kind, shape)
        made[:] = [room.matrix]
        return lambda row, rows: room.fill(packer, row, rows)

    try:
        tensor.stream(kinds, _windows(shape, _CONVERTED // shape[-1]), start)
    finally:
        device.wait(device.mark())
    return made[0]


def send_all(device: Device, uploads: Sequence[Upload], threads: int) -> None:
    """Send matrices, several at a time.

    Raises
    ------
    BackendError
        The device does not answer; what has not arrived is left to be sent.
    """
    n_threads, is_over = min(threads, len(uploads), _MOST_THREADS), False
    free = deque(Packer(device, Ring(device)) for _ in range(n_threads))

    def check() -> None:
        if is_over:
            raise CancelledError

    def stop() -> None:
        nonlocal is_over
        is_over = True

    def send(upload: Upload) -> None:
        packer = free.pop()
        try:
            upload.send(packer, check)
        finally:
            free.append(packer)

    try:
        run_all([partial(send, upload) for upload in uploads], n_threads, stop)
    finally:
        device.wait(device.mark())  # pinned buffers are in use until then
    for upload in uploads:
        upload.wait()
