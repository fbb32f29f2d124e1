"""The paged KV cache."""

from __future__ import annotations

import hashlib
from typing import Any

from mtpcore.errors import CapacityError
from mtpcore.memory.base import PAGE, Store
from mtpcore.memory.pages import PageTables

__all__ = ["PagedKV"]


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
        self._moved: dict[int, int] | None = None  # by sequence, since something was saved

    @property
    def groups(self) -> tuple[PagedKV, ...]:
        """The memories with tables of their own that this one is made of."""
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

    def check_rewind(self, seq: int, length: int) -> None:
        """Accept any length."""

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        self.pages.rewind(seq, length)

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

    def digest(self, seq: int) -> bytes:
        """Hash first place, length and the stored values in the order of their places."""
        first, length = self.first(seq), self.length(seq)
        hashed = hashlib.blake2b(f"{first} {length} ".encode(), digest_size=16)
        self.hash_rows(hashed, seq, first, length)
        return hashed.digest()

    def hash_rows(self, hashed: Any, seq: int, begin: int, end: int) -> None:
        """Add the stored values of places [begin, end) to a hash."""
        place = begin
        while place < end:
            page, row = self.pages.where(seq, place)
            n = min(PAGE - row, end - place)
            hashed.update(self.store.read(page, row, n))
            place += n
