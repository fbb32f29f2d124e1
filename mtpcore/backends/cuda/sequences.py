"""Which rows of a batch belong to one sequence, on the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.cuda.device import Device
from mtpcore.backends.cuda.staging import Part

__all__ = ["SequenceRows"]


class SequenceRows:
    """The rows of a batch by sequence; the arrays stay where they are.

    ``order`` int32[n_batch] are the rows of each sequence one after the other; ``spans``
    int32[n_batch, 3] say of each row where it stands there, and where its sequence begins and ends.
    """

    def __init__(self, device: Device, n_batch: int) -> None:
        self.order = device.empty((n_batch,), np.int32)
        self.spans = device.empty((n_batch, 3), np.int32)

    def parts(self, seq: NDArray[np.int32]) -> list[Part]:
        """Return the rows of a batch, of sequences int32[n], to be held."""
        order = np.argsort(seq, kind="stable").astype(np.int32)
        spans = np.empty((len(seq), 3), np.int32)
        spans[order, 0] = np.arange(len(seq))
        spans[:, 1] = np.searchsorted(seq[order], seq, "left")
        spans[:, 2] = np.searchsorted(seq[order], seq, "right")
        return [Part(order, self.order), Part(spans, self.spans)]
