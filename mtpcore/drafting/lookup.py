"""Drafts copied from earlier in the text: prompt lookup."""

from __future__ import annotations

import secrets
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore._ext._lookup import TextIndex
from mtpcore.boundary.arguments import read
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, Fit

__all__ = ["LOOKUP", "Lookup", "TextMatch"]

_MOST_TEXTS = 256
_Order = Annotated[int, Meta(ge=1, le=1 << 20, description="1..1048576")]


class TextMatch(NamedTuple):
    """What lookup found, and what can be known of it before it is verified.

    Attributes
    ----------
    draft : list of int
        What followed where the last tokens stood before; empty where they are new.
    length : int
        How many of the last tokens are the same there, up to the longest that is counted.
    places : int
        At how many places the last tokens were found, up to 64: two, four or eight of them (or so,
        see ``Lookup``), whichever is the most that is found.
    agreeing : int
        How many of these places go on with the draft's first token.
    """

    draft: list[int]
    length: int
    places: int
    agreeing: int

    @property
    def n_sure(self) -> int:
        """How many tokens of the draft are likely enough: one fewer than the match has.

        Two fewer where not most of the places go on alike.
        """
        is_disputed = 2 * self.agreeing <= self.places
        return max(0, self.length - 1 - is_disputed)


class Lookup(Proposer):
    """Proposes what followed the last tokens where they stood before.

    The place with the longest match is taken, as it is right most often; of several the one that
    goes on as most places do, and then the latest. The longer the match, the more is proposed. An
    index of each text grows with it, so that finding takes some microseconds in long texts, too.
    Nothing is drafted where the last tokens are new: drafters after it have their turn then.
    (A. Saxena 2023, "Prompt lookup decoding".)

    Parameters
    ----------
    shortest : int
        How many of the last tokens must match. Places are looked up by that many, by twice and by
        four times as many.
    longest : int
        Tokens of a match that are counted.

    Raises
    ------
    BatchError
        They are out of range.
    """

    def __init__(self, shortest: int = 2, longest: int = 32) -> None:
        least = read(shortest, _Order, "no length of a match")
        self._orders = [least, 2 * least, 4 * least]
        self._longest = max(least, read(longest, _Order, "no length of a match"))
        self._seed = secrets.randbits(64)
        self._texts: dict[int, TextIndex] = {}

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> list[int]:
        """Return up to ``k`` tokens, those that ``TextMatch.n_sure`` counts.

        On recorded texts (``benchmarks/lookup.py``) three of four of these are accepted.
        """
        found = self.find(seq, tokens, k)
        return found.draft[: found.n_sure]

    def find(self, seq: int, tokens: NDArray[np.int32], k: int) -> TextMatch:
        """Return all of what followed, up to ``k`` tokens, and what is known of it.

        The index of a sequence is compared with its text at every call, and follows that wherever
        it went. Those of the last 256 sequences are kept.

        Parameters
        ----------
        seq, tokens, k
            As of a ``Proposer``.
        """
        index = self._texts.get(seq)
        if index is None:
            index = TextIndex(self._orders, self._seed)
        index.follow(tokens)
        self._texts.pop(seq, None)
        self._texts[seq] = index  # the one used last stands last
        if len(self._texts) > _MOST_TEXTS:
            self._texts.pop(next(iter(self._texts)))
        return TextMatch(*index.find(tokens, k, self._longest))


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
