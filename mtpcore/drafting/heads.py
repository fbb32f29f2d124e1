"""Drafting with several heads: each drafts one step, or level, and has a memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.drafting.base import RoundDrafter, RoundRows
from mtpcore.drafting.batch_rows import BatchRows
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.levels import Levels, levels_for
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_heads, is_blind
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.runtime.arrival import hand_over
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["HeadDrafter"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class HeadDrafter(RoundDrafter):
    """Head t makes draft t, from all accepted entries and the rows drafted so far.

    Each head's memory holds the entries of the accepted tokens, made of the target's rows. To draft
    it reads what it lacks of them, the pending token and the drafts so far; row j of these is fed
    with what head j - 1 made in this round, or with the target's rows, as the declaration says.
    Afterwards every head goes back to the accepted entries. (llama.cpp chains heads so; SGLang
    feeds the target's rows.) A head without a memory reads the newest of these rows alone.

    In a tree head t ranks the children of the branches of level t. Where what it makes does not
    depend on drafts, it runs once for all of them (Cai et al. 2024, arXiv 2401.10774).

    The drafter's further graphs run before its heads.

    Parameters
    ----------
    name : str
        The role of the first head.
    heads : mapping of str to GraphRunner
        By role, in their order.
    upstream : UpstreamGraphs

    Raises
    ------
    LinkError
        As ``read_vocabulary``.
    """

    def __init__(
        self, name: str, heads: Mapping[str, GraphRunner], upstream: UpstreamGraphs
    ) -> None:
        spec = heads[name].drafter
        assert spec is not None
        feeds = [feed for feed in spec.feeds if not feed.graph]
        self._reads_target = spec.heads.hidden_from == "target"
        fed = () if self._reads_target else feeds
        inputs = RoundInput(
            programs=[runner.program for runner in heads.values()],
            feeds={feed.slot: (feed.recycle,) for feed in fed if feed.recycle},
            tree=spec.tree,
        )
        entries = [
            Entries(
                *(runner, feeds, upstream), ahead=head * self._reads_target, keeps_pending=False
            )
            for head, runner in enumerate(heads.values())
        ]
        super().__init__(name, heads, draft_heads, inputs, entries=entries, upstream=upstream)
        n_rows = max(len(heads), spec.tree.n_branches if spec.tree else 0)
        self._zeros = [  # in the place of rows that heads before make
            {
                slot: hand_over(np.zeros((n_rows, width), np.float32), runner.backend.row_buffer)
                for slot, width in runner.program.slots().items()
            }
            for runner in heads.values()
        ]

    def _begin(self, jobs: Sequence[DraftJob]) -> list[DraftJob]:
        """Return the jobs that get drafts, and how many these can be.

        What a head reads runs in one piece, so there are at most ``n_batch``.
        """
        jobs = [replace(job, k=self._reach(job)) for job in jobs]
        return [job for job in jobs if job.k > 0]

    def _n_rows(self, jobs: Sequence[DraftJob]) -> int:
        if self.spec.tree is not None:
            return 1 + self.spec.tree.n_branches
        return max((job.k for job in jobs), default=1)

    def _reach(self, job: DraftJob) -> int:
        """Return how many drafts the target's rows allow, of those wanted."""
        most = min(job.k, len(self._entries), self._n_batch)
        for head, entries in enumerate(self._entries[:most]):
            if head and not self._reads_target and not entries.remembers:
                continue  # it reads what the head before makes
            places = self._lacking(head, job)
            if not places:
                return head  # the text is shorter than what the head looks back
            finite = entries.readable(job.seq, places, job.history)
            if finite != places:
                self._pause(job.seq, finite.stop)
                return head
        return most

    def _lacking(self, head: int, job: DraftJob) -> range:
        """Return the places that a head has to read, those of drafts with the target's rows too."""
        return self._entries[head].missing(job.seq, len(job.history) + head * self._reads_target)

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        n_rows, tree = self._n_batch // len(jobs), self.spec.tree
        wanted, room = [job.k for job in jobs], [self._room(job, n_rows - 1) for job in jobs]
        has_paths = tree is None or any(entries.remembers for entries in self._entries)
        levels = levels_for(tree, wanted, room, has_paths=has_paths)
        for job in jobs:
            for head, entries in enumerate(self._entries[: job.k]):
                entries.catch_up(job, 0 if tree else n_rows - head)
        reserved = [
            ReservedRows(entries.runner, self._batch(head, jobs, levels))
            for head, entries in enumerate(self._entries[: max(wanted)])
        ]
        return RoundRows(wanted, room, [rows.given for rows in reserved], reserved)

    def _batch(self, head: int, jobs: Sequence[DraftJob], levels: Levels) -> Batch:
        """Return what a head reads: accepted entries it lacks, the pending token, the drafts.

        The tokens of drafts, and the rows that heads before make, are filled in by the loop.
        """
        entries = self._entries[head]
        rows = BatchRows(entries.runner, self._zeros[head])
        for text, job in enumerate(jobs):
            if not levels.choosing(text, head):
                continue
            depths, pending = self._depths(head, text, levels), len(job.history) - 1
            begin = entries.missing(job.seq, pending + 1).start
            known = range(begin if entries.remembers or not head else pending + 1, pending + 1)
            at = [*known, *(pending + depth for depth in depths)]
            at = [place for place in at if place >= entries.first]
            if self.spec.tree is not None:
                row_at = {place: len(rows) + i for i, place in reversed([*enumerate(at)])}
                rows.parent += [row_at.get(place - 1, -1) for place in at]
            tokens = [int(job.history[place]) if place <= pending else 0 for place in at]
            rows.add(job.seq, tokens, at, [place == pending + head for place in at])
            n_known = len(at) if self._reads_target else len(known)
            rows.fetch(job.seq, at[:n_known])
            for slot, zeros in self._zeros[head].items():
                rows.feed(slot, zeros[: max(len(at) - n_known, 0)])
        return rows.batch()

    def _depths(self, head: int, text: int, levels: Levels) -> list[int]:
        """Return how many drafts come before each row of a draft that a head reads of a text."""
        entries, is_chain = self._entries[head], self.spec.tree is None
        reads_newest = is_chain and not entries.remembers
        if reads_newest or (not is_chain and is_blind(entries.runner.program, self._inputs.feeds)):
            return [head] * (head > 0)
        return [depth for depth, _ in levels.branches(text, head)]
