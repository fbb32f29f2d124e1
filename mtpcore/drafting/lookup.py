"""Drafts copied from earlier in the text: prompt lookup."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, Fit

__all__ = ["LOOKUP", "Lookup"]


class Lookup(Proposer):
    """Proposes what followed the last tokens where they stood before.

    Longer matches are tried first, as they are right more often; of several places of one length
    the latest is taken. It costs some microseconds, and drafts nothing where the last tokens are
    new: drafters after it have their turn then. (A. Saxena 2023, "Prompt lookup decoding".)

    Parameters
    ----------
    longest, shortest : int
        How many of the last tokens must match.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self.longest, self.shortest = longest, shortest

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> list[int]:
        """Return up to ``k`` tokens, none where the last ones are new."""
        if len(tokens) < 2:
            return []
        # A match ends before the last token, so that something follows it.
        ends, length = np.flatnonzero(tokens[:-1] == tokens[-1]), 1
        while length < min(self.longest, len(tokens) - 1):
            longer = ends[ends >= length]
            longer = longer[tokens[longer - length] == tokens[-1 - length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        if not len(ends) or length < self.shortest:
            return []
        begin = int(ends[-1]) + 1
        return [int(token) for token in tokens[begin : begin + k]]


LOOKUP = DrafterSpec(
    name="lookup",
    fit=Fit(),
    shape="proposer",
    proposer=lambda model: Lookup(),
    limit=16,
    acceptance=(0.0, 0.5),
    plugin="mtpcore",
    evidence="github.com/apoorvumang/prompt-lookup-decoding",
)
"""The declaration of n-gram lookup, which every model has under its name."""
