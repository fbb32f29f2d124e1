"""Drafting with one graph, a head or a draft model: token by token, or level by level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.base import RoundDrafter
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_levels
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["GraphDrafter"]

I32 = NDArray[np.int32]


class GraphDrafter(RoundDrafter):
    """A drafter's graph fed from inboxes, by its further graphs where it has them.

    Entries up to the pending token come from the target's true hidden rows; those written while
    drafting come from the drafter's own and are taken back at once, so that nothing of a draft
    remains. Where the target read an embedding row, the head reads it in the token's place, if its
    graph takes any.

    Raises
    ------
    LinkError
        As ``read_vocabulary``.
    """

    def __init__(self, name: str, runner: GraphRunner, upstream: UpstreamGraphs) -> None:
        assert runner.drafter is not None
        feeds = [feed for feed in runner.drafter.feeds if not feed.graph]
        inputs = RoundInput(
            programs=[runner.program],
            feeds={feed.slot: (feed.recycle,) for feed in feeds if feed.recycle},
            tree=runner.drafter.tree,
        )
        super().__init__(name, {**upstream.runners, name: runner}, runner, draft_levels, inputs)
        self.runner, self.upstream = runner, upstream
        self.entries = Entries(runner, feeds, upstream)
        self.first = self.entries.first
        # A draft model has rows of its own, of another width, where a head reads the target's.
        takes_rows = "embeddings" in runner.program.inputs and bool(feeds)
        self.reads_rows = takes_rows and not upstream.runners and self.entries.remembers
        self.reads_text = self.entries.remembers or bool(upstream.runners)

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Hold exactly the entries of the tokens that the target has processed."""
        self.entries.settle(seq, history, rows)

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to k tokens for each job; sequences leave the loop one by one.

        A sequence with a non-finite hidden row gets no drafts. What is missing of the texts runs
        with the first drafts, if it fits one batch.
        """
        drafts: dict[int, Draft] = {job.seq: [] for job in jobs}
        self.upstream.fill({job.seq: job.history[:-1] for job in jobs})
        tree, n_batch = self.spec.tree, self.runner.n_batch
        is_apart = tree is not None and bool(self.runner.program.states)  # from rows of a tree
        active = self._begin(self.entries, jobs)
        for job in active:
            missing = self.entries.missing(job.seq, len(job.history))
            fits = len(missing) <= max(n_batch // len(active), 1) and not is_apart
            end = job.rows.end if fits else missing.stop - 1
            self.entries.read(job.seq, range(missing.start, end), job.history, job.rows)
        n_together = max(n_batch // max(tree.n_branches if tree else 1, 1), 1)
        for begin in range(0, len(active), n_together):
            drafts |= self._draft_together(active[begin : begin + n_together], verify)
        return drafts

    def _draft_together(self, jobs: Sequence[DraftJob], verify: Verify | None) -> dict[int, Draft]:
        rows = ReservedRows(self.runner, self._missing(jobs))
        wanted, room = [job.k for job in jobs], [self._room(job, len(jobs)) for job in jobs]
        drafts = self._run_round(jobs, wanted, room, [rows.given], [rows], verify)
        for job in jobs:
            self.entries.end(job)
        return drafts

    def _missing(self, jobs: Sequence[DraftJob]) -> Batch:
        """Return the rows of all missing entries; the pending tokens' outputs are wanted."""
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        wanted: list[bool] = []
        for job in jobs:
            missing = self.entries.missing(job.seq, len(job.history))
            tokens += job.history[missing.start :].tolist()
            seqs += [job.seq] * len(missing)
            places += missing
            wanted += [False] * (len(missing) - 1) + [True]
        return Batch(tokens, seq=seqs, pos=places, outputs=wanted)

    def _room(self, job: DraftJob, n_jobs: int) -> int:
        """Return how many rows of drafts a sequence may have in a pass."""
        runner = self.runner
        n_batch = runner.n_batch // n_jobs
        return max(min(runner.n_ctx - len(job.history), n_batch, runner.longest_draft), 0)
