"""Memory of a graph's layers in groups: one for full attention, one for each sliding window."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from mtpcore.errors import CapacityError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import Store
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.windowed import WindowedKV, pages_for

__all__ = ["GroupedKV", "make_memory"]


class GroupedKV:
    """Several paged memories that change together; implements ``mtpcore.memory.base.Memory``.

    Parameters
    ----------
    groups : sequence of PagedKV
        Of the same sequences; each with pages, tables and a store of its own.
    """

    def __init__(self, groups: Sequence[PagedKV]) -> None:
        self.groups = tuple(groups)

    @property
    def longest_rewind(self) -> int:
        """What every group can take back."""
        return min(group.longest_rewind for group in self.groups)

    def allow_rewind(self, n: int) -> None:
        """Ask every group."""
        for group in self.groups:
            group.allow_rewind(n)

    def first(self, seq: int) -> int:
        """Return the first place of a sequence; it is the same in every group."""
        return self.groups[0].first(seq)

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""
        return self.groups[0].length(seq)

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Make room in all groups or in none."""
        before = {seq: self.length(seq) for seq in rows}
        for i, group in enumerate(self.groups):
            try:
                group.reserve(rows)
            except CapacityError:
                for done in self.groups[:i]:
                    for seq, length in before.items():
                        done.rewind(seq, length)
                raise

    def check_rewind(self, seq: int, length: int) -> None:
        """Raise CapacityError where a group cannot go back so far."""
        for group in self.groups:
            group.check_rewind(seq, length)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on, in all groups or in none."""
        self.check_rewind(seq, length)
        for group in self.groups:
            group.rewind(seq, length)

    def save(self) -> Any:
        """Return what ``restore`` needs, of every group."""
        return [group.save() for group in self.groups]

    def restore(self, saved: Any) -> None:
        """Let every group hold what it held at the last ``save``."""
        for group, state in zip(self.groups, saved, strict=True):
            group.restore(state)

    def keep(self, seq: int, begin: int, path: list[int]) -> None:
        """Move the rows of a path through a tree together and forget the others."""
        for group in self.groups:
            group.keep(seq, begin, path)

    def fork(self, seq: int, new: int) -> None:
        """Share all pages of ``seq`` with ``new``."""
        for group in self.groups:
            group.fork(seq, new)

    def digest(self, seq: int) -> bytes:
        """Hash the digests of all groups."""
        parts = b"".join(group.digest(seq) for group in self.groups)
        return hashlib.blake2b(parts, digest_size=16).digest()


def make_memory(
    layers: Sequence[MemoryLayer],
    make_store: Callable[[Sequence[MemoryLayer], int], Store],
    *,
    n_seq: int,
    n_ctx: int,
    n_batch: int,
) -> PagedKV | GroupedKV:
    """Return memory for these layers: a group for each window, layers without one first.

    Parameters
    ----------
    make_store : callable
        ``make_store(layers, n_pages)`` makes the pages of a group.
    n_batch : int
        Rows that are reserved at once, of all sequences together.
    """
    groups = []
    for window in sorted({layer.window for layer in layers} or {0}):
        n_pages = pages_for(window, n_seq, n_ctx, n_batch)
        store = make_store([layer for layer in layers if layer.window == window], n_pages)
        groups.append(
            WindowedKV(store, n_seq, n_ctx, n_pages, window)
            if window
            else PagedKV(store, n_seq, n_ctx, n_pages)
        )
    return groups[0] if len(groups) == 1 else GroupedKV(groups)
