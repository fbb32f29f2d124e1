"""Drafts copied from earlier in the text: prompt lookup."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import DrafterSpec, Fit, Proposer, hookimpl

__all__ = ["LOOKUP", "Lookup"]


class Lookup(Proposer):
    """Proposes what followed the last tokens where they stood before.

    Longer matches are tried first, as they are right more often; of several places of one length
    the latest is taken.

    Parameters
    ----------
    longest, shortest : int
        How many of the last tokens must match.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"wanted 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest = longest, shortest

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Sequence[int]:
        """Return up to ``k`` tokens, none where the last ones are new."""
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            # The match must end before the last token, so that something follows it.
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], n)
            places = np.flatnonzero((windows == tokens[-n:]).all(axis=1))
            if len(places):
                begin = int(places[-1]) + n
                return [int(token) for token in tokens[begin : begin + k]]
        return []


def make(model: Any) -> Proposer:
    """Return a proposer for a model; it needs nothing of it."""
    return Lookup()


LOOKUP = DrafterSpec(
    name="ngram",
    fit=Fit(),
    shape="proposer",
    proposer=make,
    limit=16,
    acceptance=(0.0, 0.5),
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the proposer."""
    return [LOOKUP]
