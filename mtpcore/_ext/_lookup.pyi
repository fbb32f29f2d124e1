"""Texts in which the last tokens of another, or their own, are looked up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_ORDERS: int
"""How many orders an index may have."""
MOST_PLACES: int
"""How many places of the last tokens are looked at."""

class TextIndex:
    """Finds where tokens like some last ones stand in a text; to append a token takes one step.

    It holds 4 bytes a token, and 12 for each order, times up to two for room to grow.

    Parameters
    ----------
    orders : sequence of int
        How many last tokens are found together, ascending, from 1; up to ``MOST_ORDERS`` of them.
    seed : int
        Of hashes, in [0, 2**64): what is found does not depend on it.

    Raises
    ------
    ValueError
        No such orders.
    """

    def __init__(self, orders: Sequence[int], seed: int) -> None: ...
    def __len__(self) -> int: ...
    def follow(self, tokens: NDArray[np.int32]) -> None:
        """Let it be of these tokens, int32[n]: of what differs from before, and appended, alone.

        Raises
        ------
        MemoryError
            There is none; it holds what it held.
        OverflowError
            More than 2**30 tokens.
        """

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append tokens, int32[n].

        Raises
        ------
        MemoryError, OverflowError
            As ``follow``.
        """

    def shared(self, tokens: NDArray[np.int32]) -> int:
        """Return with how many of its own tokens another text, int32[n], begins."""

    def tokens(self, begin: int) -> NDArray[np.int32]:
        """Return a copy of its tokens from ``begin`` on, int32[n - begin].

        Raises
        ------
        IndexError
            It has fewer.
        """

    def find(
        self, tokens: NDArray[np.int32], k: int, longest: int, repeats: bool = True
    ) -> tuple[list[int], int, int, int]:
        """Return what follows the best place for the last of ``tokens``, its own or others.

        Of the latest ``MOST_PLACES`` at which the same tokens end, as many as the longest order
        says that is found, the best has the longest match; of several, one whose next token follows
        most places; then the latest.

        Parameters
        ----------
        tokens : ndarray, int32[n]
        k : int
            Tokens to return; a negative one, which stands for no token, ends them.
        longest : int
            Tokens of a match that are counted.
        repeats : bool
            Whether tokens go on as they began where the text ends.

        Returns
        -------
        (list of int, int, int, int)
            What follows; the length of the match; the places; how many of these go on with the
            same token. No tokens and zeros where nothing is found.
        """

def find_in_sorted(
    text: NDArray[np.int32],
    places: NDArray[np.int32],
    tokens: NDArray[np.int32],
    orders: Sequence[int],
    k: int,
    longest: int,
) -> tuple[list[int], int, int, int]:
    """Return what ``TextIndex.find`` does, of a text whose places are sorted.

    Parameters
    ----------
    text : ndarray, int32[n]
    places : ndarray, int32[n]
        Each place, sorted by the tokens that end there, read backwards. Where they are something
        else, less is found.
    tokens, orders, k, longest
        As of ``TextIndex``; the text does not go on where it ends.

    Raises
    ------
    IndexError
        Not one place a token.
    ValueError
        No such orders.
    """
