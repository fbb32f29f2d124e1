"""Simulated acceptance: what drafting would cost and gain at a given acceptance rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from mtpcore.boundary.arguments import Finite, expect, read
from mtpcore.boundary.arrays import integers
from mtpcore.cross import Cross, Draft
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.proposer import Proposal
from mtpcore.drafting.drafters import Drafter, DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.errors import SamplingError

__all__ = ["SimulatedAcceptance"]

I32 = NDArray[np.int32]

_SimulatedLength = Annotated[int, Meta(ge=0, le=1 << 16)]


def _read(value: object, kind: Any, what: str, wanted: str) -> Any:
    where = "SimulatedAcceptance"
    return read(value, kind, what, where=where, wanted=wanted, error=SamplingError)


class SimulatedAcceptance:
    """Lets drafts of a known text be accepted at chosen rates.

    Drafters run as usual, so that a round takes as long as usual. Then their drafts are replaced by
    right or wrong tokens: the target's text is known, because it was decoded without drafts before.
    The target verifies as usual, so the text is the same; only the acceptance rate is another.

    Parameters
    ----------
    rates : sequence of float
        ``rates[i]`` is the share of steps in which draft i + 1 is accepted: in [0, 1], not rising.
    seed : int
        Of the chance by which a step's drafts are accepted.

    Attributes
    ----------
    text : int32[n]
        A prompt and what follows it. Drafts for other texts stay as they are.

    Raises
    ------
    SamplingError
        Rates out of range.
    """

    def __init__(self, rates: Sequence[float], *, seed: int = 0) -> None:
        self.rates: tuple[float, ...] = _read(rates, tuple[Finite, ...], "no rates", "numbers")
        if not all(0 <= b <= a <= 1 for a, b in zip((1.0, *self.rates), self.rates, strict=False)):
            raise SamplingError(
                "rates do not rise", where="SimulatedAcceptance", wanted="0..1", got=self.rates
            )
        self._random = random.Random(_read(seed, int, "no seed", "an int"))
        self.text: I32 = np.zeros(0, np.int32)

    @classmethod
    def of_length(
        cls, length: float, n: int, *, longest: int = 0, seed: int = 0
    ) -> SimulatedAcceptance:
        """Return rates r, r**2, ..., r**n whose sum is ``length`` - 1.

        Parameters
        ----------
        length : float
            Tokens of a step on average, the target's own included: 1 .. n + 1.
        n : int
            The draft length for which this holds.
        longest : int
            Longer drafts go on with r**(n + 1), ..., up to this length.
        seed : int
            As of the class.

        Raises
        ------
        SamplingError
            The length is out of range.
        """
        n = _read(n, _SimulatedLength, "bad draft length", "1..65536")
        longest = _read(longest, _SimulatedLength, "bad draft length", "0..65536")
        length = _read(length, Finite, "bad length", f"1..{n + 1}")
        if not 1 <= length <= n + 1:
            raise SamplingError(
                "bad length", where="SimulatedAcceptance", wanted=f"1..{n + 1}", got=length
            )
        low, high = 0.0, 1.0
        for _ in range(53):  # halving exhausts a float
            rate = (low + high) / 2
            if sum(rate**i for i in range(1, n + 1)) < length - 1:
                low = rate
            else:
                high = rate
        return cls([high**i for i in range(1, max(n, longest) + 1)], seed=seed)

    def expect(self, text: ArrayLike) -> None:
        """Say which text is drafted next.

        Parameters
        ----------
        text : array_like of int, shape (n,)
            A prompt, and the tokens that plain decoding with the same settings wrote after it.

        Raises
        ------
        BatchError
            No token ids.
        """
        self.text = integers(text, "a text to draft").reshape(-1)

    def install(self, cross: Cross) -> None:
        """Simulate acceptance for the drafters of a Cross from now on.

        Raises
        ------
        BatchError
            No Cross.
        """
        speculation = expect(cross, Cross, "drafters are a Cross's").speculation
        speculation.drafters = {
            name: _SimulatedDrafter(drafter, self) for name, drafter in speculation.drafters.items()
        }

    def correct(self, history: I32, draft: Draft) -> Draft:
        """Return a draft of what follows ``history`` int32[n], as much of it right as is due."""
        n = len(history)
        if not len(draft) or not np.array_equal(self.text[:n], history):
            return draft
        is_tree = isinstance(draft, DraftTree)
        tree = draft if isinstance(draft, DraftTree) else _chain(draft)
        truth = self.text[n : n + int(tree.depth.max())].tolist()
        tokens = _mark(tree, truth, self._count(len(truth)))
        return DraftTree(tokens, tree.parent) if is_tree else tokens

    def _count(self, most: int) -> int:
        """Return how many drafts in a row are accepted in a step."""
        n, before = 0, 1.0
        for rate in self.rates[:most]:
            if not before or self._random.random() >= rate / before:
                break
            n, before = n + 1, rate
        return n


def _chain(draft: Sequence[int]) -> DraftTree:
    return DraftTree(draft, np.arange(-1, len(draft) - 1))


def _mark(tree: DraftTree, truth: Sequence[int], n_right: int) -> list[int]:
    """Return a tree's tokens, of which exactly ``n_right`` levels of its first branch are true."""
    tokens: list[int] = tree.tokens.tolist()
    at = -1
    for level, token in enumerate(truth):
        children = tree.children(at)
        if not children:
            break
        held = {tokens[child]: child for child in children}
        if level == n_right:
            if token in held:
                tokens[held[token]] = min({*range(len(held) + 1)} - held.keys())
            break
        at = children[0]
        if token in held:  # siblings change places
            tokens[held[token]] = tokens[at]
        tokens[at] = token
    return tokens


class _SimulatedDrafter(Drafter):
    """A drafter whose drafts are corrected; everything else is passed on to it."""

    def __init__(self, drafter: Drafter, acceptance: SimulatedAcceptance) -> None:
        self.name, self.runners, self.spec = drafter.name, drafter.runners, drafter.spec
        self.reads_rows, self.reads_text = drafter.reads_rows, drafter.reads_text
        self.first, self._drafter, self._acceptance = drafter.first, drafter, acceptance

    @property
    def paused(self) -> int:
        """The drafter's."""
        return self._drafter.paused

    @paused.setter
    def paused(self, n: int) -> None:
        self._drafter.paused = n

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Let the drafter draft, without a verification after it, and correct its drafts."""
        history = {job.seq: job.history for job in jobs}
        drafts = self._drafter.draft(jobs)
        return {
            seq: self._acceptance.correct(
                history[seq], draft.draft if isinstance(draft, Proposal) else draft
            )
            for seq, draft in drafts.items()
        }

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """As the drafter does."""
        self._drafter.settle(seq, history, rows)

    def rewind(self, seq: int, n: int) -> None:
        """As the drafter does."""
        self._drafter.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """As the drafter does."""
        self._drafter.fork(seq, new)

    def remove(self, seq: int) -> None:
        """As the drafter does."""
        self._drafter.remove(seq)
