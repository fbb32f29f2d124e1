"""Drafters without a graph: what guesses tokens from tokens, or from hidden rows too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft, DraftTree

__all__ = ["Ask", "FedProposer", "Proposal", "Proposer"]


class Proposal(msgspec.Struct, frozen=True):
    """A draft, and how sure of it the one is that proposes it.

    With ``draft="auto"`` it is learnt how often drafts of such a confidence are accepted, and they
    are verified as deep as that pays.

    Attributes
    ----------
    draft : sequence of int, or DraftTree
    confidence : float, optional
        How probable it is that the first token is the right one, 0 .. 1, as far as is known.
    """

    draft: Draft
    confidence: float | None = None


@runtime_checkable
class Proposer(Protocol):
    """Proposes the next tokens of a sequence; what it returns is not trusted.

    Derive from it, or give any object with such a method ``propose``. The whole history comes with
    every call, so a proposer keeps no state and need not know which drafts were rejected.
    """

    @abstractmethod
    def propose(
        self, seq: int, tokens: NDArray[np.int32], k: int
    ) -> Sequence[int] | DraftTree | Proposal:
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
        sequence of int, DraftTree, or Proposal
            Token ids of the target's vocabulary. From the first invalid id on they are dropped;
            of a tree its branch is. A tree is at most ``k`` deep. A ``Proposal`` says besides how
            sure it is.
        """


class Ask(Protocol):
    """What a ``FedProposer`` is asked for one sequence."""

    @property
    def seq(self) -> int:
        """The sequence's number; it is used again for another text after the sequence's end."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens so far, int32[n], the pending one last; a copy."""

    @property
    def k(self) -> int:
        """How many drafts in a row are wanted at most."""

    @property
    def sampling(self) -> Any:
        """The settings with which the target will choose, a ``Sampling``."""

    def rows(self, slot: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        """Return the target's rows of a feed, float32[end - begin, width].

        Row i is of token i. There is one of every token but the pending one, n - 1 in all; all of
        them are finite.

        Parameters
        ----------
        slot : str
            The feed's.
        begin, end : int
            Which rows; default: all.

        Returns
        -------
        ndarray, float32[end - begin, width]
        """

    def choose(
        self,
        logits: NDArray[np.float32],
        drafts: Sequence[int] = (),
        token_ids: NDArray[np.int32] | None = None,
    ) -> int | None:
        """Choose the token after ``tokens`` and ``drafts``, with the target's settings and noise.

        Parameters
        ----------
        logits : ndarray, float32[n]
            What the proposer expects of the target's logits.
        drafts : sequence of int
            The drafts before it.
        token_ids : ndarray, int32[n], optional
            The token of each logit, where that is not its index.

        Returns
        -------
        int or None
            A token id; None where it is less probable than the caller wants drafts to be, so that
            they end here.
        """

    def rank(
        self,
        logits: NDArray[np.float32],
        n: int,
        drafts: Sequence[int] = (),
        token_ids: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32]:
        """Return the best tokens, as for a tree; ``choose`` would choose the first.

        Parameters
        ----------
        logits, drafts, token_ids
            As in ``choose``.
        n : int
            How many are wanted; cuts may leave fewer.

        Returns
        -------
        ndarray, int32[m]
            Token ids, best first.
        """


@runtime_checkable
class FedProposer(Protocol):
    """Proposes the next tokens from tokens and hidden rows, by a program of its own.

    A plugin declares it with the shape ``proposer`` and the feeds that it reads. It may run
    anything, a network in another framework too. Nothing tells it which drafts were rejected: what
    it computed before stays true as far as the tokens are the same.
    """

    @abstractmethod
    def draft(self, ask: Ask) -> Sequence[int] | DraftTree | Proposal:
        """Return up to ``ask.k`` drafts, or a tree of them; what it returns is not trusted."""
