"""Drafters whose graphs draft in rounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from msgspec.structs import replace

from mtpcore.backends.schedule import Pass, Round, Schedule
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.drafters import I32, Drafter, DraftJob, Verify, texts_of
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.rounds import BuildRound, RoundInput, drafts_of, find_missing
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.drafting.vocabulary import read_vocabulary
from mtpcore.runtime.runner import GraphRunner

__all__ = ["RoundDrafter", "RoundRows"]


class RoundRows(NamedTuple):
    """What texts have in a round: how many drafts are wanted of each, and its room for rows.

    And the passes, of which those that are ``reserved`` write to the drafter's own memories.
    """

    wanted: Sequence[int]
    room: Sequence[int]
    passes: Sequence[Pass]
    reserved: Sequence[ReservedRows]


class RoundDrafter(Drafter):
    """A drafter whose graphs draft in rounds: the declaration's, or those of its shape.

    Each text is read up to the pending token, from the target's true rows; then a round makes its
    drafts, and what they left is taken back at once, so that nothing of a draft remains. The
    further graphs of the drafter run before.

    Parameters
    ----------
    name : str
        The role.
    runners : mapping of str to GraphRunner
        The graphs of rounds by role; that of ``name`` is the one of the declaration's shape.
    build : BuildRound
        Of rounds where the declaration builds none.
    inputs : RoundInput
        All that is the same in each round: nothing is wanted in it, and there is no room.
    entries : sequence of Entries
        What graphs of rounds have read of texts.
    upstream : UpstreamGraphs, optional
        The drafter's further graphs.

    Raises
    ------
    LinkError
        As ``read_vocabulary``.
    """

    spec: DrafterSpec

    def __init__(
        self,
        name: str,
        runners: Mapping[str, GraphRunner],
        build: BuildRound,
        inputs: RoundInput,
        *,
        entries: Sequence[Entries] = (),
        upstream: UpstreamGraphs | None = None,
    ) -> None:
        further = upstream.runners if upstream else {}
        super().__init__(name, {**further, **runners})
        self.runner, self.upstream, self._entries = runners[name], upstream, entries
        assert self.runner.drafter is not None
        self.spec = self.runner.drafter
        self.first = min((one.first for one in entries), default=0)
        self.reads_text = any(one.remembers for one in entries) or bool(further)
        self._n_batch = min([one.runner.n_batch for one in entries] or [self.runner.n_batch])
        self._ids = read_vocabulary(self.runner)
        build = cast(BuildRound, self.spec.schedule or build)
        self._inputs = inputs
        most = 0 if inputs.tree is None else inputs.tree.n_branches
        self._most_room = sys.maxsize if self.spec.schedule else most  # that a builder looks at

        @lru_cache(maxsize=64)
        def build_round(wanted: tuple[int, ...], room: tuple[int, ...]) -> Round:
            return build(replace(inputs, wanted=wanted, room=room))

        self._rounds = build_round

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Hold exactly the entries of the tokens that the target has processed."""
        for entries in self._entries:
            entries.settle(seq, history, rows)

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to k tokens for each job, as many together as their rows fit a batch.

        A sequence gets no drafts after a place that cannot be read.
        """
        drafts: dict[int, Draft] = {job.seq: [] for job in jobs}
        if self.upstream:
            self.upstream.fill({job.seq: job.history[:-1] for job in jobs})
        active = self._begin(jobs)
        n_together = max(self._n_batch // max(self._n_rows(active), 1), 1)
        for begin in range(0, len(active), n_together):
            together = active[begin : begin + n_together]
            drafts |= self._run_round(together, self._compose(together), verify)
            for job in together:
                for entries in self._entries:
                    entries.end(job)
        return drafts

    def _begin(self, jobs: Sequence[DraftJob]) -> list[DraftJob]:
        """Return the jobs whose texts can be read up to the pending token; others are paused."""
        active = []
        for job in jobs:
            place = self._entries[0].begin(job)
            if place is None:
                active.append(job)
            else:
                self._pause(job.seq, place)
        return active

    def _n_rows(self, jobs: Sequence[DraftJob]) -> int:
        """Return how many rows of a pass a text takes, at most; so many are to have room."""
        return self.spec.tree.n_branches if self.spec.tree else 1

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        """Return the rows of a round of these texts, and what is wanted of it."""
        raise NotImplementedError

    def _room(self, job: DraftJob, n_rows: int) -> int:
        """Return how many of ``n_rows`` rows of drafts a sequence may have in a pass."""
        for one in self._entries:
            runner = one.runner
            n_rows = min(n_rows, runner.n_ctx - len(job.history), runner.longest_draft)
        return max(n_rows, 0)

    def _run_round(
        self, jobs: Sequence[DraftJob], rows: RoundRows, verify: Verify | None
    ) -> dict[int, Draft]:
        """Run a round of these texts, with what verifies its drafts if both can run together.

        Rounds that are wanted again are not built again.
        """
        room = tuple([min(n, self._most_room) for n in rows.room])
        built = self._rounds(tuple(rows.wanted), room)
        verification = None
        if verify:
            n_drafts = [len(built.verified.get(i, ())) for i in range(len(jobs))]
            verification = verify([job.seq for job in jobs], n_drafts)
        schedule = Schedule(
            round=built,
            passes=rows.passes,
            texts=texts_of(jobs),
            token_ids=self._ids,
            verification=verification,
        )
        drafted = run_reserved(schedule, rows.reserved)
        for text, depth in find_missing(schedule, drafted).items():
            if jobs[text].p_min <= 0:  # a row is not finite, or no token is left
                self._pause(jobs[text].seq, len(jobs[text].history) + depth - 1)
        drafts = drafts_of(schedule, drafted)
        return dict(zip((job.seq for job in jobs), drafts, strict=True))
