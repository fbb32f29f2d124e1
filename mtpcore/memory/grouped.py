"""Memory of a graph's layers in groups: full attention, each sliding window, recurrent layers.

And layers of rows that another graph delivered, which a sequence keeps for as long as it is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from mtpcore.errors import CapacityError
from mtpcore.graph.program import MemoryLayer, StateLayer
from mtpcore.memory.base import StateStore, Store
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.recurrent import RecurrentMemory, checkpoints_in, slots_for
from mtpcore.memory.windowed import WindowedKV, pages_for

__all__ = ["GroupedKV", "make_memory"]


class GroupedKV:
    """Several memories that change together; implements ``mtpcore.memory.base.Memory``.

    Parameters
    ----------
    groups : sequence of PagedKV
        Of the same sequences; each with pages, tables and a store of its own. There is one at
        least, if without layers: it counts the places.
    recurrent : RecurrentMemory, optional
        Of the same sequences, where the graph has recurrent layers.
    delivered : PagedKV, optional
        Of the same sequences, where a graph attends to rows that were delivered: it comes last
        among the groups. Its rows have places of their own; no rewind touches them.
    """

    def __init__(
        self,
        groups: Sequence[PagedKV],
        recurrent: RecurrentMemory | None = None,
        delivered: PagedKV | None = None,
    ) -> None:
        self._own, self.recurrent, self.delivered = tuple(groups), recurrent, delivered
        self.groups = (*groups, delivered) if delivered else self._own
        self.page_tables = [group.pages for group in self.groups]
        self._parts: list[PagedKV | RecurrentMemory] = [*groups]  # those that are rewound
        if recurrent:
            self._parts.append(recurrent)

    @property
    def parts(self) -> tuple[PagedKV | RecurrentMemory, ...]:
        """What is saved of this memory, each for itself."""
        return (*self._parts, self.delivered) if self.delivered else tuple(self._parts)

    @property
    def longest_rewind(self) -> int:
        """What every part can take back."""
        return min(part.longest_rewind for part in self._parts)

    def allow_rewind(self, n: int) -> None:
        """Ask every part."""
        for part in self._parts:
            part.allow_rewind(n)

    def first(self, seq: int) -> int:
        """Return the first place of a sequence; it is the same in every group."""
        return self._own[0].first(seq)

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""
        return self._own[0].length(seq)

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Make room in all parts or in none."""
        before = {seq: self.length(seq) for seq in rows}
        for i, group in enumerate(self._own):
            try:
                group.reserve(rows)
            except CapacityError:
                for done in self._own[:i]:
                    for seq, length in before.items():
                        done.rewind(seq, length)
                raise
        if self.recurrent:
            self.recurrent.reserve(rows)

    def give_back(self, rows: dict[int, tuple[int, int]]) -> None:
        """Give the room of rows back, in all parts."""
        for part in self._parts:
            part.give_back(rows)

    def nearest(self, seq: int, length: int) -> int:
        """Return the nearest place whose state recurrent layers have."""
        return self.recurrent.nearest(seq, length) if self.recurrent else length

    def check_rewind(self, seq: int, length: int) -> None:
        """Raise CapacityError where a part cannot go back so far."""
        for part in self._parts:
            part.check_rewind(seq, length)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on, in all parts or in none."""
        self.check_rewind(seq, length)
        for part in self._parts:
            part.rewind(seq, length)

    def remove(self, seq: int) -> None:
        """Forget a sequence, in all parts."""
        for part in self.parts:
            part.rewind(seq, 0)

    def save(self) -> Any:
        """Return what ``restore`` needs, of every part."""
        return [part.save() for part in self.parts]

    def restore(self, saved: Any) -> None:
        """Let every part hold what it held at the last ``save``."""
        for part, state in zip(self.parts, saved, strict=True):
            part.restore(state)

    def keep(self, seq: int, begin: int, path: list[int]) -> None:
        """Keep the rows of a path through a tree and forget the others."""
        for part in self._parts:
            part.keep(seq, begin, path)

    def fork(self, seq: int, new: int) -> None:
        """Share all that ``seq`` holds with ``new``."""
        for part in self.parts:
            part.fork(seq, new)

    def bytes_of(self, seqs: Collection[int]) -> int:
        """Return the bytes that these sequences take in all parts, and no other."""
        return sum(part.bytes_of(seqs) for part in self.parts)

    def digest(self, seq: int) -> bytes:
        """Hash the digests of all parts."""
        parts = b"".join(part.digest(seq) for part in self.parts)
        return hashlib.blake2b(parts, digest_size=16).digest()


def make_memory(
    layers: Sequence[MemoryLayer],
    make_store: Callable[[Sequence[MemoryLayer], int], Store],
    *,
    n_seq: int,
    n_ctx: int,
    n_batch: int,
    states: Sequence[StateLayer] = (),
    make_state_store: Callable[[Sequence[StateLayer], int], StateStore] | None = None,
    checkpoint_bytes: int | None = None,
    delivered: Sequence[MemoryLayer] = (),
) -> PagedKV | GroupedKV:
    """Return memory for these layers: a group for each window, layers without one first.

    Parameters
    ----------
    make_store : callable
        ``make_store(layers, n_pages)`` makes the pages of a group.
    n_batch : int
        Rows that are reserved at once, of all sequences together.
    states, make_state_store
        Recurrent layers, and ``make_state_store(states, n_slots)`` that makes their store.
    checkpoint_bytes : int, optional
        The most that checkpoints of recurrent layers take, of all sequences together; None: a few
        of each sequence.
    delivered : sequence of MemoryLayer
        Layers of rows that another graph delivers, up to ``n_ctx`` for each sequence.
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
    recurrent = kept = None
    if states and make_state_store:
        slot_bytes = make_state_store(states, 1).n_bytes
        n_checkpoints = checkpoints_in(checkpoint_bytes, slot_bytes, n_seq)
        state_store = make_state_store(states, slots_for(n_seq, n_checkpoints))
        recurrent = RecurrentMemory(state_store, n_seq, n_checkpoints)
    if delivered:
        n_pages = pages_for(0, n_seq, n_ctx, n_batch)
        kept = PagedKV(make_store(delivered, n_pages), n_seq, n_ctx, n_pages)
    if recurrent is None and kept is None and len(groups) == 1:
        return groups[0]
    return GroupedKV(groups, recurrent, kept)
