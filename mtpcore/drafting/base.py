"""What drafters have in common: graphs that follow the target, and sequences that are paused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.rounds import drafts_of, find_missing
from mtpcore.runtime.runner import GraphRunner

__all__ = ["BaseDrafter"]

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

    def _take(
        self,
        jobs: Sequence[DraftJob],
        schedule: Schedule,
        drafted: Drafts,
        drafts: dict[int, Draft],
    ) -> None:
        """Note what was drafted; a missing draft means a row that is not finite."""
        made = drafts_of(schedule, drafted)
        drafts.update(zip((job.seq for job in jobs), made, strict=True))
        for text, depth in find_missing(schedule, drafted).items():
            if jobs[text].p_min <= 0:
                self._pause(jobs[text].seq, len(jobs[text].history) + depth - 1)

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
