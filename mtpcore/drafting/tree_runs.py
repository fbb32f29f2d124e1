"""Trees whose passes run in one go, where a backend does that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import TreeRun
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.outline import Outlines
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner, TreeRows, run_trees

__all__ = ["Grown", "PassRows", "can_grow_at_once", "grow_at_once"]

Grown = tuple[DraftTree, bool]
"""A tree, and whether the rows are finite that its nodes would be run with."""


def can_grow_at_once(runner: GraphRunner, jobs: Sequence[DraftJob]) -> bool:
    """Say whether it is worth a try: a processor changes logits on the host."""
    return runner.plan.grows_trees and not any(job.processor for job in jobs)


def grow_at_once(
    passes: Sequence[TreeRows],
    jobs: Sequence[DraftJob],
    joined: Outlines,
    verify: Verify | None,
    *,
    recycle: Mapping[str, str],
    token_ids: NDArray[np.int32] | None,
    n_tokens: int,
    keeps_first: bool,
) -> list[Grown] | None:
    """Return the tree of each job, or None where they have to grow level by level.

    What verifies them may follow, as behind other draft runs. For the rest see ``run_trees``.
    """
    shape, plan = joined.each[0].shape, passes[0].runner.plan
    places = [one.placeholder for one in joined.each]
    run = TreeRun(
        passes=(),
        branches=joined.branches,
        nodes=joined.nodes,
        order=joined.order,
        samplers=[job.sampler for job in jobs],
        history=[job.history for job in jobs],
        n_prompt=[job.n_prompt for job in jobs],
        p_min=[job.p_min for job in jobs],
        n_tokens=n_tokens,
        width=0 if shape.paths else shape.width,
        recycle=recycle,
        token_ids=token_ids,
        verification=verify and verify(plan, [job.seq for job in jobs], places),
    )
    grown = run_trees(passes, run, keeps_first=keeps_first)
    if grown is None:
        return None
    return [(DraftTree(one.tokens, one.parent), one.is_finite) for one in grown]


class PassRows:
    """The rows of a pass while they are collected, and the branches that get children by it."""

    def __init__(self) -> None:
        self.branches: list[int] = []
        self.outputs: list[int] = []
        self._tokens: list[int] = []
        self._seqs: list[int] = []
        self._places: list[int] = []
        self._parent: list[int] = []
        self._wanted: list[bool] = []

    def __len__(self) -> int:
        return len(self.branches)

    def add(
        self, seq: int, place: int, parent: int, *, branch: int, token: int = 0, n_ranked: int = 0
    ) -> int:
        """Add a row, and return its number.

        The row's token is that of ``branch``, or ``token`` if that is -1. Its logits rank the
        children of the next ``n_ranked`` branches.
        """
        self.outputs += [sum(self._wanted)] * n_ranked
        self.branches.append(branch)
        self._tokens.append(token)
        self._seqs.append(seq)
        self._places.append(place)
        self._parent.append(parent)
        self._wanted.append(n_ranked > 0)
        return len(self) - 1

    def rows(self, runner: GraphRunner, slots: Mapping[str, NDArray[np.float32]]) -> TreeRows:
        """Return them as a pass; of ``slots`` those rows matter that are not filled in."""
        n, missing = len(self), runner.program.slots().keys() - slots.keys()
        zeros = {
            slot: np.zeros((n, width), np.float32)
            for slot, width in runner.program.slots().items()
            if slot in missing
        }
        batch = Batch(
            self._tokens,
            seq=self._seqs,
            pos=self._places,
            parent=self._parent,
            outputs=self._wanted,
        )
        batch.slots = {**slots, **zeros}  # which stay where they are
        return TreeRows(runner, batch, self.branches, self.outputs)
