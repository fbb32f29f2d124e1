"""Page tables: which page holds which places of a sequence; shared pages are copied on write.

Truncation is O(1) in the rows, forks share every full page, and attention walks pages in the order
of places, whatever their numbers. The rows themselves belong to a backend's store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import CapacityError
from mtpcore.memory.base import PAGE

__all__ = ["PageTables"]


class PageTables:
    """Tables, reference counts and free pages for ``n_seq`` sequences of up to ``n_ctx`` places.

    ``tables`` is int32[n_seq, pages of n_ctx], -1 where no page is; ``first`` and ``length`` are
    int32[n_seq]. Compiled code reads them in place. ``start`` int32[n_seq] is a sequence's first
    place, whether it is still kept or not. The three are rows of one array, ``bounds``: all that
    ``restore`` has to put back, since from ``save`` on no page is given to others that lay inside
    them. Who holds a page follows from the tables.
    """

    def __init__(
        self, n_seq: int, n_ctx: int, n_pages: int, copy: Callable[[int, int], None]
    ) -> None:
        self.n_ctx = n_ctx
        self.tables: NDArray[np.int32] = np.full((n_seq, -(-n_ctx // PAGE)), -1, np.int32)
        self.bounds: NDArray[np.int32] = np.zeros((3, n_seq), np.int32)
        self.first: NDArray[np.int32] = self.bounds[0]
        self.length: NDArray[np.int32] = self.bounds[1]
        self.start: NDArray[np.int32] = self.bounds[2]
        self.uses: NDArray[np.int32] = np.zeros(n_pages, np.int32)
        self._free = list(range(n_pages - 1, -1, -1))
        self._copy = copy
        self._before: NDArray[np.int32] | None = None  # bounds that can be restored
        self._replaced: dict[int, NDArray[np.int32]] = {}  # tables since then
        self._slack: set[int] = set()  # sequences that may hold pages beyond their bounds
        self._is_trimming = False

    @property
    def n_free(self) -> int:
        """Pages that no sequence needs."""
        needed = {
            page
            for seq in range(len(self.tables))
            for page in self.tables[seq][_entries(self.bounds, seq)].tolist()
        }
        return len(self.uses) - len(needed)

    def n_alone(self, seqs: Collection[int]) -> int:
        """Return how many pages these sequences need, and no other."""
        own, others = set[int](), set[int]()
        for seq in range(len(self.tables)):
            pages = self.tables[seq][_entries(self.bounds, seq)].tolist()
            (own if seq in seqs else others).update(pages)
        return len(own - others)

    def save(self) -> NDArray[np.int32]:
        """Return what ``restore`` needs; what lies inside the bounds is kept from now on."""
        if self._is_trimming:
            self._recount()
        self._before = None
        if self._slack:
            self._trim()
        self._replaced = {}
        self._before = self.bounds.copy()
        return self._before

    def restore(self, before: NDArray[np.int32]) -> None:
        """Let every sequence have the places that it had at the last ``save``."""
        for seq, table in self._replaced.items():
            self.tables[seq] = table
        self.bounds[:] = before
        self._slack = set(range(len(self.tables)))
        self._recount()

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
        uses_left: dict[int, int] = {}  # of a page, after these copies: its last user keeps it
        for seq, (begin, end) in rows.items():
            for entry in range(begin // PAGE, -(-end // PAGE) if begin < end else 0):
                page = self.tables.item(seq, entry)
                if page < 0:
                    missing.append((seq, entry))
                elif (uses := uses_left.get(page, self.uses.item(page))) > 1:
                    uses_left[page] = uses - 1
                    shared.append((seq, entry))
        if len(missing) + len(shared) > len(self._free):
            self._trim()
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
                self.first[seq] = self.start[seq] = begin
            if end > length:
                self.length[seq] = end

    def _take(self) -> int:
        page = self._free.pop()
        self.uses[page] = 1
        return page

    def _drop(self, seq: int, entry: int) -> None:
        page = int(self.tables[seq, entry])
        self.tables[seq, entry] = -1
        self.uses[page] -= 1
        if self.uses[page] == 0:
            self._free.append(page)

    def _trim(self) -> None:
        """Give up pages that lie outside the bounds, and outside those that can be restored."""
        self._is_trimming = True
        for seq in self._slack:
            now = _entries(self.bounds, seq)
            before = now if self._before is None else _entries(self._before, seq)
            for entry in np.flatnonzero(self.tables[seq] >= 0).tolist():
                if not (now.start <= entry < now.stop or before.start <= entry < before.stop):
                    self._drop(seq, entry)
        if self._before is None:
            self._slack = set()
        self._is_trimming = False

    def _recount(self) -> None:
        """Recompute reference counts from the tables, after an interrupted change."""
        held = self.tables[self.tables >= 0]
        self.uses[:] = np.bincount(held, minlength=len(self.uses))
        self._free = np.flatnonzero(self.uses == 0)[::-1].tolist()
        self._is_trimming = False

    def rewind(self, seq: int, length: int) -> None:
        """Forget the places from ``length`` on."""
        old, first = self.length.item(seq), self.first.item(seq)
        if length >= old:
            return
        if length <= first:
            self._set_bounds(seq, slice(None), 0)
        elif -(-length // PAGE) < -(-old // PAGE):
            self._set_bounds(seq, 1, length)
        else:
            self.length[seq] = length

    def drop_before(self, seq: int, place: int) -> None:
        """Give up the pages that lie wholly before ``place``; ``first`` moves up."""
        end = min(place, self.length.item(seq)) // PAGE * PAGE
        if end > self.first.item(seq):
            self._set_bounds(seq, 0, end)

    def _set_bounds(self, seq: int, which: int | slice, place: int) -> None:
        """Let a sequence need fewer pages; they are given up, unless they may be restored.

        It is noted first that there are some: whatever cuts this off, they are found.
        """
        self._slack.add(seq)
        self.bounds[which, seq] = place
        if self._before is None:
            self._trim()

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` share all pages of ``seq``; its old places are forgotten."""
        self.rewind(new, 0)
        self._slack.add(new)
        self._replaced[new] = self.tables[new].copy()
        for entry in np.flatnonzero(self.tables[new] >= 0).tolist():
            self._drop(new, entry)
        self.tables[new] = self.tables[seq]
        self.bounds[:, new] = self.bounds[:, seq]
        held = self.tables[new]
        np.add.at(self.uses, held[held >= 0], 1)

    def where(self, seq: int, place: int) -> tuple[int, int]:
        """Return (page, row in it) of a place."""
        return int(self.tables[seq, place // PAGE]), place % PAGE


def _entries(bounds: NDArray[np.int32], seq: int) -> slice:
    """Return the entries of a table that a sequence with these bounds needs."""
    first, length, _ = bounds[:, seq].tolist()
    return slice(first // PAGE, -(-length // PAGE) if length > first else first // PAGE)
