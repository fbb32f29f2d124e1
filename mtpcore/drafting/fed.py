"""Drafting by a program of the plugin's own, which reads the target's hidden rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.boundary.arguments import read_below
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.proposer import FedProposer, Proposal
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.drafters import Drafter, DraftJob, Verify
from mtpcore.drafting.proposers import call_plugin, read_answer
from mtpcore.errors import LinkError
from mtpcore.links.inbox import Inbox

__all__ = ["FedDrafter", "FedRole"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class FedRole:
    """A plugin's ``FedProposer`` in a role of a Cross, which has yet to be fed."""

    def __init__(self, proposer: FedProposer, spec: DrafterSpec) -> None:
        self.proposer, self.spec = proposer, spec


class JobAsk:
    """An ``Ask``: a job, with the rows that wait for it."""

    def __init__(self, job: DraftJob, boxes: Mapping[str, Inbox]) -> None:
        self.seq, self.k, self.sampling = job.seq, job.k, job.sampling
        self.tokens = job.history.copy()
        self._job, self._boxes = job, boxes

    def rows(self, slot: str, begin: int = 0, end: int | None = None) -> F32:
        """Return the target's rows of a feed; see ``Ask``.

        Raises
        ------
        LinkError
            No such feed or rows, or a row is missing.
        """
        if slot not in self._boxes:
            raise LinkError("no feed of this slot", wanted=", ".join(self._boxes), got=slot)
        n = len(self.tokens) - 1
        end = n if end is None else read_below(end, n + 1, "rows of tokens that are not processed")
        return self._boxes[slot].get(self.seq, read_below(begin, n + 1, "no such rows"), end)

    def choose(
        self, logits: F32, drafts: Sequence[int] = (), token_ids: I32 | None = None
    ) -> int | None:
        """Choose a token with the target's noise; see ``Ask``."""
        job, history = self._job, self._history(drafts)
        token, probability = job.sampler.choose_with_probability(
            self._processed(logits, history, token_ids),
            history,
            job.n_prompt,
            len(history),
            token_ids,
        )
        return None if token == NO_TOKEN or probability < job.p_min else token

    def rank(
        self, logits: F32, n: int, drafts: Sequence[int] = (), token_ids: I32 | None = None
    ) -> I32:
        """Return the best tokens, in order; see ``Ask``."""
        job, history = self._job, self._history(drafts)
        logits = self._processed(logits, history, token_ids)
        return job.sampler.rank(logits, history, job.n_prompt, len(history), n, token_ids)[0]

    def _processed(self, logits: F32, history: I32, token_ids: I32 | None) -> F32:
        logits, change = np.ascontiguousarray(logits, np.float32), self._job.processor
        if change is None:
            return logits
        self._job.sampler.check(len(logits), len(history), token_ids)
        return change(history, logits, token_ids)

    def _history(self, drafts: Sequence[int]) -> I32:
        return np.concatenate([self._job.history, np.asarray(drafts, np.int32)])


class FedDrafter(Drafter):
    """A drafter without a graph that reads rows of the target.

    Rows of the whole text wait in its inboxes, and are taken back, copied and saved as the text is.
    A sequence with a row that is not finite gets no drafts.
    """

    spec: DrafterSpec

    def __init__(self, name: str, role: FedRole, boxes: Mapping[str, Inbox]) -> None:
        super().__init__(name, {})
        self.spec = role.spec
        self._proposer, self._boxes = role.proposer, boxes

    def draft(
        self, jobs: list[DraftJob], verify: Verify | None = None
    ) -> dict[int, Draft | Proposal]:
        """Ask the plugin for each sequence in turn.

        Raises
        ------
        PluginError
            It raised something.
        """
        return {job.seq: self._ask(job) for job in jobs}

    def _ask(self, job: DraftJob) -> Draft | Proposal:
        n = len(job.history) - 1
        for box in self._boxes.values():
            place = box.finite_until(job.seq, 0, n)
            if place < n:
                self._pause(job.seq, place)
                return []
        ask = JobAsk(job, self._boxes)
        answer: Any = call_plugin(self.spec, job.k, self._proposer, "draft", ask)
        return read_answer(answer, job.k)
