"""Drafters without a graph: anything that guesses tokens from tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import DraftTree

__all__ = ["Proposer"]


@runtime_checkable
class Proposer(Protocol):
    """Proposes the next tokens of a sequence; what it returns is not trusted.

    Derive from it, or give any object with such a method ``propose``. The whole history comes with
    every call, so a proposer keeps no state and need not know which drafts were rejected.
    """

    @abstractmethod
    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Sequence[int] | DraftTree:
        """Return up to ``k`` guesses of what follows, or a tree of them.

        Parameters
        ----------
        seq : int
            The sequence's number; it is used again for another text after the sequence's end.
        tokens : ndarray, int32[n]
            All tokens so far, the newest last; a copy.
        k : int
            How many guesses in a row are wanted; longer answers are cut, shorter and empty ones
            are fine.

        Returns
        -------
        sequence of int, or DraftTree
            Token ids of the target's vocabulary. From the first invalid id on they are dropped;
            of a tree its branch is. A tree is at most ``k`` deep.
        """
