"""Rows that wait between two contexts, addressed by sequence and position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import LinkError

__all__ = ["Inbox"]

F32 = NDArray[np.float32]
_ROOM = 64  # rows that are made room for at least


class Held(NamedTuple):
    """Rows of one sequence: those of positions ``first`` to ``length``, in an array from ``base``.

    A new one replaces it as a whole, and what is put goes behind the rows that are held or into
    another array: an old one stays true through an act. ``unsound`` are the positions of rows that
    are not finite, ascending.
    """

    rows: F32
    base: int = 0
    first: int = 0
    length: int = 0
    unsound: tuple[int, ...] = ()


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
        self._empty = Held(np.empty((0, width), np.float32))
        self._held = [self._empty] * n_seq

    def length(self, seq: int) -> int:
        """Return the position after the newest row."""
        return self._held[seq].length

    def save(self) -> list[Held]:
        """Return what ``restore`` needs."""
        return self._held.copy()

    def restore(self, saved: list[Held]) -> None:
        """Hold the rows that there were."""
        self._held[:] = saved

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
        held, base, first, length, unsound = self._held[seq]
        if first == length != pos:
            held, base, first, length = self._empty.rows, pos, pos, pos
        if not first <= pos <= length:
            raise LinkError(
                "delivered rows leave a gap",
                where=f"{self.name}, sequence {seq}, position {pos}",
                wanted=f"a position in {first}..{length}",
            )
        end = pos + len(rows)
        if pos < length or end - base > len(held):
            kept = held[first - base : pos - base]
            held = np.empty((max(end - first, 2 * len(kept), _ROOM), self.width), np.float32)
            held[: len(kept)] = kept
            base = first
        held[pos - base : end - base] = rows
        unsound = _before(unsound, pos)
        if not np.isfinite(rows).all():
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist()
            unsound += tuple(pos + i for i in bad)
        self._held[seq] = Held(held, base, first, end, unsound)

    def sound_until(self, seq: int, begin: int, end: int) -> int:
        """Return the position of the first row of [begin, end) that is not finite, or ``end``.

        Raises
        ------
        LinkError
            As ``get``.
        """
        self._check(seq, begin, end)
        for at in self._held[seq].unsound:
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
        held = self._held[seq]
        return held.rows[begin - held.base : end - held.base].copy()

    def _check(self, seq: int, begin: int, end: int) -> None:
        """Raise LinkError where one of rows [begin, end) is not there."""
        _, _, first, length, _ = self._held[seq]
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
        held, base, first, length, unsound = self._held[seq]
        if pos <= first:
            return
        first = min(pos, length)
        if len(held) > _ROOM:  # a prompt's rows take much room
            held, base = held[first - base : length - base].copy(), first
        unsound = tuple(at for at in unsound if at >= pos)
        self._held[seq] = Held(held, base, first, length, unsound)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from position ``length`` on."""
        held, base, first, end, unsound = self._held[seq]
        if length < end:
            unsound = _before(unsound, length)
            self._held[seq] = Held(held, base, first, max(first, length), unsound)

    def fork(self, seq: int, new: int) -> None:
        """Copy a sequence's rows to ``new``."""
        held = self._held[seq]
        rows = held.rows[held.first - held.base : held.length - held.base].copy()
        self._held[new] = held._replace(rows=rows, base=held.first)

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        self._held[seq] = self._empty


def _before(positions: tuple[int, ...], pos: int) -> tuple[int, ...]:
    """Return those of some positions that lie before another."""
    return tuple(at for at in positions if at < pos) if positions else positions
