"""The paged KV cache."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from typing import Any

from mtpcore.errors import CapacityError, StateError
from mtpcore.memory.base import PAGE, Store
from mtpcore.memory.pages import PageTables

__all__ = ["PagedKV"]

_BOUNDS = struct.Struct("<3Q")
"""Where a sequence begins, where the rows that follow begin, and where both end."""


class PagedKV:
    """Keys and values in pages of ``PAGE`` places; implements ``mtpcore.memory.base.Memory``.

    Parameters
    ----------
    store : Store
        Holds the rows; made by the backend that reads them.
    n_seq, n_ctx, n_pages : int
        Sequences, places of each, and pages of all together.
    """

    def __init__(self, store: Store, n_seq: int, n_ctx: int, n_pages: int) -> None:
        self.store = store
        self.pages = PageTables(n_seq, n_ctx, n_pages, store.copy)
        self.page_tables = [self.pages]
        self._moved: dict[int, int] | None = None  # by sequence, since something was saved

    @property
    def groups(self) -> tuple[PagedKV, ...]:
        """The memories with tables of their own that this one is made of."""
        return (self,)

    @property
    def recurrent(self) -> None:
        """States of recurrent layers: none."""

    @property
    def delivered(self) -> None:
        """Rows that were delivered: none."""

    @property
    def parts(self) -> tuple[PagedKV, ...]:
        """What is saved of this memory, each for itself."""
        return (self,)

    @property
    def longest_rewind(self) -> int:
        """As many rows as there can be."""
        return self.pages.n_ctx

    def allow_rewind(self, n: int) -> None:
        """Accept any length: nothing is overwritten before it is rewound."""

    def first(self, seq: int) -> int:
        """Return the first stored place."""
        return self.pages.first.item(seq)

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""
        return self.pages.length.item(seq)

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Make room for rows ``[begin, end)`` of each sequence, all or none."""
        self.pages.reserve(rows)

    def nearest(self, seq: int, length: int) -> int:
        """Return the place itself."""
        return length

    def check_rewind(self, seq: int, length: int) -> None:
        """Accept any length."""

    def give_back(self, rows: dict[int, tuple[int, int]]) -> None:
        """Forget rows that were reserved."""
        for seq, (begin, _) in rows.items():
            self.rewind(seq, begin)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        self.pages.rewind(seq, length)

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        self.rewind(seq, 0)

    def save(self) -> Any:
        """Return what ``restore`` needs; no longer keep what an earlier one would have needed."""
        self._moved = {}
        return self.pages.save()

    def restore(self, saved: Any) -> None:
        """Hold what was held at the last ``save``; rows before that are as they were."""
        self.pages.restore(saved)

    def keep(self, seq: int, begin: int, path: list[int]) -> None:
        """Move the rows of a path through a tree together and forget the others."""
        if sorted(set(path)) != path or (path and path[0] < 0):
            raise CapacityError("a path ascends", where=f"sequence {seq}", got=path)
        moved = {} if self._moved is None else self._moved
        for i in range(moved.get(seq, 0), len(path)):
            if path[i] != i:
                self.store.move(
                    *self.pages.where(seq, begin + path[i]), *self.pages.where(seq, begin + i)
                )
            moved[seq] = i + 1  # a second time, the row that was moved may be another by then
        self.rewind(seq, begin + len(path))

    def fork(self, seq: int, new: int) -> None:
        """Share all pages of ``seq`` with ``new``."""
        self.pages.fork(seq, new)

    def bytes_of(self, seqs: Collection[int]) -> int:
        """Return the bytes of the pages that these sequences need, and no other."""
        return self.pages.n_alone(seqs) * PAGE * self.store.place_bytes

    def digest(self, seq: int) -> bytes:
        """Hash first place, length and the stored values in the order of their places."""
        first, length = self.first(seq), self.length(seq)
        hashed = hashlib.blake2b(f"{first} {length} ".encode(), digest_size=16)
        self.hash_rows(hashed, seq, first, length)
        return hashed.digest()

    def snapshot(self, seq: int) -> bytes:
        """Return all rows that are kept."""
        spans = self._spans(seq, self.pages.first.item(seq), self.length(seq))
        return b"".join(self.store.read(page, row, n) for page, row, n in spans)

    def refill(self, seq: int, rows: bytes) -> None:
        """Store ``rows``, a snapshot, where they were."""
        self._fill(seq, self.pages.first.item(seq), self.length(seq), memoryview(rows))

    def most_bytes(self, n_places: int) -> int:
        """Return how many bytes ``dump`` gives at most of ``n_places``."""
        return _BOUNDS.size + n_places * self.store.place_bytes

    def dump(self, seq: int) -> Iterator[bytes]:
        """Yield the bounds and then the stored values in the order of their places."""
        begin, length = self.first_needed(seq), self.length(seq)
        yield _BOUNDS.pack(self.first(seq), begin, length)
        for page, row, n in self._spans(seq, begin, length):
            yield self.store.read(page, row, n)

    def load(self, seq: int, data: memoryview) -> None:
        """Let an empty sequence hold rows that ``dump`` gave."""
        if len(data) < _BOUNDS.size:
            raise StateError("the rows are cut short")
        first, begin, length = _BOUNDS.unpack(data[: _BOUNDS.size])
        rows, n_bytes = data[_BOUNDS.size :], self.store.place_bytes
        if length > self.pages.n_ctx:
            raise StateError(
                "the sequence is longer than the context",
                wanted=f"at most {self.pages.n_ctx} places",
                got=length,
                fix="make n_ctx larger",
            )
        least, most = self.begins_within(first, length)
        if not (least <= begin <= most and (begin < length or first == length == 0)):
            raise StateError(
                "rows with impossible bounds",
                wanted=f"places {least} to {most}, up to {length}",
                got=f"places {begin} to {length} of a sequence that begins at {first}",
            )
        if len(rows) != (length - begin) * n_bytes:
            raise StateError(
                "rows of another size", wanted=(length - begin) * n_bytes, got=len(rows)
            )
        self.pages.reserve({seq: (begin, length)})
        self.pages.start[seq] = first
        self._fill(seq, begin, length, rows)

    def _fill(self, seq: int, begin: int, end: int, rows: memoryview) -> None:
        """Store rows at the places [begin, end)."""
        n_bytes = self.store.place_bytes
        for page, row, n in self._spans(seq, begin, end):
            self.store.write(page, row, rows[: n * n_bytes])
            rows = rows[n * n_bytes :]

    def first_needed(self, seq: int) -> int:
        """Return the place from which on a sequence's rows may still be read."""
        return self.first(seq)

    def begins_within(self, first: int, length: int) -> tuple[int, int]:
        """Return the least and the greatest ``first_needed`` of a sequence with these bounds."""
        return first, first

    def hash_rows(self, hashed: Any, seq: int, begin: int, end: int) -> None:
        """Add the stored values of places [begin, end) to a hash."""
        for page, row, n in self._spans(seq, begin, end):
            hashed.update(self.store.read(page, row, n))

    def _spans(self, seq: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (page, first row in it, number of rows) of places [begin, end), in order."""
        place = begin
        while place < end:
            page, row = self.pages.where(seq, place)
            n = min(PAGE - row, end - place)
            yield page, row, n
            place += n
