"""Paged memory of layers with a sliding window: a sequence of any length takes a few pages."""

from __future__ import annotations

import hashlib

from mtpcore.errors import CapacityError
from mtpcore.memory.base import PAGE, Store
from mtpcore.memory.kv import PagedKV

__all__ = ["SPARE", "WindowedKV", "pages_for"]

SPARE = PAGE
"""Newest rows that can always be taken back, and so the longest draft and the largest tree.

Counted from the greatest length that a sequence has had, or the one it was forked from before:
rows taken back one after the other add up."""


def pages_for(window: int, n_seq: int, n_ctx: int, n_batch: int) -> int:
    """Return how many pages memory of this window needs; 0 is no window.

    A window keeps for each sequence what its newest rows see and the spare ones, twice, because a
    call that fails half-way goes back to what was there before; rows of one batch come on top.
    """
    whole = -(-n_ctx // PAGE)
    if not window:
        return n_seq * whole
    kept = -(-(window + 2 * SPARE) // PAGE) + 2
    return min(n_seq * 2 * kept + -(-n_batch // PAGE), n_seq * (whole + 1))


class WindowedKV(PagedKV):
    """KV cache of layers whose rows see ``window`` places, their own included.

    Implements ``mtpcore.memory.base.Memory``. Pages that lie before what a rewind by ``SPARE``
    rows would need are given up when rows are appended; pages go as a whole, so that more may be
    there. Rows of a batch see what they need however long it is.

    Parameters
    ----------
    store : Store
    n_seq, n_ctx : int
    n_pages : int
        ``pages_for`` tells how many are enough.
    window : int
    """

    def __init__(self, store: Store, n_seq: int, n_ctx: int, n_pages: int, window: int) -> None:
        super().__init__(store, n_seq, n_ctx, n_pages)
        self.window = window

    @property
    def longest_rewind(self) -> int:
        """The spare rows."""
        return SPARE

    def allow_rewind(self, n: int) -> None:
        """Accept up to ``SPARE`` rows."""
        if n > SPARE:
            raise CapacityError(
                "layers with a sliding window cannot take back so many rows",
                wanted=f"at most {SPARE}",
                got=n,
                fix="make drafts shorter",
            )

    def first(self, seq: int) -> int:
        """Return the place of the sequence's first row, whether it is still kept or not."""
        return self.pages.start.item(seq) if self.length(seq) else 0

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Make room, giving up pages that neither these rows nor a rewind by ``SPARE`` need."""
        self.pages.check_lengths(rows)
        for seq, (begin, _) in rows.items():
            if self.length(seq):
                self.pages.drop_before(seq, begin - self.window - SPARE)
        self.pages.reserve(rows)

    def check_rewind(self, seq: int, length: int) -> None:
        """Refuse where the window before ``length`` is not kept any more."""
        start, first = self.first(seq), self.pages.first.item(seq)
        if start < length < self.length(seq) and first > max(start, length - self.window):
            raise CapacityError(
                "rows that a sliding window would see are gone",
                where=f"sequence {seq}, place {max(start, length - self.window)}",
                wanted=f"a place in {first + self.window}..{self.length(seq)}, or the whole "
                "sequence",
                got=length,
                fix="remove the sequence and process its tokens again up to there",
            )

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        self.check_rewind(seq, length)
        self.pages.rewind(seq, length if length > self.first(seq) else 0)

    def digest(self, seq: int) -> bytes:
        """Hash first place, length and the values that a next row would see."""
        first, length = self.first(seq), self.length(seq)
        hashed = hashlib.blake2b(f"{first} {length} ".encode(), digest_size=16)
        self.hash_rows(hashed, seq, max(first, length - self.window + 1), length)
        return hashed.digest()

    def first_needed(self, seq: int) -> int:
        """Return the first place that a next row would see after a rewind by ``SPARE``."""
        least, _ = self.begins_within(self.first(seq), self.length(seq))
        return max(least, self.pages.first.item(seq))

    def begins_within(self, first: int, length: int) -> tuple[int, int]:
        """Return where rows begin if all spare ones are there, and if none is."""
        newest = length - self.window
        return max(first, newest - SPARE), max(first, newest + 1)
