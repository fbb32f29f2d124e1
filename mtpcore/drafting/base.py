"""What drafters have in common: graphs that follow the target, and rounds that these run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.backends.schedule import Pass, Round, Schedule
from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.drafters import DraftJob, Verify, texts_of
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.rounds import BuildRound, RoundInput, drafts_of, find_missing
from mtpcore.drafting.vocabulary import read_vocabulary
from mtpcore.runtime.runner import GraphRunner

__all__ = ["BaseDrafter", "RoundDrafter"]

logger = logging.getLogger("mtpcore")


class BaseDrafter:
    """A drafter with any number of graphs; ``mtpcore.drafting.drafters.Drafter`` without ``draft``.

    ``paused`` counts how often a sequence got no further draft because a row was not finite, the
    drafter does not have a token, or none was left to choose.

    Parameters
    ----------
    name : str
        The role.
    runners : mapping of str to GraphRunner
        By role; each is rewound, forked and emptied with the target.
    """

    reads_rows = False
    reads_text = True
    first = 0

    def __init__(self, name: str, runners: Mapping[str, GraphRunner]) -> None:
        self.name, self.runners = name, runners
        self.paused = 0

    def settle(self, seq: int, history: NDArray[np.int32], rows: EmbeddingRows = NO_ROWS) -> None:
        """Do nothing: there are no entries of tokens to bring up to date."""

    def rewind(self, seq: int, n: int) -> None:
        """Forget the entries from place ``n`` on, and the rows that they were made of."""
        for runner in self.runners.values():
            if runner.lengths[seq] > n:
                runner.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` be a copy of ``seq``."""
        for runner in self.runners.values():
            if runner.host is None:
                runner.fork(seq, new)

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        for runner in self.runners.values():
            runner.rewind(seq, 0)

    def _pause(self, seq: int, place: int) -> None:
        """Count a sequence that gets no further draft; warn of the first one."""
        if not self.paused:
            logger.warning(
                "drafter %s: sequence %d, place %d has a hidden row that is not finite, a "
                "token that the drafter does not have, or none left to choose; no drafts from it "
                "(said once, counted)",
                self.name,
                seq,
                place,
            )
        self.paused += 1


class RoundDrafter(BaseDrafter):
    """A drafter whose graphs draft in rounds: the declaration's, or those of its shape.

    Parameters
    ----------
    name, runners
        As ``BaseDrafter``.
    runner : GraphRunner
        Of the graph that the declaration's shape is of.
    builders : mapping of str to BuildRound
        By shape.
    inputs : RoundInput
        All that is the same in each round: nothing is wanted in it, and there is no room.

    Raises
    ------
    LinkError
        As ``read_vocabulary``.
    """

    def __init__(
        self,
        name: str,
        runners: Mapping[str, GraphRunner],
        runner: GraphRunner,
        builders: Mapping[str, BuildRound],
        inputs: RoundInput,
    ) -> None:
        super().__init__(name, runners)
        assert runner.drafter is not None
        self.spec = runner.drafter
        self._ids = read_vocabulary(runner)
        build = cast(BuildRound, self.spec.schedule or builders[self.spec.shape])
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
