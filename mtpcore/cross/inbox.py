"""Rows that wait between two contexts, addressed by sequence and position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import LinkError

__all__ = ["Inbox"]

F32 = NDArray[np.float32]
_ROOM = 64  # rows that are made room for at least


class Inbox:
    """Delivered rows float32[width] of every sequence, one for each position of the source.

    Parameters
    ----------
    name : str
        For messages: ``role.slot``.
    width : int
        Width of a row.
    n_seq : int
        Sequences.
    """

    def __init__(self, name: str, width: int, n_seq: int) -> None:
        self.name, self.width = name, width
        self._rows: list[F32] = [np.empty((0, width), np.float32) for _ in range(n_seq)]
        self._first = [0] * n_seq
        self._length = [0] * n_seq
        self._unsound: list[list[int]] = [[] for _ in range(n_seq)]  # not finite, ascending

    def length(self, seq: int) -> int:
        """Return the position after the newest row."""
        return self._length[seq]

    def put(self, seq: int, pos: int, rows: F32) -> None:
        """Store rows at ``pos``, ``pos + 1``, ...; later positions are forgotten.

        Raises
        ------
        LinkError
            The rows leave a gap, or have another width.
        """
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise LinkError(
                "delivered rows have another width",
                where=self.name,
                wanted=f"[n, {self.width}]",
                got=rows.shape,
            )
        first, length = self._first[seq], self._length[seq]
        if first == length:
            first = length = pos
        if not first <= pos <= length:
            raise LinkError(
                "delivered rows leave a gap",
                where=f"{self.name}, sequence {seq}, position {pos}",
                wanted=f"a position in {first}..{length}",
            )
        end = pos + len(rows)
        held = self._rows[seq]
        if end - first > len(held):
            held = np.empty((max(end - first, 2 * len(held), _ROOM), self.width), np.float32)
            held[: length - first] = self._rows[seq][: length - first]
            self._rows[seq] = held
        held[pos - first : end - first] = rows
        self._first[seq], self._length[seq] = first, end
        unsound = self._forget_unsound(seq, pos)
        if not np.isfinite(rows).all():
            unsound += (pos + np.flatnonzero(~np.isfinite(rows).all(axis=1))).tolist()

    def sound_until(self, seq: int, begin: int, end: int) -> int:
        """Return the position of the first row of [begin, end) that is not finite, or ``end``.

        Raises
        ------
        LinkError
            As ``get``.
        """
        self._check(seq, begin, end)
        for at in self._unsound[seq]:
            if begin <= at < end:
                return at
        return end

    def get(self, seq: int, begin: int, end: int) -> F32:
        """Return rows [begin, end) as a copy.

        Raises
        ------
        LinkError
            A row is missing; names sequence and position.
        """
        self._check(seq, begin, end)
        first = self._first[seq]
        return self._rows[seq][begin - first : end - first].copy()

    def _check(self, seq: int, begin: int, end: int) -> None:
        """Raise LinkError where one of rows [begin, end) is not there."""
        first, length = self._first[seq], self._length[seq]
        if begin < end and (begin < first or end > length):
            missing = begin if begin < first or begin >= length else length
            raise LinkError(
                "a hidden row is missing",
                where=f"{self.name}, sequence {seq}, position {missing}",
                wanted=f"rows {begin}..{end - 1}",
                got=f"rows {first}..{length - 1}" if length > first else "no rows",
                fix="process() the source over these positions, or feed() them",
            )

    def release(self, seq: int, pos: int) -> None:
        """Give up the rows before position ``pos``: nobody will read them again."""
        first, length = self._first[seq], self._length[seq]
        if pos <= first:
            return
        kept = self._rows[seq][min(pos, length) - first : length - first]
        # A prompt's rows take much room; those of a round reuse the same array.
        if len(self._rows[seq]) > _ROOM:
            self._rows[seq] = kept.copy()
        else:
            self._rows[seq][: len(kept)] = kept
        self._first[seq] = min(pos, length)
        self._unsound[seq] = [at for at in self._unsound[seq] if at >= pos]

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from position ``length`` on."""
        self._length[seq] = max(self._first[seq], min(self._length[seq], length))
        self._forget_unsound(seq, length)

    def _forget_unsound(self, seq: int, pos: int) -> list[int]:
        """Forget which rows from ``pos`` on are not finite; return those before it."""
        unsound = self._unsound[seq]
        while unsound and unsound[-1] >= pos:
            unsound.pop()
        return unsound

    def fork(self, seq: int, new: int) -> None:
        """Copy a sequence's rows to ``new``."""
        n = self._length[seq] - self._first[seq]
        self._rows[new] = self._rows[seq][:n].copy()
        self._first[new], self._length[new] = self._first[seq], self._length[seq]
        self._unsound[new] = list(self._unsound[seq])

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        self._rows[seq] = np.empty((0, self.width), np.float32)
        self._first[seq] = self._length[seq] = 0
        self._unsound[seq] = []
