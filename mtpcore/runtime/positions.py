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

    A sequence goes on after the largest number on any axis of any of its rows. For rows of text
    alone that is its length. An image of ny * nx rows at (p, p + y, p + x, 0) is followed by
    p + max(ny, nx), audio of n rows by p + n.

    Parameters
    ----------
    n_axes : int
        Numbers of a position.
    """

    def __init__(self, n_axes: int) -> None:
        # Of sequences with such rows: the positions int32[n, axes] of all rows up to the last of
        # these, and of the rows of an undecided draft tree. Arrays and dicts are replaced, never
        # changed.
        self._n_axes = n_axes
        self._own: dict[int, I32] = {}
        self._trees: dict[int, I32] = {}

    def following(self, seq: int, length: int) -> int:
        """Return the position of the row that follows ``length`` rows."""
        own = self._own.get(seq)
        return length if own is None else length + _shift(own)

    def of_places(self, seq: I32, place: I32) -> I32:
        """Return int32[n]: the positions of rows of text that go on at these places."""
        positions = place
        for moved, own in self._own.items():
            positions = np.where(seq == moved, positions + np.int32(_shift(own)), positions)
        return positions

    def of_stored(self, seq: int, begin: int, end: int) -> I32 | None:
        """Return int32[end - begin, axes], the positions of rows that are stored at these places.

        None where they are those of text that goes on after the rows before them.
        """
        own = self._own.get(seq)
        if own is None or begin >= min(end, len(own)):
            return None
        rows = np.concatenate([own[begin:end], self._text(own, len(own), end)])
        return None if np.array_equal(rows, self._text(own[:begin], begin, end)) else rows

    def _text(self, own: I32, begin: int, end: int) -> I32:
        """Return the positions of text at places ``begin`` to ``end``, after rows of their own."""
        numbers = np.arange(begin, end, dtype=np.int32) + np.int32(_shift(own))
        return np.repeat(numbers[:, None], self._n_axes, axis=1)

    def note(self, seq: int, begin: int, positions: I32, *, branching: bool) -> None:
        """Note rows with positions of their own, int32[n, axes], stored from place ``begin`` on.

        Of branching ones a path is kept.
        """
        before = self._own.get(seq, np.zeros((0, self._n_axes), np.int32))
        text = self._text(before, len(before), begin)
        if branching:
            self._trees = {**self._trees, seq: positions}
        parts = [before, text] if branching else [before, text, positions]
        self._own = {**self._own, seq: np.concatenate(parts)}

    def keep(self, seq: int, begin: int, steps: list[int]) -> None:
        """Keep of the tree at ``begin`` these rows alone; done twice it is done once."""
        tree = self._trees.get(seq)
        if tree is not None:
            kept = np.concatenate([self._own[seq][:begin], tree[steps]])
            self._own = {**self._own, seq: kept}
            self._trees = _without(self._trees, seq)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        if seq in self._trees:
            self._trees = _without(self._trees, seq)
        own = self._own.get(seq)
        if own is None:
            return
        if length:
            self._own = {**self._own, seq: own[:length]}
        else:
            self._own = _without(self._own, seq)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` go on where ``seq`` does."""
        self.rewind(new, 0)
        if seq in self._own:
            self._own = {**self._own, new: self._own[seq]}

    def dump(self, seq: int) -> bytes:
        """Return what ``load`` needs: the positions as int32[n, axes]."""
        return self._own.get(seq, np.zeros(0, np.int32)).astype("<i4").tobytes()

    def load(self, seq: int, data: bytes, length: int, n_ctx: int) -> None:
        """Let an empty sequence go on after ``length`` rows as ``dump`` says.

        Raises
        ------
        StateError
            Not a position for each row, or one that no row has in ``n_ctx`` places.
        """
        n_bytes = 4 * self._n_axes
        if len(data) % n_bytes or len(data) > n_bytes * length:
            raise StateError(
                "positions of other rows", wanted=f"{length} or fewer", got=f"{len(data)} bytes"
            )
        own = np.frombuffer(data, "<i4").astype(np.int32).reshape(-1, self._n_axes)
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < 2 * n_ctx:
            raise StateError("positions outside the context", wanted=f"0..{2 * n_ctx - 1}")
        if len(own):
            self._own = {**self._own, seq: own}

    def save(self) -> Any:
        """Return what ``restore`` needs."""
        return self._own, self._trees

    def restore(self, saved: Any) -> None:
        """Put back what ``save`` returned."""
        self._own, self._trees = saved


def _without(of_seq: dict[int, I32], seq: int) -> dict[int, I32]:
    """Return the entries of all other sequences."""
    return {other: own for other, own in of_seq.items() if other != seq}


def _shift(own: I32) -> int:
    """Return by how much positions of text after these rows are more than their places."""
    return int(own.max()) + 1 - len(own) if len(own) else 0
