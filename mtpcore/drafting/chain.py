"""Drafting with one graph, a head or a draft model: token by token, or level by level."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.base import BaseDrafter
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.reserved import ReservedRows, run_drafts
from mtpcore.drafting.rounds import RoundInput, builder_of
from mtpcore.drafting.stages import draft_chains
from mtpcore.drafting.tree_stages import draft_trees
from mtpcore.drafting.upstream import UpstreamGraphs, finite_places
from mtpcore.drafting.vocabulary import read_vocabulary
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["GraphDrafter"]

I32 = NDArray[np.int32]


class GraphDrafter(BaseDrafter):
    """A drafter's graph fed from inboxes, by its further graphs where it has them.

    Entry p of its memory is token p with the hidden rows that the pairing gives it; a draft model
    reads tokens alone. Entries up to the pending token come from the target's true hidden rows;
    those written while drafting come from the drafter's own and are taken back at once, so that
    nothing of a draft remains. Where the target read an embedding row, the head reads it in the
    token's place, if its graph takes any.

    A graph without a memory reads the pending token alone, and holds nothing between its drafts.

    Raises
    ------
    LinkError
        As ``read_vocabulary``.
    """

    _builders: ClassVar = {"chain": draft_chains, "tree": draft_trees}

    def __init__(self, name: str, runner: GraphRunner, upstream: UpstreamGraphs) -> None:
        assert runner.drafter is not None
        super().__init__(name, {**upstream.runners, name: runner})
        self.runner, self.spec, self.upstream = runner, runner.drafter, upstream
        self._feeds = [feed for feed in self.spec.feeds if not feed.graph]
        self.first = int(any(feed.pairing == "next-token" for feed in self._feeds))
        self._ids = read_vocabulary(runner)
        self._n_vocab = runner.model.hparams.n_vocab
        self._recycle = {feed.slot: (feed.recycle,) for feed in self._feeds if feed.recycle}
        self._build = builder_of(self.spec, self._builders)
        # A draft model has rows of its own, of another width, where a head reads the target's.
        takes_rows = "embeddings" in runner.program.inputs and bool(self._feeds)
        self._remembers = runner.memory is not None
        self.reads_rows = takes_rows and not upstream.runners and self._remembers
        self.reads_text = self._remembers or bool(upstream.runners)

    def _entries(self, job: DraftJob) -> range:
        """Return the places that the head has not read yet, up to the pending token's."""
        begin, end = self.runner.lengths[job.seq], len(job.history)
        return range(max(begin if self._remembers else end - 1, self.first), end)

    def _readable(self, seq: int, history: I32, rows: EmbeddingRows, places: range) -> range:
        """Return the places before the first one with a token or a row that is not read.

        That is a token that a draft model does not have, or a row that is missing or not finite.
        """
        places = range(places.start, rows.reach(history, places))
        unknown = np.flatnonzero(history[places.start : places.stop] >= self._n_vocab)
        if len(unknown):
            places = range(places.start, places.start + int(unknown[0]))
        for feed in self._feeds:
            end = self.upstream.reach(feed, seq)
            if end is not None:
                end += feed.pairing == "next-token"
                places = range(places.start, max(places.start, min(places.stop, end)))
        return finite_places(self.runner, self._feeds, seq, places)

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Hold exactly the entries of the tokens that the target has processed.

        The pending token's entry, which a draft may have left, is as true as the others, but
        nobody has committed to that token yet. Rows that are not finite make no entries.
        """
        self._rewind(seq, len(history))
        self.upstream.fill({seq: history})
        if not self._remembers:
            return
        begin = self.runner.lengths[seq] or self.first
        places = self._readable(seq, history, rows, range(begin, len(history)))
        self._read(seq, history, rows, places)

    def _read(self, seq: int, history: I32, rows: EmbeddingRows, places: range) -> None:
        """Make the entries of these places."""
        for batch in rows.batches(seq, history, places):
            self.runner.process(batch)

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to k tokens for each job; sequences leave the loop one by one.

        A sequence with a non-finite hidden row gets no drafts.
        """
        drafts: dict[int, Draft] = {job.seq: [] for job in jobs}
        active = []
        self.upstream.fill({job.seq: job.history[:-1] for job in jobs})
        for job in jobs:
            # The pending token's entry is made anew: its logits are wanted.
            self._rewind(job.seq, len(job.history) - 1)
            missing = self._entries(job)
            readable = self._readable(job.seq, job.history, job.rows, missing)
            if readable == missing:
                active.append(job)
            else:
                self._pause(job.seq, readable.stop)
        if not active:
            return drafts
        self._run(active, drafts, verify)
        return drafts

    def _run(self, active: list[DraftJob], drafts: dict[int, Draft], verify: Verify | None) -> None:
        """Fill in the missing entries and draft, in one call without the GIL if they fit one."""
        tree, n_batch = self.spec.tree, self.runner.n_batch
        n_together = max(n_batch // max(tree.n_branches if tree else 1, 1), 1)
        is_apart = tree is not None and bool(self.runner.program.states)  # from rows of a tree
        room = max(n_batch // len(active), 1)
        for job in active:
            missing = self._entries(job)
            end = missing.stop - 1 if is_apart or len(missing) > room else job.rows.end
            self._read(job.seq, job.history, job.rows, range(missing.start, end))
        for begin in range(0, len(active), n_together):
            self._run_together(active[begin : begin + n_together], drafts, verify)

    def _missing(self, jobs: list[DraftJob]) -> Batch:
        """Return the rows of all missing entries; the pending tokens' outputs are wanted."""
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        wanted: list[bool] = []
        for job in jobs:
            missing = self._entries(job)
            tokens += job.history[missing.start :].tolist()
            seqs += [job.seq] * len(missing)
            places += missing
            wanted += [False] * (len(missing) - 1) + [True]
        return Batch(tokens, seq=seqs, pos=places, outputs=wanted)

    def _run_together(
        self, jobs: list[DraftJob], drafts: dict[int, Draft], verify: Verify | None
    ) -> None:
        rows = ReservedRows(self.runner, self._missing(jobs))
        inputs = RoundInput(
            wanted=[job.k for job in jobs],
            room=[self._room(job, len(jobs)) for job in jobs],
            passes=[rows.stage],
            feeds=self._recycle,
            tree=self.spec.tree,
        )
        made = run_drafts(
            self.runner.plan, self._build(inputs), jobs, [rows], token_ids=self._ids, verify=verify
        )
        for job in jobs:
            self._rewind(job.seq, len(job.history))
        self._take(jobs, *made, drafts)

    def _room(self, job: DraftJob, n_jobs: int) -> int:
        """Return how many rows of drafts a sequence may have in a pass."""
        runner = self.runner
        n_batch = runner.n_batch // n_jobs
        return max(min(runner.n_ctx - len(job.history), n_batch, runner.longest_draft), 0)

    def _rewind(self, seq: int, n: int) -> None:
        """Hold no more than ``n`` entries; nothing where there is no memory."""
        n = n if self._remembers else 0
        if self.runner.lengths[seq] > n:
            self.runner.rewind(seq, n)
