"""A ring of pinned buffers, through which any number of bytes goes to a device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.acts.guards import exclusive
from mtpcore.backends.cuda.device import Device, DeviceArray

__all__ = ["Ring"]


class Ring:
    """Buffers of pinned memory that are filled in turn, and sent while the next ones are filled.

    A buffer is filled again when what was in it has arrived: however much is sent, no more than the
    buffers is held. Several threads may send.

    Parameters
    ----------
    device : Device
    n_bytes : int
        Of a buffer.
    n_buffers : int
    """

    def __init__(self, device: Device, n_bytes: int = 1 << 23, n_buffers: int = 2) -> None:
        self._device, self._n_bytes = device, n_bytes
        self._buffers: list[NDArray[np.uint8]] = []  # made when the first bytes need them
        self._marks: list[Any] = [None] * n_buffers
        self._filled, self._n_used = 0, 0
        self.lock = threading.Lock()

    @exclusive
    def send(self, array: NDArray[Any], target: DeviceArray, at: int) -> None:
        """Send an array's bytes to byte ``at`` of another; the array may change afterwards.

        Raises
        ------
        BackendError
            The device does not answer, or the host has no memory that can be pinned.
        """
        raw, begin = np.ascontiguousarray(array).reshape(-1).view(np.uint8), 0
        while begin < len(raw):
            free = self._find_room()
            n = min(len(free), len(raw) - begin)
            free[:n] = raw[begin : begin + n]
            self._n_used += n
            self._device.send(free[:n], target, at + begin)
            begin += n

    def _find_room(self) -> NDArray[np.uint8]:
        """Return what is free of the buffer that is being filled; there is some."""
        if self._n_used == self._n_bytes:
            self._marks[self._filled] = self._device.mark()
            self._filled, self._n_used = (self._filled + 1) % len(self._marks), 0
            if self._filled < len(self._buffers):
                self._device.wait(self._marks[self._filled])
        if self._filled == len(self._buffers):
            self._buffers.append(self._device.pin(self._n_bytes))
        return self._buffers[self._filled][self._n_used :]
