"""Trees whose passes run in one go, where a backend does that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import GrownTree, TreePass, TreeRun
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.outline import Outlines
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["Grown", "PassRows", "TreeRows", "can_grow_at_once", "grow_at_once"]

Grown = tuple[DraftTree, bool]
"""A tree, and whether the rows are finite that its nodes would be run with."""


class TreeRows(NamedTuple):
    """A pass of trees before it is checked; see ``TreePass``."""

    runner: GraphRunner
    batch: Batch
    rows: Sequence[int]
    outputs: Sequence[int]


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

    What verifies them may follow, as behind schedules. For the rest see ``_run_trees``.
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
    grown = _run_trees(passes, run, keeps_first=keeps_first)
    if grown is None:
        return None
    return [(DraftTree(one.tokens, one.parent), one.is_finite) for one in grown]


def _run_trees(
    passes: Sequence[TreeRows], run: TreeRun, *, keeps_first: bool
) -> list[GrownTree] | None:
    """Grow trees, if the backend does that in one go; ``run`` comes without its passes.

    What the first batch brings is kept if ``keeps_first``; no other row is, and none where nothing
    was run.
    """
    room: dict[GraphRunner, dict[int, tuple[int, int]]] = {}
    before: dict[tuple[GraphRunner, int], int] = {}
    taken = []
    for number, (runner, batch, rows, outputs) in enumerate(passes):
        checked, ranges, _ = runner.admit(runner.bring(batch))
        if min(rows) >= 0:  # what is recycled is filled in
            known = {slot: x for slot, x in checked.slots.items() if slot not in run.recycle}
            checked = msgspec.structs.replace(checked, slots=known)
        taken.append(TreePass(runner.plan, runner.memory, checked, rows, outputs))
        of_runner = room.setdefault(runner, {})
        for seq, (begin, end) in ranges.items():
            before.setdefault((runner, seq), runner.lengths[seq])
            least, most = of_runner.get(seq, (begin, end))
            of_runner[seq] = min(least, begin), max(most, end)
            if keeps_first and not number and runner.memory:
                runner.lengths[seq] = end
    for runner, of_runner in room.items():
        if runner.memory:
            runner.memory.reserve(of_runner)
    grown = taken[0].plan.grow(msgspec.structs.replace(run, passes=taken))
    for (runner, seq), length in before.items():
        if grown is None:
            runner.lengths[seq] = length
        if runner.memory:
            runner.memory.rewind(seq, runner.lengths[seq])
    return grown


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
