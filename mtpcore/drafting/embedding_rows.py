"""Rows of a sequence that a drafter cannot make of its tokens: they wait until it has read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.runtime.batch import Batch

__all__ = ["NO_ROWS", "EmbeddingRows", "RowChunk"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class RowChunk(NamedTuple):
    """Rows from place ``begin`` on, as the target read them.

    ``tokens`` int32[n] are -1 where ``embeddings`` float32[n, width] hold the row; ``positions``
    int32[n, axes] are there where they are not the places.
    """

    begin: int
    tokens: I32
    embeddings: F32 | None
    positions: I32 | None

    @property
    def end(self) -> int:
        """The place after the last row."""
        return self.begin + len(self.tokens)

    def part(self, begin: int, end: int) -> RowChunk:
        """Return the rows at places ``begin`` to ``end``, as far as there are any."""
        rows = slice(max(begin - self.begin, 0), max(end - self.begin, 0))
        return RowChunk(
            self.begin + rows.start,
            self.tokens[rows],
            None if self.embeddings is None else self.embeddings[rows],
            None if self.positions is None else self.positions[rows],
        )

    def batch(self, seq: int) -> Batch:
        """Return the batch that a drafter reads."""
        return Batch(
            self.tokens,
            embeddings=self.embeddings,
            seq=seq,
            pos=self.begin if self.positions is None else self.positions,
            place=self.begin,
            outputs="none",
        )


class EmbeddingRows:
    """Embedding rows of a sequence, and tokens with positions of their own; it never changes.

    Parameters
    ----------
    pieces : RowChunk
        In the order of their places.
    """

    def __init__(self, *pieces: RowChunk) -> None:
        self._pieces = pieces

    @property
    def end(self) -> int:
        """The place after the last row; 0 if there are no rows."""
        return self._pieces[-1].end if self._pieces else 0

    def put(self, piece: RowChunk) -> EmbeddingRows:
        """Return these and those of another piece, which comes after them."""
        return EmbeddingRows(*self.until(piece.begin)._pieces, piece)

    def until(self, place: int) -> EmbeddingRows:
        """Return those before a place."""
        if self.end <= place:
            return self
        return EmbeddingRows(*(p.part(p.begin, place) for p in self._pieces if p.begin < place))

    def after(self, place: int) -> EmbeddingRows:
        """Return those from a place on."""
        if not self._pieces or self._pieces[0].begin >= place:
            return self
        return EmbeddingRows(*(p.part(place, p.end) for p in self._pieces if p.end > place))

    def reach(self, history: I32, places: range) -> int:
        """Return the first of these places that has neither a token nor a row; or their end."""
        missing = np.flatnonzero(history[places.start : places.stop] < 0) + places.start
        for place in missing.tolist():
            if not any(p.begin <= place < p.end for p in self._pieces):
                return place
        return places.stop

    def batches(self, seq: int, history: I32, places: range) -> Iterator[Batch]:
        """Yield batches of all rows at these places, tokens from ``history`` among them."""
        at = places.start
        for piece in self._pieces:
            begin, end = max(piece.begin, at), min(piece.end, places.stop)
            if begin >= end:
                continue
            if at < begin:
                yield Batch(history[at:begin], seq=seq, pos=at, outputs="none")
            yield piece.part(begin, end).batch(seq)
            at = end
        if at < places.stop:
            yield Batch(history[at : places.stop], seq=seq, pos=at, outputs="none")


NO_ROWS = EmbeddingRows()
