"""Which places of its sequence each row of a run attends to, in a group of memory.

The arrays stay where they are, and get other contents with every run.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.staging import Part
from mtpcore.backends.cuda.store import StoredLayer
from mtpcore.errors import BackendError
from mtpcore.memory.base import PAGE
from mtpcore.memory.pages import PageTables

__all__ = ["Attended", "Rows", "Tables", "Visible", "visible_of"]

I32 = NDArray[np.int32]

RANGE = 256
"""Places whose sums attention makes in one go; the kernels' (``visible.cuh``)."""
MOST_PLACES = RANGE * ((1 << 16) - 1)
"""Of a context: each range is a block along the second axis of a grid."""


class Rows:
    """The batch on the device: int32[n_batch] each, as ``CheckedBatch`` describes them."""

    def __init__(self, device: Device, n_batch: int) -> None:
        self.seq, self.place, self.parent, self.outputs = (
            device.empty((n_batch,), np.int32) for _ in range(4)
        )

    def parts(self, batch: CheckedBatch) -> list[Part]:
        """Return the rows of a batch, to be held."""
        parts = [
            Part(batch.seq, self.seq),
            Part(batch.place, self.place),
            Part(batch.outputs, self.outputs),
        ]
        return parts if batch.parent is None else [*parts, Part(batch.parent, self.parent)]


class Tables:
    """The page tables of a group of memory, int32[n_seq, entries]."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.array: DeviceArray = device.empty((0, 0), np.int32)
        self.n_made = 0  # arrays, of which the newest is there
        self._held = np.empty((0, 0), np.int32)

    def take(self, pages: PageTables) -> None:
        """Hold what the tables say now; mostly they say what they said before."""
        if pages.tables.shape != self.array.shape:
            self.n_made += 1  # first: cut off in between, no graph is taken for another's
            self.array = self._device.empty(pages.tables.shape, np.int32)
        if not np.array_equal(pages.tables, self._held):
            self._held = np.empty((0, 0), np.int32)
            self._device.upload(pages.tables, self.array)
            self._held = pages.tables.copy()


class Visible:
    """The visible places of each row, int32[n_batch, 4]; ``visible.cuh`` says what the numbers are.

    ``n_ranges`` are as many ranges as the row that sees most has, or more; ``most_ranges`` is how
    many there can be.

    Raises
    ------
    BackendError
        A context has more ranges than a grid takes blocks.
    """

    def __init__(self, device: Device, *, n_batch: int, n_ctx: int, mask: str, window: int) -> None:
        if n_ctx > MOST_PLACES:
            raise BackendError(
                "context too long for the CUDA kernel",
                wanted=f"at most {MOST_PLACES} places",
                got=n_ctx,
            )
        self.mask, self.window = mask, window
        self.n_ranges, self.most_ranges = 1, -(-n_ctx // RANGE)
        self.array = device.empty((n_batch, 4), np.int32)

    def part(self, batch: CheckedBatch, pages: PageTables) -> Part:
        """Return what the rows of a batch see, to be held.

        ``n_ranges`` becomes a power of two, or all there can be, so that a text that grows asks for
        other launches now and then, and not all the time.
        """
        visible = visible_of(batch, pages, self.mask, self.window)
        begin, end = visible[:, 0], visible[:, 1]
        n = int(((end - 1) // RANGE - begin // RANGE).max(initial=0)) + 1
        self.most_ranges = max(self.most_ranges, -(-pages.tables.shape[1] * PAGE // RANGE))
        self.n_ranges = min(1 << max(n - 1, 0).bit_length(), max(self.most_ranges, n))
        return Part(visible, self.array)


class Attended(msgspec.Struct, frozen=True):
    """What a node of attention reaches: its layer's rows, and what the run's rows see of them.

    ``visible`` is None where the node only stores.
    """

    layer: StoredLayer
    rows: Rows
    tables: Tables
    visible: Visible | None


def visible_of(batch: CheckedBatch, pages: PageTables, mask: str, window: int) -> I32:
    """Return int32[rows, 4]: begin, end, base and own of each row; see ``visible.cuh``.

    ``mask`` and ``window`` are those of ``attention``.
    """
    seq, place = batch.seq, batch.place
    visible = np.empty((len(seq), 4), np.int32)
    begin, end, base, own = visible.T
    begin[:] = pages.first[seq]
    if mask == "block":
        end[:] = pages.length[seq]
        base[:], own[:] = end, place
        newest = place + 1
    elif batch.parent is None:
        newest = place + 1
        end[:] = newest
        if mask == "spans" and batch.until is not None:
            np.maximum(end, batch.until, out=end)
        base[:], own[:] = end, end - 1
    else:
        for sequence in set(seq.tolist()):
            of_it = seq == sequence
            base[of_it] = place[of_it].min()
        for t, parent in enumerate(batch.parent.tolist()):
            end[t] = (base[t] if parent < 0 else end[parent]) + 1
        newest = end
        own[:] = end - 1
    if window:
        np.maximum(begin, newest - window, out=begin)
    return visible
