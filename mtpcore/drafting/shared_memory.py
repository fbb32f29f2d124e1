"""Drafting with a graph that reads the target's memory and has none of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.schedule import Pass
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.base import RoundDrafter, RoundRows
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_levels
from mtpcore.drafting.upstream import finite_places
from mtpcore.errors import LinkError
from mtpcore.runtime.runner import GraphRunner

__all__ = ["SharedMemoryDrafter"]

I32 = NDArray[np.int32]


class SharedMemoryDrafter(RoundDrafter):
    """A drafter's graph that attends to what the target has stored.

    Each round begins with the pending token and the target's row before it. All drafts of a round
    are made at the pending token's position, from all that the target has stored: tokens of the
    round are seen by what is recycled alone. Nothing is stored, so that there is nothing to keep in
    step with the target, to take back, to copy or to save.

    Parameters
    ----------
    name : str
        The role.
    runner : GraphRunner
        Of the drafter's graph.
    target : GraphRunner
        Whose memory it reads.

    Raises
    ------
    LinkError
        The declaration asks for what this loop cannot do, or the graph runs on another backend than
        the target; as ``read_vocabulary``.
    """

    round_size = 1

    def __init__(self, name: str, runner: GraphRunner, target: GraphRunner) -> None:
        spec = _check(runner, target)
        inputs = RoundInput(
            programs=[runner.program],
            feeds={feed.slot: (feed.recycle,) for feed in spec.feeds if feed.recycle},
            step=0,
        )
        super().__init__(name, {name: runner}, draft_levels, inputs)
        self._target = target
        runner.lent = target.memory

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to k tokens for each job; sequences leave the loop one by one."""
        # Rows that see what is ahead would see places that are reserved for a verification.
        return super().draft(jobs, None if self.runner.program.sees_ahead else verify)

    def _begin(self, jobs: Sequence[DraftJob]) -> list[DraftJob]:
        """Return the jobs of which something is stored, and the pending token's row is finite."""
        active = []
        for job in jobs:
            pending = len(job.history) - 1
            places = range(pending, pending + 1)
            if pending and finite_places(self.runner, self.spec.feeds, job.seq, places):
                active.append(job)
            elif pending:
                self._pause(job.seq, pending)
        return active

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        given = Pass(plan=self.runner.plan, memory=self.runner.lent, batch=self.batch(jobs))
        wanted = [job.k for job in jobs]
        return RoundRows(wanted, wanted, [given], [])

    def batch(self, jobs: Sequence[DraftJob]) -> CheckedBatch:
        """Return the first rows of a round: the pending tokens, at the newest stored places.

        A row's place says what it sees: what is stored up to there, or the window that ends there.
        """
        seq = np.array([job.seq for job in jobs], np.int32)
        pending = np.array([len(job.history) - 1 for job in jobs], np.int32)
        positions = [self._target.sequences.next_position(job.seq) for job in jobs]
        program = self.runner.program
        return CheckedBatch(
            tokens=np.array([job.history[-1] for job in jobs], np.int32),
            positions=np.repeat(np.array(positions, np.int32)[:, None], program.n_axes, axis=1),
            seq=seq,
            place=pending - 1,
            outputs=np.arange(len(jobs), dtype=np.int32),
            slots={slot: self.runner.sources[slot](seq, pending) for slot in program.slots()},
        )


def _check(runner: GraphRunner, target: GraphRunner) -> DrafterSpec:
    """Return the drafter's declaration; refuse what this loop cannot follow."""
    spec = runner.drafter
    assert spec is not None
    where = f"drafter {spec.full_name}"
    if spec.shape != "chain":
        raise LinkError(
            "a drafter that reads the target's memory drafts a chain",
            where=where,
            wanted="shape 'chain'",
            got=f"shape {spec.shape!r}",
            fix="leave tree= (--draft-tree) out",
        )
    if runner.program.memory or runner.program.states:
        raise LinkError(
            "a drafter that reads the target's memory stores nothing of its own",
            where=where,
            wanted="g.attend(...), which reads a layer that the target stores",
            got="a graph with layers of its own",
            fix="leave shared_memory out, or g.attention and recurrent layers",
        )
    if runner.backend is not target.backend or runner.n_seq_max > target.n_seq_max:
        raise LinkError(
            "the target's memory cannot be read from this context",
            where=where,
            wanted=f"backend {target.backend.name!r}, {target.n_seq_max} sequences",
            got=f"backend {runner.backend.name!r}, {runner.n_seq_max} sequences",
            fix="let link() make the context",
        )
    return spec
