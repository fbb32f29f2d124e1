"""Drafting with one graph, a head or a draft model: token by token, or level by level."""

from __future__ import annotations

from collections.abc import Sequence

from mtpcore.drafting.base import RoundDrafter, RoundRows
from mtpcore.drafting.batch_rows import BatchRows
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_levels
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.runtime.runner import GraphRunner

__all__ = ["GraphDrafter"]


class GraphDrafter(RoundDrafter):
    """A drafter's graph fed from inboxes, by its further graphs where it has them.

    What is missing of a text runs with the first drafts, if it fits one batch. Where the target
    read an embedding row, the head reads it in the token's place, if its graph takes any.

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
        entries = Entries(runner, feeds, upstream)
        super().__init__(
            name, {name: runner}, draft_levels, inputs, entries=[entries], upstream=upstream
        )
        # A draft model has rows of its own, of another width, where a head reads the target's.
        takes_rows = "embeddings" in runner.program.inputs and bool(feeds)
        self.reads_rows = takes_rows and not upstream.runners and entries.remembers
        self._is_apart = bool(inputs.tree and runner.program.states)  # its text from rows of a tree

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        rows, n_rows = BatchRows(self.runner), self._n_batch // len(jobs)
        for job in jobs:
            missing = self._entries[0].catch_up(job, 0 if self._is_apart else n_rows)
            tokens = job.history[missing.start :].tolist()
            rows.add(job.seq, tokens, missing, [False] * (len(missing) - 1) + [True])
        reserved = ReservedRows(self.runner, rows.batch())
        room = [self._room(job, n_rows) for job in jobs]
        return RoundRows([job.k for job in jobs], room, [reserved.given], [reserved])
