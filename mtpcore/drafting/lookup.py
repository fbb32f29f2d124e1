"""Drafts copied from earlier in the text: prompt lookup."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore._ext._lookup import TextIndex, find_in_sorted
from mtpcore.boundary.arguments import expect, read, read_below
from mtpcore.boundary.arrays import integers
from mtpcore.declarations.proposer import Proposal, Proposer
from mtpcore.declarations.spec import DrafterSpec, Fit
from mtpcore.drafting.lookup_texts import LookupTexts
from mtpcore.drafting.other_texts import OtherTexts

__all__ = ["LOOKUP", "Lookup", "TextMatch"]

_MOST_INDEXES = 256
_END = 1 << 31
_INT32 = np.dtype(np.int32)
_MOST_OTHERS = 1 << 28
_MOST_MEANWHILE = 16
"""Texts of other sequences that are looked into, those that grew last: each takes a search."""
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

    @property
    def confidence(self) -> float:
        """How probable it is that the first token is right: the odds that fit six kinds of texts.

        They are in proportion to the length and to the places that agree, over those that do not.
        (``benchmarks/lookup.py`` shows how often such drafts are right.)
        """
        good = self.length * self.agreeing
        return good / (good + 2 * (1 + self.places - self.agreeing))


class Lookup(Proposer):
    """Proposes what followed the last tokens where they stood before.

    The place with the longest match is taken, as it is right most often; of several the one that
    goes on as most places do, and then the latest. The longer the match, the more is proposed. An
    index of each text grows with it, so that finding takes some microseconds in long texts, too.
    Nothing is drafted where the last tokens are new: drafters after it have their turn then.
    (A. Saxena 2023, "Prompt lookup decoding".)

    Parameters
    ----------
    texts : sequence of LookupTexts
        Other texts, which are looked into as well: a longer match there counts more.
    others : int
        How many tokens of texts that ended are looked into, too, and with them those of up to 16
        sequences that are written meanwhile, whoever asked for them; 0: none of either. A text has
        ended where another one takes its sequence's place. How fast a text comes may tell what
        others say.
    shortest : int
        How many of the last tokens must match. Places are looked up by that many, by twice and by
        four times as many.
    longest : int
        Tokens of a match that are counted.

    Raises
    ------
    BatchError
        No texts, or numbers that are out of range.
    """

    def __init__(
        self,
        texts: Sequence[LookupTexts] = (),
        *,
        others: int = 0,
        shortest: int = 2,
        longest: int = 32,
    ) -> None:
        given = read(texts, list[Any], "no texts to look into", wanted="a list of LookupTexts")
        self.texts = [expect(one, LookupTexts, "no texts to look into") for one in given]
        least = read(shortest, _Order, "no length of a match")
        self._orders = [least, 2 * least, 4 * least]
        self._longest = max(least, read(longest, _Order, "no length of a match"))
        self._seed = secrets.randbits(64)
        room = read_below(others, _MOST_OTHERS, "no number of tokens")
        self._others = OtherTexts(room, self._orders, self._seed)
        self._indexes: dict[int, TextIndex] = {}

    def __reduce__(self) -> tuple[partial[Lookup], tuple[()]]:
        settings = {"shortest": self._orders[0], "longest": self._longest}
        return partial(Lookup, self.texts, others=self._others.room, **settings), ()

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Proposal:
        """Return up to ``k`` tokens, those that ``TextMatch.n_sure`` counts.

        On recorded texts (``benchmarks/lookup.py``) three of four of these are accepted.

        Parameters
        ----------
        seq, k
            As of ``find``.
        tokens : ndarray, int32[n]
            All tokens so far, the newest last.

        Raises
        ------
        BatchError
            As ``find``.
        """
        found = self.find(seq, tokens, k)
        if not found.draft:
            return Proposal([], 0.0)
        return Proposal(found.draft[: found.n_sure], found.confidence)

    def find(self, seq: int, tokens: NDArray[np.int32], k: int) -> TextMatch:
        """Return all of what followed, up to ``k`` tokens, and what is known of it.

        The index of a sequence is compared with its text at every call, and follows that wherever
        it went. Those of the last 256 sequences are kept.

        Parameters
        ----------
        seq : int
            The sequence's number.
        tokens : ndarray, int32[n]
            All tokens so far, the newest last; they are only looked at.
        k : int
            How many are wanted.

        Raises
        ------
        BatchError
            No such numbers.
        """
        if not (type(seq) is type(k) is int and 0 <= seq < _END and 0 <= k < _END):
            seq, k = read_below(seq, _END, "no such sequence"), read_below(k, _END, "no length")
        is_plain = type(tokens) is np.ndarray and tokens.dtype is _INT32 and tokens.ndim == 1
        if not (is_plain and tokens.flags.c_contiguous):  # what compiled code reads
            tokens = integers(tokens, "tokens of a text").ravel()
        index = self._indexes.pop(seq, None) or TextIndex(self._orders, self._seed)
        if self._others.room:
            self._keep(index, index.shared(tokens))
        index.follow(tokens)
        self._indexes[seq] = index  # the one used last stands last
        if len(self._indexes) > _MOST_INDEXES:
            forgotten = self._indexes.pop(next(iter(self._indexes)))
            if self._others.room:
                self._keep(forgotten, 0)
        found = TextMatch(*index.find(tokens, k, self._longest))
        if self._others.room or self.texts:
            for other in self._find_elsewhere(tokens, k):
                found = other if other.length > found.length else found
        return found

    def _find_elsewhere(self, tokens: NDArray[np.int32], k: int) -> Iterator[TextMatch]:
        """Yield what is found in other texts than the last one that was looked into."""
        if self._others.room:
            for index in islice(reversed(self._indexes.values()), 1, 1 + _MOST_MEANWHILE):
                yield TextMatch(*index.find(tokens, k, self._longest, repeats=False))
            yield TextMatch(*self._others.find(tokens, k, self._longest))
        for texts in self.texts:
            asked = tokens, self._orders, k, self._longest
            yield TextMatch(*find_in_sorted(texts.tokens, texts.places, *asked))

    def _keep(self, index: TextIndex, n_same: int) -> None:
        """Keep what a text has after its first tokens, where that is enough to be found."""
        context = self._orders[-1]
        if len(index) - n_same > context:
            self._others.add(index.tokens(max(0, n_same - context)))


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
