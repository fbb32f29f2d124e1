"""Inbox: the buffer in which a link's rows wait, by sequence and place."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import RowBuffer
from mtpcore.backends.finite import find_not_finite
from mtpcore.errors import LinkError, StateError

__all__ = ["Inbox"]

F32 = NDArray[np.float32]
_BOUNDS = struct.Struct("<2Q")
"""The places of the first row, and after the last one."""
_ROOM = 64  # rows that are made room for at least


class WaitingRows(NamedTuple):
    """Rows of one sequence: those of places ``first`` to ``length``, in a buffer from ``base``.

    A new one replaces it as a whole, and what is put goes after the rows that are held or into
    another buffer: an old one stays true through an act. ``not_finite`` are the places of rows
    that are not finite, ascending.
    """

    rows: RowBuffer
    base: int = 0
    first: int = 0
    length: int = 0
    not_finite: tuple[int, ...] = ()


class Inbox:
    """Delivered rows float32[width] of every sequence, one for each place of the source.

    Parameters
    ----------
    name : str
        For messages: ``role.slot``.
    width : int
        Width of a row.
    n_seq : int
        Sequences.
    make : callable
        The reader's ``Backend.row_buffer``, kept as ``make``.
    has_gaps : bool
        Whether rows that were not delivered are zeros, and not missing.
    """

    def __init__(
        self,
        name: str,
        width: int,
        n_seq: int,
        make: Callable[[int, int], RowBuffer],
        *,
        has_gaps: bool = False,
    ) -> None:
        self.name, self.width, self.make, self._has_gaps = name, width, make, has_gaps
        self._empty = WaitingRows(make(0, width))
        self._held = [self._empty] * n_seq

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""
        return self._held[seq].length

    def save(self) -> list[WaitingRows]:
        """Return what ``restore`` needs."""
        return self._held.copy()

    def restore(self, saved: list[WaitingRows]) -> None:
        """Hold the rows that there were."""
        self._held[:] = saved

    def put(self, seq: int, place: int, *parts: F32, bad: Sequence[int] | None = None) -> None:
        """Store rows at ``place``, ``place + 1``, ...; later places are forgotten.

        No rows change nothing.

        Parameters
        ----------
        parts : float32[n, *]
            The rows; of several parts each has some of their columns, in order.
        bad : sequence of int, optional
            Which of the rows are not finite, ascending, where that is known.

        Raises
        ------
        LinkError
            The rows leave a gap, or have another width.
        """
        n = len(parts[0])
        if sum(part.shape[1] for part in parts) != self.width:
            raise LinkError(
                "delivered rows have another width",
                where=self.name,
                wanted=f"[n, {self.width}]",
                got=" and ".join(str(part.shape) for part in parts),
            )
        if not n:
            return
        if self._has_gaps and self._held[seq].first < self._held[seq].length < place:
            gap = place - self._held[seq].length
            self.put(seq, self._held[seq].length, np.zeros((gap, self.width), np.float32), bad=())
        rows, base, first, length, not_finite = self._held[seq]
        if first == length != place:
            rows, base, first, length = self._empty.rows, place, place, place
        if not first <= place <= length:
            raise LinkError(
                "delivered rows leave a gap",
                where=f"{self.name}, sequence {seq}, place {place}",
                wanted=f"a place in {first}..{length}",
            )
        end = place + n
        if place < length or end - base > len(rows):
            kept = rows.read(first - base, place - base)
            rows = self.make(max(end - first, 2 * len(kept), _ROOM), self.width)
            rows.write(0, (kept,))
            base = first
        rows.write(place - base, parts)
        bad = find_not_finite(parts) if bad is None else bad
        not_finite = _before(not_finite, place) + tuple(place + at for at in bad)
        self._held[seq] = WaitingRows(rows, base, first, end, not_finite)

    def finite_until(self, seq: int, begin: int, end: int) -> int:
        """Return the place of the first row of [begin, end) that is not finite, or ``end``.

        Raises
        ------
        LinkError
            As ``get``.
        """
        self._check(seq, begin, end)
        for at in self._held[seq].not_finite:
            if begin <= at < end:
                return at
        return end

    def get(self, seq: int, begin: int, end: int) -> F32:
        """Return rows [begin, end) as a copy.

        Raises
        ------
        LinkError
            A row is missing; names sequence and place.
        """
        self._check(seq, begin, end)
        held = self._held[seq]
        there, until = max(begin, held.first), min(end, held.length)
        if there >= until:
            return np.zeros((end - begin, self.width), np.float32)
        rows = held.rows.read(there - held.base, until - held.base)
        around = ((there - begin, end - until), (0, 0))
        return np.pad(rows, around) if until - there < end - begin else rows

    def _check(self, seq: int, begin: int, end: int) -> None:
        """Raise LinkError where one of rows [begin, end) is not there."""
        _, _, first, length, _ = self._held[seq]
        if not self._has_gaps and begin < end and (begin < first or end > length):
            missing = begin if begin < first or begin >= length else length
            raise LinkError(
                "a hidden row is missing",
                where=f"{self.name}, sequence {seq}, place {missing}",
                wanted=f"rows {begin}..{end - 1}",
                got=f"rows {first}..{length - 1}" if length > first else "no rows",
                fix="process() the source over these places, or feed() them",
            )

    def release(self, seq: int, place: int) -> None:
        """Drop the rows before ``place``, which will not be read again."""
        rows, base, first, length, not_finite = self._held[seq]
        if place <= first:
            return
        first = min(place, length)
        if len(rows) > _ROOM:  # a prompt's rows take much room
            rows, base = self._copy(rows, first - base, length - base), first
        not_finite = tuple(at for at in not_finite if at >= place)
        self._held[seq] = WaitingRows(rows, base, first, length, not_finite)

    def _copy(self, rows: RowBuffer, begin: int, end: int) -> RowBuffer:
        """Return a buffer with some rows of another one."""
        copy = self.make(end - begin, self.width)
        copy.write(0, (rows.read(begin, end),))
        return copy

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        rows, base, first, end, not_finite = self._held[seq]
        if length < end:
            not_finite = _before(not_finite, length)
            self._held[seq] = WaitingRows(rows, base, first, max(first, length), not_finite)

    def fork(self, seq: int, new: int) -> None:
        """Copy a sequence's rows to ``new``."""
        self.refill(new, self.snapshot(seq))

    def snapshot(self, seq: int) -> WaitingRows:
        """Return a copy of rows that an act is to take back and to write anew."""
        held = self._held[seq]
        rows = self._copy(held.rows, held.first - held.base, held.length - held.base)
        return held._replace(rows=rows, base=held.first)

    def refill(self, seq: int, held: WaitingRows) -> None:
        """Hold what a snapshot holds."""
        self._held[seq] = held

    def dump(self, seq: int) -> Iterator[bytes]:
        """Yield the bounds of a sequence's rows, and then the rows as float32, in pieces."""
        rows, base, first, length, _ = self._held[seq]
        yield _BOUNDS.pack(first, length)
        for begin in range(first, length, _ROOM):
            end = min(begin + _ROOM, length)
            yield np.asarray(rows.read(begin - base, end - base), "<f4").tobytes()

    def load(self, seq: int, data: memoryview, n_ctx: int) -> None:
        """Let an empty sequence hold the rows that ``dump`` gave, of up to ``n_ctx`` places.

        Raises
        ------
        StateError
            The bytes are no such rows.
        """
        if len(data) < _BOUNDS.size:
            raise StateError("the rows are cut short")
        first, length = _BOUNDS.unpack(data[: _BOUNDS.size])
        rows = data[_BOUNDS.size :]
        if not first <= length <= n_ctx or len(rows) != (length - first) * self.width * 4:
            raise StateError(
                "rows of another number or width",
                wanted=f"rows of {4 * self.width} bytes, up to place {n_ctx}",
                got=f"{len(rows)} bytes for places {first} to {length}",
                fix="make n_ctx larger",
            )
        self._held[seq] = self._empty._replace(base=first, first=first, length=first)
        values = np.frombuffer(rows, "<f4").astype(np.float32)
        self.put(seq, first, values.reshape(length - first, self.width))

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        self._held[seq] = self._empty


def _before(places: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Return those of some places that lie before another."""
    return tuple(at for at in places if at < place) if places else places
