"""Rows of a batch while they are put together, text by text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.runtime.arrival import join
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["BatchRows"]

F32 = NDArray[np.float32]


class BatchRows:
    """Rows that a graph is to read.

    Parameters
    ----------
    runner : GraphRunner
        Of the graph.
    slots : iterable of str
        Those that are fed here; others are fed as the batch is admitted.

    Attributes
    ----------
    parent : list of int
        In a tree the row that each row follows.
    """

    def __init__(self, runner: GraphRunner, slots: Iterable[str] = ()) -> None:
        self._runner = runner
        self._tokens: list[int] = []
        self._seqs: list[int] = []
        self._places: list[int] = []
        self._outputs: list[bool] = []
        self._slots: dict[str, list[F32]] = {slot: [] for slot in slots}
        self.parent: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(
        self, seq: int, tokens: Sequence[int], places: Sequence[int], outputs: Iterable[bool]
    ) -> None:
        """Add rows of a sequence, and which of them are wanted."""
        self._tokens += tokens
        self._seqs += [seq] * len(places)
        self._places += places
        self._outputs += outputs

    def fetch(self, seq: int, places: Sequence[int]) -> None:
        """Feed rows what the target has for these places, ascending, some more than once."""
        if not places:
            return
        each = np.arange(places[0], places[-1] + 1, dtype=np.int32)
        seqs = np.full(len(each), seq, np.int32)
        for slot, parts in self._slots.items():
            rows: F32 = self._runner.sources[slot](seqs, each)
            if len(each) == len(places):
                parts.append(rows)
            else:
                parts += [rows[place - places[0] :][:1] for place in places]

    def feed(self, slot: str, rows: F32) -> None:
        """Feed the next rows these, float32[n, width], if there are any."""
        if len(rows):
            self._slots[slot].append(rows)

    def batch(self) -> Batch:
        """Return all rows, those of a tree where any has a parent."""
        batch = Batch(
            self._tokens,
            seq=self._seqs,
            pos=self._places,
            parent=self.parent or None,
            outputs=self._outputs,
        )
        if self._slots:
            widths, make = self._runner.program.slots(), self._runner.backend.row_buffer
            slots = self._slots.items()
            batch.slots = {slot: join(rows, widths[slot], make) for slot, rows in slots}
        return batch
