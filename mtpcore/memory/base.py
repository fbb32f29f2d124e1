"""The protocol of memory: what a context keeps of each sequence, whatever its kind.

Every kind can append tokens, remove the newest ones, copy and remove a sequence, and hash what
it holds. Kinds differ in how far back they can rewind: ``allow_rewind`` tells a kind the longest
draft when contexts are linked, so that it can refuse then and not at the first rejection.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

__all__ = ["PAGE", "RANGE", "Memory", "Store"]

PAGE = 64
"""Places in one page of paged memory."""

RANGE = 1024
"""Places whose sums attention makes in one go, from a multiple of it on."""


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

    def check_rewind(self, seq: int, length: int) -> None:
        """Raise CapacityError where ``rewind`` would."""

    def rewind(self, seq: int, length: int) -> None:
        """Remove the tokens from place ``length`` on.

        Raises
        ------
        CapacityError
            The tokens are older than this kind can remove; nothing changed.
        """

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

    def digest(self, seq: int) -> bytes:
        """Return a hash of the stored rows in the order of their places."""


class Store(Protocol):
    """The rows behind paged memory: pages of ``PAGE`` places for every memory layer."""

    @property
    def layers(self) -> Collection[int]:
        """Which memory layers have their rows here."""

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""

    def copy(self, src: int, dst: int) -> None:
        """Copy a whole page, number ``src``, to page ``dst``."""

    def move(self, src_page: int, src_row: int, dst_page: int, dst_row: int) -> None:
        """Copy ``src_row`` of ``src_page`` to ``dst_row`` of ``dst_page`` in every layer."""

    def read(self, page: int, row: int, n: int) -> bytes:
        """Return the stored bytes of n places from row ``row`` of a ``page`` on.

        They are in the order place, layer, K then V, head.
        """
