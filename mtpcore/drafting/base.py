"""Drafters whose graphs draft in rounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from msgspec.structs import replace

from mtpcore.backends.schedule import Pass, Round, Schedule
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.drafters import Drafter, DraftJob, Verify, texts_of
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.rounds import BuildRound, RoundInput, drafts_of, find_missing
from mtpcore.drafting.vocabulary import read_vocabulary
from mtpcore.runtime.runner import GraphRunner

__all__ = ["RoundDrafter"]


class RoundDrafter(Drafter):
    """A drafter whose graphs draft in rounds: the declaration's, or those of its shape.

    Parameters
    ----------
    name, runners
        As ``Drafter``.
    runner : GraphRunner
        Of the graph that the declaration's shape is of.
    build : BuildRound
        Of rounds where the declaration builds none.
    inputs : RoundInput
        All that is the same in each round: nothing is wanted in it, and there is no room.

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
        runner: GraphRunner,
        build: BuildRound,
        inputs: RoundInput,
    ) -> None:
        super().__init__(name, runners)
        assert runner.drafter is not None
        self.spec = runner.drafter
        self._ids = read_vocabulary(runner)
        build = cast(BuildRound, self.spec.schedule or build)
        self._inputs = inputs
        most = 0 if inputs.tree is None else inputs.tree.n_branches
        self._most_room = sys.maxsize if self.spec.schedule else most  # that a builder looks at

        @lru_cache(maxsize=64)
        def build_round(wanted: tuple[int, ...], room: tuple[int, ...]) -> Round:
            return build(replace(inputs, wanted=wanted, room=room))

        self._rounds = build_round

    def _begin(self, entries: Entries, jobs: Sequence[DraftJob]) -> list[DraftJob]:
        """Return the jobs whose texts can be read up to the pending token; others are paused."""
        active = []
        for job in jobs:
            place = entries.begin(job)
            if place is None:
                active.append(job)
            else:
                self._pause(job.seq, place)
        return active

    def _run_round(
        self,
        jobs: Sequence[DraftJob],
        wanted: Sequence[int],
        room: Sequence[int],
        passes: Sequence[Pass],
        reserved: Sequence[ReservedRows],
        verify: Verify | None,
    ) -> dict[int, Draft]:
        """Run a round of these texts, with what verifies its drafts if both can run together.

        Rounds that are wanted again are not built again.
        """
        built = self._rounds(tuple(wanted), tuple([min(n, self._most_room) for n in room]))
        verification = None
        if verify and not built.is_ranked:  # of trees it is known afterwards which
            n_drafts = [len(built.drafts_of.get(i, ())) for i in range(len(jobs))]
            verification = verify([job.seq for job in jobs], n_drafts)
        schedule = Schedule(
            round=built,
            passes=passes,
            texts=texts_of(jobs),
            token_ids=self._ids,
            verification=verification,
        )
        drafted = run_reserved(schedule, reserved)
        for text, depth in find_missing(schedule, drafted).items():
            if jobs[text].p_min <= 0:  # a row is not finite, or no token is left
                self._pause(jobs[text].seq, len(jobs[text].history) + depth - 1)
        drafts = drafts_of(schedule, drafted)
        return dict(zip((job.seq for job in jobs), drafts, strict=True))
