"""The protocol of memory: what a context keeps of each sequence, whatever its kind.

Every kind can append tokens, remove the newest ones, copy and remove a sequence, and hash what
it holds. Kinds differ in how far back they can rewind: ``allow_rewind`` tells a kind the longest
draft when contexts are linked, so that it can refuse then and not at the first rejection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

__all__ = ["LOG", "PAGE", "RANGE", "Memory", "Portable", "StateStore", "Store"]

PAGE = 64
"""Places in one page of paged memory."""

RANGE = 1024
"""Places whose sums attention makes in one go, from a multiple of it on."""

LOG = 17
"""Rows in the log of a recurrent state: a token and the sixteen drafts after it."""


class Memory(Protocol):
    """State kept for sequences 0..n_seq_max-1; places of a sequence count from ``first(seq)``."""

    @property
    def longest_rewind(self) -> int:
        """How many of the newest tokens can be removed, whatever happened before."""

    def allow_rewind(self, n: int) -> None:
        """Promise that up to ``n`` of the newest tokens can be removed.

        Raises
        ------
        CapacityError
            This kind cannot; nothing changed.
        """

    def first(self, seq: int) -> int:
        """Return the first stored place (equal to ``length`` where nothing is stored)."""

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Make room for rows ``[begin, end)`` of each sequence, all or none.

        ``begin`` is ``length(seq)``, or any place where the sequence is empty.

        Raises
        ------
        CapacityError
            Not enough pages or context; nothing changed.
        """

    def give_back(self, rows: dict[int, tuple[int, int]]) -> None:
        """Hold what was held before these rows were reserved, the last ones, run or not."""

    def nearest(self, seq: int, length: int) -> int:
        """Return the greatest place, at most ``length``, whose state recurrent layers have.

        That is ``length`` without recurrent layers, and the sequence's first place if no state
        before it is left.
        """

    def check_rewind(self, seq: int, length: int) -> None:
        """Raise CapacityError where ``rewind`` would."""

    def rewind(self, seq: int, length: int) -> None:
        """Remove the tokens from place ``length`` on.

        Raises
        ------
        CapacityError
            The tokens are older than this kind can remove; nothing changed.
        """

    def remove(self, seq: int) -> None:
        """Remove a sequence, and what was delivered to it."""

    def save(self) -> Any:
        """Return what ``restore`` needs to go back to what is held now.

        It holds until the next ``save``: memory has to keep only what the newest one needs.
        """

    def restore(self, saved: Any) -> None:
        """Hold again what was held at the last ``save``, whatever was cut off half-way since.

        It may be cut off itself and called again.
        """

    def keep(self, seq: int, begin: int, path: list[int]) -> None:
        """Keep of the rows stored from ``begin`` on only ``begin + path[i]``, as ``begin + i``.

        Where that was cut off since the last ``save``, the same call once more ends it.
        """

    def fork(self, seq: int, new: int) -> None:
        """Let the empty sequence ``new`` hold the same rows as ``seq``."""

    def bytes_of(self, seqs: Collection[int]) -> int:
        """Return how many bytes would be free if these sequences were removed."""

    def digest(self, seq: int) -> bytes:
        """Return a hash of the stored rows in the order of their places."""


class Portable(Protocol):
    """What a kind of memory offers so that its sequences can be saved, and written anew.

    Of grouped memory each part does so for itself.
    """

    def snapshot(self, seq: int) -> bytes:
        """Return a copy of rows that an act is to write over: what ``restore`` does not undo."""

    def refill(self, seq: int, rows: bytes) -> None:
        """Store ``rows``, a snapshot, at their places again, after ``restore``; may be repeated."""

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""

    def most_bytes(self, n_places: int) -> int:
        """Return how many bytes ``dump`` gives at most of a sequence of ``n_places``."""

    def dump(self, seq: int) -> Iterator[bytes]:
        """Yield, in pieces, all that ``load`` needs, wherever it is stored."""

    def load(self, seq: int, data: memoryview) -> None:
        """Let the empty sequence ``seq`` hold what ``dump`` gave, of memory of the same layers.

        Raises
        ------
        StateError
            The bytes are no such rows, or they do not fit; what changed until then ``restore``
            takes back.
        """


class Store(Protocol):
    """The rows of paged memory: pages of ``PAGE`` places for every memory layer."""

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""

    @property
    def place_bytes(self) -> int:
        """Bytes of one place in all layers together."""

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page, number ``src``, to page ``dst``."""

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy ``src_row`` of ``src_page`` to ``dst_row`` of ``dst_page`` in every layer."""

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places from row ``row`` of a ``page`` on.

        They are in the order place, layer, K then V, head.
        """

    def write(self, page: int, row: int, data: memoryview) -> None:
        """Store ``data``, places that ``read`` returned, from row ``row`` of a ``page`` on."""


class StateStore(Protocol):
    """States of recurrent layers, and logs of rows after them, in numbered slots.

    A slot holds a base, which is the state of every layer at some place, and ``LOG`` rows of a
    log: of each row what every layer makes its part of the state from.
    """

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""

    def settle(self, slot: int, rows: Sequence[int]) -> bytes:
        """Return the values of the state after a slot's base and these rows of its log.

        Layers come in the program's order, of each one the rows of a convolution or the matrices
        [k_width, v_width] of a delta rule.
        """

    @property
    def base_bytes(self) -> int:
        """Bytes of a slot's base, all layers together."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a log, all layers together."""

    def read_base(self, slot: int) -> bytes:
        """Return the values of a slot's base, layer by layer."""

    def write_base(self, slot: int, data: memoryview) -> None:
        """Store ``data``, which ``read_base`` returned, as the base of a ``slot``."""

    def read_row(self, slot: int, row: int) -> bytes:
        """Return the values of a ``row`` of a slot's log, layer by layer."""

    def write_row(self, slot: int, row: int, data: memoryview) -> None:
        """Store ``data``, which ``read_row`` returned, as a ``row`` of a slot's log."""
