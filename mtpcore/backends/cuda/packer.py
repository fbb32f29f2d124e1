"""The way of a file's rows into quantised matrices on a device, where a kernel packs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.pack import pack
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.launch.step import start
from mtpcore.backends.cuda.ring import Ring

__all__ = ["WINDOW", "Packer"]

WINDOW = 1 << 23
"""Bytes of rows that are sent at once, unless a tile has more."""


class Packer:
    """A ring of pinned buffers, and an array on the device that it fills, where rows are packed.

    One thread at a time may use it.

    Parameters
    ----------
    device : Device
    ring : Ring
        Of that device.
    """

    def __init__(self, device: Device, ring: Ring) -> None:
        self.ring, self._device = ring, device
        self._sent: DeviceArray | None = None  # made when the first rows need it

    def send(self, rows: NDArray[np.uint8], matrix: DeviceMatrix, tile: int) -> None:
        """Send rows uint8[n, row bytes] to tiles of a matrix; they may change afterwards.

        They are rows of one matrix, or all rows of several in a stack, and ``tile``, counted over
        all, is the one that the first row begins.

        Raises
        ------
        BackendError
            The device does not answer, or has no room; or the host has no memory to be pinned.
        """
        if self._sent is None or self._sent.shape[0] < rows.nbytes:
            self._sent = self._device.empty((max(rows.nbytes, WINDOW),), np.uint8)
        self.ring.send(rows, self._sent, 0)
        self._device.follow_sent()
        start(self._device, [pack(self._sent, matrix, tile, len(rows))])
