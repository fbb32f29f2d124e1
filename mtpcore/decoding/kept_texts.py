"""Kept texts: what the prefix cache has of finished ones, found, saved, loaded and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from mtpcore.acts.guards import act
from mtpcore.errors import BatchError, BusyError, spell

if TYPE_CHECKING:
    from mtpcore.cross import Cross
    from mtpcore.runtime.saving import StateSource

__all__ = ["KeptTexts"]


class KeptTexts:
    """Texts that were written, each in its sequence, from which later ones may go on.

    Parameters
    ----------
    cross : Cross
        One that generators run on, which claim sequences and release them.
    """

    def __init__(self, cross: Cross) -> None:
        self.guard, self._cross = cross.guard, cross

    def lengths(self) -> list[int]:
        """Return how many tokens each sequence holds, of a finished text or another one."""
        return [*map(int, self._cross.llm.runner.lengths)]

    def busy(self) -> set[int]:
        """Return the sequences in which texts are being written."""
        return {*range(self._cross.llm.n_seq_max)} - {*self._cross.owners.free()}

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the sequence whose text begins with these tokens; their last one may be pending.

        The one that was used last, where there are several; None: there is none.
        """
        owners, known = self._cross.owners, self._cross.speculation.states.known
        wanted = np.array(tokens[:-1], np.int32)
        found = [seq for seq in owners.known() if np.array_equal(known(seq)[: len(wanted)], wanted)]
        return max(found, key=owners.last_used, default=None)

    def save(self, seq: int, path: str | PathLike[str]) -> int:
        """Save what every role stores of a text, as ``Cross.save``; return how many tokens it has.

        Raises
        ------
        BatchError, BusyError, StateError
            No such sequence, nothing in it, a text is being written there; or the file cannot be
            written.
        """
        self._claim(seq)
        try:
            self._cross.save(seq, path)
            return self.lengths()[seq]
        finally:
            self._cross.owners.release(seq)

    def load(self, seq: int, source: StateSource) -> int:
        """Let a sequence hold a saved text, in place of what it holds; return how many tokens.

        Where that fails the sequence is empty: it was there to spare work, and no text needs it.

        Raises
        ------
        BatchError, BusyError, StateError
            No such sequence, a text is being written there; or a state that ``Cross.load`` refuses.
        """
        self._claim(seq, may_be_empty=True)
        try:
            self._cross.remove(seq)
            self._cross.load(seq, source)
            return self.lengths()[seq]
        finally:
            self._cross.owners.release(seq)

    def forget(self, seq: int) -> int:
        """Empty a sequence; return how many tokens it had.

        Raises
        ------
        BatchError, BusyError
            No such sequence, or a text is being written there.
        """
        self._claim(seq, may_be_empty=True)
        try:
            n_tokens = self.lengths()[seq]
            self._cross.remove(seq)
            return n_tokens
        finally:
            self._cross.owners.release(seq)

    @act
    def _claim(self, seq: int, *, may_be_empty: bool = False) -> None:
        """Keep a sequence from requests until it is released."""
        seq, owners = self._cross.llm.check_seq(seq), self._cross.owners
        if seq not in owners.free() and owners.find(self) != seq:
            raise BusyError(
                "a text is being written in the sequence",
                where=f"sequence {spell(seq)}",
                fix="ask again when it has ended",
            )
        if not may_be_empty and not self._cross.llm.runner.lengths[seq]:
            raise BatchError("the sequence holds no text", where=f"sequence {spell(seq)}")
        owners.claim(seq, self)
