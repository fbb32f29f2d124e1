"""Page tables: which page holds which places of a sequence; shared pages are copied on write.

Truncation is O(1) in the rows, forks share every full page, and attention walks pages in the order
of places, whatever their numbers. The rows themselves belong to a backend's store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import CapacityError
from mtpcore.memory.base import PAGE

__all__ = ["Held", "PageTables"]


class Held(NamedTuple):
    """Pages int32[pages of n_ctx], first place and length of a sequence, as they were."""

    pages: NDArray[np.int32]
    first: int
    length: int


class PageTables:
    """Tables, reference counts and free pages for ``n_seq`` sequences of up to ``n_ctx`` places.

    ``tables`` is int32[n_seq, pages of n_ctx], -1 where no page is; ``first`` and ``length`` are
    int32[n_seq]. Compiled code reads them in place.
    """

    def __init__(
        self, n_seq: int, n_ctx: int, n_pages: int, copy: Callable[[int, int], None]
    ) -> None:
        self.n_ctx = n_ctx
        self.tables: NDArray[np.int32] = np.full((n_seq, -(-n_ctx // PAGE)), -1, np.int32)
        self.first: NDArray[np.int32] = np.zeros(n_seq, np.int32)
        self.length: NDArray[np.int32] = np.zeros(n_seq, np.int32)
        self.uses: NDArray[np.int32] = np.zeros(n_pages, np.int32)
        self._holds: NDArray[np.int32] = np.zeros(n_pages, np.int32)
        self._free = list(range(n_pages - 1, -1, -1))
        self._copy = copy

    @property
    def n_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def check_lengths(self, rows: dict[int, tuple[int, int]]) -> None:
        """Raise CapacityError where rows ``[begin, end)`` of a sequence leave the context."""
        for seq, (_, end) in rows.items():
            if end > self.n_ctx:
                raise CapacityError(
                    "sequence is longer than the context",
                    where=f"sequence {seq}",
                    wanted=f"at most {self.n_ctx} places",
                    got=end,
                    fix="make n_ctx larger",
                )

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Give every place in ``[begin, end)`` a page of its own sequence, all or none."""
        self.check_lengths(rows)
        missing: list[tuple[int, int]] = []  # sequence, entry of its table
        shared: list[tuple[int, int]] = []  # the same; copied before it is written
        uses_left: dict[int, int] = {}  # of a page, behind these copies: its last user keeps it
        for seq, (begin, end) in rows.items():
            for entry in range(begin // PAGE, -(-end // PAGE) if begin < end else 0):
                page = self.tables.item(seq, entry)
                if page < 0:
                    missing.append((seq, entry))
                elif (uses := uses_left.get(page, self.uses.item(page))) > 1:
                    uses_left[page] = uses - 1
                    shared.append((seq, entry))
        if len(missing) + len(shared) > len(self._free):
            raise CapacityError(
                "memory is full",
                where=f"sequences {sorted(rows)}",
                wanted=f"{len(missing) + len(shared)} pages",
                got=f"{len(self._free)} free",
                fix="remove a sequence, or make n_ctx larger",
            )
        for seq, entry in shared:
            old, new = int(self.tables[seq, entry]), self._take()
            self._copy(old, new)
            self.uses[old] -= 1
            self.tables[seq, entry] = new
        for seq, entry in missing:
            self.tables[seq, entry] = self._take()
        for seq, (begin, end) in rows.items():
            length = self.length.item(seq)
            if self.first.item(seq) == length:
                self.first[seq] = begin
            if end > length:
                self.length[seq] = end

    def _take(self) -> int:
        page = self._free.pop()
        self.uses[page] = 1
        return page

    def _drop(self, seq: int, entry: int) -> None:
        page = int(self.tables[seq, entry])
        if page < 0:
            return
        self.tables[seq, entry] = -1
        self.uses[page] -= 1
        self._free_if_unused(page)

    def _free_if_unused(self, page: int) -> None:
        if self.uses[page] == 0 and self._holds[page] == 0:
            self._free.append(page)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the places from ``length`` on."""
        old = int(self.length[seq])
        first = int(self.first[seq])
        length = max(length, first)
        if length >= old:
            return
        begin = -(-length // PAGE) if length > first else first // PAGE
        for entry in range(begin, (old - 1) // PAGE + 1):
            self._drop(seq, entry)
        self.length[seq] = length
        if length == first:
            self.first[seq] = self.length[seq] = 0

    def drop_before(self, seq: int, place: int) -> None:
        """Give up the pages that lie wholly before ``place``; ``first`` moves up."""
        first = int(self.first[seq])
        begin, end = first // PAGE, min(place, int(self.length[seq])) // PAGE
        for entry in range(begin, end):
            self._drop(seq, entry)
        self.first[seq] = max(first, end * PAGE)

    def hold(self, seq: int) -> Held:
        """Keep what a sequence holds from being given to others until it is released."""
        row = self.tables[seq].copy()
        self._holds[row[row >= 0]] += 1
        return Held(row, int(self.first[seq]), int(self.length[seq]))

    def restore(self, seq: int, held: Held) -> None:
        """Let a sequence be what it was when it was held; rows were only appended since."""
        kept = held.pages[held.pages >= 0]
        self.uses[kept] += 1
        for entry in np.flatnonzero(self.tables[seq] >= 0).tolist():
            self._drop(seq, entry)
        self.tables[seq] = held.pages
        self.first[seq], self.length[seq] = held.first, held.length

    def release(self, held: Held) -> None:
        """Undo ``hold``."""
        for page in held.pages[held.pages >= 0].tolist():
            self._holds[page] -= 1
            self._free_if_unused(page)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` share all pages of ``seq``; its old places are forgotten."""
        self.rewind(new, 0)
        self.tables[new] = self.tables[seq]
        self.first[new], self.length[new] = self.first[seq], self.length[seq]
        held = self.tables[new]
        np.add.at(self.uses, held[held >= 0], 1)

    def where(self, seq: int, place: int) -> tuple[int, int]:
        """Return (page, row in it) of a place."""
        return int(self.tables[seq, place // PAGE]), place % PAGE
