"""What gives the slots of a graph their rows, where a batch does not bring them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import Pairing
from mtpcore.links.inbox import Inbox
from mtpcore.runtime.arrival import join

__all__ = ["InboxSource", "ZeroSource"]

_FEW = 64
"""Rows up to which lists are faster than arrays: those of drafts, not those of prompts."""


class ZeroSource:
    """Gives a slot zeros: what a drafter's own state begins with, or stands for rows to come.

    Parameters
    ----------
    width : int
    """

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, seq: NDArray[np.int32], place: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return float32[n, width] for sequences and places int32[n]."""
        return np.zeros((len(seq), self._width), np.float32)

    def finite_until(self, seq: int, places: range) -> int:
        """Return the end of these places: every row is finite."""
        return places.stop


class InboxSource:
    """Gives a slot its rows: from an inbox, shifted as the pairing says and ``back`` rows more."""

    def __init__(self, box: Inbox, pairing: Pairing, back: int = 0) -> None:
        self._box, self._shift = box, int(pairing == "next-token") + back

    def __call__(self, seq: NDArray[np.int32], place: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return float32[n, width] for sequences and places int32[n].

        Raises
        ------
        LinkError
            A row is missing.
        """
        begins = _begins(seq)
        runs = [
            self._rows(int(seq[begin]), int(place[begin]), int(place[end - 1]) + 1)
            for begin, end in zip(begins, [*begins[1:], len(seq)], strict=False)
        ]
        return join(runs, self._box.width, self._box.make)

    def _rows(self, seq: int, begin: int, end: int) -> NDArray[np.float32]:
        return self._box.get(seq, begin - self._shift, end - self._shift)

    def finite_until(self, seq: int, places: range) -> int:
        """Return the first of these places whose row is not finite, or their end.

        Raises
        ------
        LinkError
            A row is missing.
        """
        begin, end = places.start - self._shift, places.stop - self._shift
        found = self._box.finite_until(seq, begin, max(begin, end)) + self._shift
        return min(found, places.stop)


def _begins(seq: NDArray[np.int32]) -> list[int]:
    """Return the rows at which another sequence begins than the one before."""
    if len(seq) > _FEW:
        return np.flatnonzero(np.diff(seq, prepend=-1)).tolist()
    seqs = seq.tolist()  # of a few rows, as a draft has, faster
    return [i for i, one in enumerate(seqs) if not i or one != seqs[i - 1]]
