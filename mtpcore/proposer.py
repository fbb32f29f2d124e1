"""Drafters without a graph: anything that guesses tokens from tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Proposer"]


@runtime_checkable
class Proposer(Protocol):
    """Proposes the next tokens of a sequence; what it returns is not trusted.

    The base to derive from, and a protocol: any object with a fitting ``propose`` will do. The
    whole history comes with every call, so a proposer needs no memory of its own and need not be
    told of rejections.
    """

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Sequence[int]:
        """Return up to ``k`` guesses of what follows.

        Parameters
        ----------
        seq : int
            The sequence's number; a number is used again once its sequence has gone.
        tokens : ndarray, int32[n]
            All tokens so far, the newest last; a copy.
        k : int
            How many guesses are wanted; longer answers are cut, shorter and empty ones are fine.

        Returns
        -------
        sequence of int
            Token ids of the target's vocabulary. From the first invalid id on they are dropped.
        """
        raise NotImplementedError
