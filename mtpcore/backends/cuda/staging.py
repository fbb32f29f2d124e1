"""What runs bring from the host: uploaded in one go, and copied on to where kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.passes import LINE

__all__ = ["Part", "Staging"]

_WORD = 4
_BLOCK = 16 << 10
"""Bytes of a new block; it grows with what it has to hold."""


class Part(NamedTuple):
    """Values of four or eight bytes each, for the start of an array on the device."""

    values: NDArray[Any]
    target: DeviceArray


class Staging:
    """A block on the device with the parts of one run, or of several that follow each other.

    Attributes
    ----------
    array : DeviceArray
        It is another one after it had to grow.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.array = device.empty((_BLOCK,), np.uint8)

    def send(self, runs: Sequence[Sequence[Part]]) -> list[int]:
        """Upload the parts of some runs; return where the table of each begins, for ``spread``."""
        tables, pieces, at = [], [], 0
        for parts in runs:
            tables.append(at)
            lines = np.zeros(len(parts), LINE)
            begin = lines.nbytes
            for line, part in zip(lines, parts, strict=True):
                n_bytes = part.values.nbytes
                line["to"] = self._device.address(part.target)
                line["from"], line["n_words"] = begin // _WORD, n_bytes // _WORD
                begin += n_bytes
            pieces += [lines.tobytes(), *(part.values.tobytes() for part in parts)]
            rest = -begin % LINE.itemsize
            pieces.append(bytes(rest))
            at += (begin + rest) // _WORD
        block = np.frombuffer(b"".join(pieces), np.uint8)
        if len(block) > self.array.shape[0]:
            self.array = self._device.empty((2 * len(block),), np.uint8)
        self._device.upload(block, self.array)
        return tables
