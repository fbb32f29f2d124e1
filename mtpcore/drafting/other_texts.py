"""Texts that ended, in which lookup goes on finding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._lookup import TextIndex

__all__ = ["OtherTexts"]


class OtherTexts:
    """The latest tokens of texts that ended, at least half as many as there is room for.

    They fill one index; when it is full it becomes the older one, and what that held is forgotten.

    Parameters
    ----------
    room : int
        How many tokens are held at most; 0: none.
    orders, seed
        As of a ``TextIndex``.
    """

    def __init__(self, room: int, orders: list[int], seed: int) -> None:
        self.room, self._orders, self._seed = room, orders, seed
        self._older = self._newer = TextIndex(orders, seed)

    def add(self, tokens: NDArray[np.int32]) -> None:
        """Add the last tokens of a text, int32[n], as many as there is room for."""
        most = self.room // 2
        tokens = np.append(tokens[-most:], np.int32(-1))[-most:] if most else tokens[:0]
        if len(self._newer) + len(tokens) > most:
            self._older, self._newer = self._newer, TextIndex(self._orders, self._seed)
        self._newer.append(tokens)

    def find(
        self, tokens: NDArray[np.int32], k: int, longest: int
    ) -> tuple[list[int], int, int, int]:
        """Return what ``TextIndex.find`` does, of the longer match."""
        newer, older = (one.find(tokens, k, longest) for one in (self._newer, self._older))
        return older if older[1] > newer[1] else newer
