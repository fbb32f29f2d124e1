"""Checks of what drafters return, which is untrusted: it is cut to a valid draft."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtpcore.boundary.arrays import is_integer
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.proposer import Proposal
from mtpcore.drafting.drafters import DraftJob
from mtpcore.errors import spell
from mtpcore.runtime.runner import GraphRunner

__all__ = ["DraftChecker"]

logger = logging.getLogger("mtpcore")


class DraftChecker:
    """Cuts what drafters return to valid drafts; counts what is cut, and warns once.

    ``invalid`` counts ids that are no tokens, ``paused`` sequences that no drafter can follow.

    Parameters
    ----------
    target : GraphRunner
    """

    def __init__(self, target: GraphRunner) -> None:
        self._target = target
        self.invalid = self.paused = 0
        self._warned = self._has_doubted = False

    def check(self, name: str, job: DraftJob, draft: Any) -> Proposal:
        """Return the valid part of a draft: its beginning, or a tree's upper part."""
        confidence: Any = None
        if isinstance(draft, Proposal):
            draft, confidence = draft.draft, draft.confidence
            if confidence is not None and not is_share(confidence):
                self._warn(name, job.seq, f"{spell(confidence)} is no probability: it is left out")
                confidence = None
        if isinstance(draft, DraftTree):
            return Proposal(self._check_tree(name, job, draft), confidence)
        return Proposal(self._check_chain(name, job.seq, draft, job.k), confidence)

    def _check_chain(self, name: str, seq: int, ids: Sequence[Any], k: int) -> list[int]:
        """Cut a drafter's output at the first id that is none, and at the length asked for."""
        n_vocab = self._target.model.hparams.n_vocab
        if len(ids) > k:
            self._warn(name, seq, f"more than {k} drafts; the others are dropped")
        good: list[int] = []
        for token in ids[:k]:
            if not is_integer(token) or not 0 <= token < n_vocab:
                self.invalid += 1
                self._warn(name, seq, f"{spell(token)} is no token; drafts end before it")
                break
            good.append(int(token))
        return good

    def _check_tree(self, name: str, job: DraftJob, tree: DraftTree) -> DraftTree:
        """Cut invalid ids with their descendants, then nodes that are too deep or have no room."""
        n_vocab, depth = self._target.model.hparams.n_vocab, tree.depth
        kept = np.zeros(len(tree), bool)
        for node, above in enumerate(tree.parent.tolist()):
            if above >= 0 and not kept[above]:
                continue
            token = int(tree.tokens[node])
            if depth[node] > job.k:
                self._warn(name, job.seq, f"more than {job.k} drafts in a row; the rest is dropped")
            elif not 0 <= token < n_vocab:
                self.invalid += 1
                self._warn(name, job.seq, f"{token} is no token; its branch of drafts is dropped")
            else:
                kept[node] = True
        kept[np.flatnonzero(kept)[self.room(len(job.history)) :]] = False
        return tree.select(kept)

    def room(self, n: int) -> int:
        """Return how many nodes a tree has at most, after n tokens."""
        llm = self._target
        return min(llm.n_ctx - n, llm.n_batch - 1, llm.longest_draft - 1)

    def pause(self, seq: int, place: int) -> None:
        """Count a sequence that no drafter can follow; warn of the first one."""
        if not self.paused:
            logger.warning(
                "sequence %d, place %d holds no token that a drafter could read; "
                "no drafts (said once, counted)",
                seq,
                place,
            )
        self.paused += 1

    def doubt(self, seq: int, what: str) -> None:
        """Warn of the first thing that a caller's function does wrong while drafts are made."""
        if not self._has_doubted:
            self._has_doubted = True
            logger.warning("sequence %d: %s (said once)", seq, what)

    def _warn(self, name: str, seq: int, what: str) -> None:
        """Warn of the first thing that a drafter does wrong."""
        if not self._warned:
            self._warned = True
            logger.warning("drafter %s, sequence %d: %s (said once)", name, seq, what)


def is_share(value: object) -> bool:
    """Say whether something is a number from 0 to 1."""
    return isinstance(value, float | int | np.floating | np.integer) and bool(0 <= value <= 1)
