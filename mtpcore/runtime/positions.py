"""Positions of a graph's sequences where they are not the places in which rows are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import StateError

__all__ = ["Positions"]

I32 = NDArray[np.int32]


class Positions:
    """Where each sequence goes on after rows with positions of their own, such as an image's.

    A sequence goes on behind the largest number on any axis of any of its rows. For rows of text
    alone that is its length. An image of ny * nx rows at (p, p + y, p + x, 0) is followed by
    p + max(ny, nx), audio of n rows by p + n.
    """

    def __init__(self) -> None:
        # Of sequences with such rows: the largest number of each row up to the last of these, and
        # of each row of an undecided draft tree. Arrays and dicts are replaced, never changed.
        self._largest: dict[int, I32] = {}
        self._trees: dict[int, I32] = {}

    def following(self, seq: int, length: int) -> int:
        """Return the position of the row that follows ``length`` rows."""
        largest = self._largest.get(seq)
        return length if largest is None else length + _shift(largest)

    def of_places(self, seq: I32, place: I32) -> I32:
        """Return int32[n]: the positions of rows of text that go on at these places."""
        positions = place
        for moved, largest in self._largest.items():
            positions = np.where(seq == moved, positions + np.int32(_shift(largest)), positions)
        return positions

    def note(self, seq: int, begin: int, positions: I32, *, branching: bool) -> None:
        """Note rows with positions of their own, int32[n, axes], stored from place ``begin`` on.

        Of branching ones a path is kept.
        """
        before = self._largest.get(seq, np.zeros(0, np.int32))
        text = np.arange(len(before), begin, dtype=np.int32) + np.int32(_shift(before))
        largest = positions.max(axis=1)
        if branching:
            self._trees = {**self._trees, seq: largest}
        parts = [before, text] if branching else [before, text, largest]
        self._largest = {**self._largest, seq: np.concatenate(parts)}

    def keep(self, seq: int, begin: int, steps: list[int]) -> None:
        """Keep of the tree at ``begin`` these rows alone; done twice it is done once."""
        tree = self._trees.get(seq)
        if tree is not None:
            kept = np.concatenate([self._largest[seq][:begin], tree[steps]])
            self._largest = {**self._largest, seq: kept}
            self._trees = _without(self._trees, seq)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        if seq in self._trees:
            self._trees = _without(self._trees, seq)
        largest = self._largest.get(seq)
        if largest is None:
            return
        if length:
            self._largest = {**self._largest, seq: largest[:length]}
        else:
            self._largest = _without(self._largest, seq)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` go on where ``seq`` does."""
        self.rewind(new, 0)
        if seq in self._largest:
            self._largest = {**self._largest, new: self._largest[seq]}

    def dump(self, seq: int) -> bytes:
        """Return what ``load`` needs: the largest number of each row as int32[n]."""
        return self._largest.get(seq, np.zeros(0, np.int32)).astype("<i4").tobytes()

    def load(self, seq: int, data: bytes, length: int, n_ctx: int) -> None:
        """Let an empty sequence go on behind ``length`` rows as ``dump`` says.

        Raises
        ------
        StateError
            Not one number for each row, or numbers that no row has in ``n_ctx`` places.
        """
        if len(data) % 4 or len(data) > 4 * length:
            raise StateError("positions of other rows", wanted=f"{length} or fewer", got=len(data))
        largest = np.frombuffer(data, "<i4").astype(np.int32)
        if len(largest) and not 0 <= int(largest.min()) <= int(largest.max()) < 2 * n_ctx:
            raise StateError("positions outside the context", wanted=f"0..{2 * n_ctx - 1}")
        if len(largest):
            self._largest = {**self._largest, seq: largest}

    def save(self) -> Any:
        """Return what ``restore`` needs."""
        return self._largest, self._trees

    def restore(self, saved: Any) -> None:
        """Be what it was at the last ``save``."""
        self._largest, self._trees = saved


def _without(of_seq: dict[int, I32], seq: int) -> dict[int, I32]:
    """Return the entries of all other sequences."""
    return {other: largest for other, largest in of_seq.items() if other != seq}


def _shift(largest: I32) -> int:
    """Return by how much positions behind these rows are more than their places."""
    return int(largest.max()) + 1 - len(largest) if len(largest) else 0
