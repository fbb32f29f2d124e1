"""Drafting a block: one pass over the pending token and mask tokens makes all drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import DrafterSpec, Feed
from mtpcore.drafting.base import RoundDrafter, RoundRows
from mtpcore.drafting.batch_rows import BatchRows
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_block
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.errors import LinkError
from mtpcore.links.sources import ZeroSource
from mtpcore.runtime.arrival import hand_over
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["BlockDrafter"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class BlockDrafter(RoundDrafter):
    """A drafter's graph that fills a block.

    Entries of true tokens are the graph's own, or made by the further graph that the declaration
    names. A block is the pending token and masks after it. What it stores is taken back, and where
    another graph makes entries the pending token's too: it has yet to be made of the target's row.

    (Chen, Liang and others 2026, arXiv 2602.06036; causal rows: arXiv 2602.01469.)

    Parameters
    ----------
    name, runner, upstream
        As ``GraphDrafter``.
    post_head : mapping of str to GraphRunner
        The graph that chooses drafts one after the other, or all at once in passes, by its role;
        empty where there is none.

    Raises
    ------
    LinkError
        The declaration does not fit the graphs or the file.
    """

    def __init__(
        self,
        name: str,
        runner: GraphRunner,
        upstream: UpstreamGraphs,
        post_head: Mapping[str, GraphRunner],
    ) -> None:
        assert runner.drafter is not None
        block = runner.drafter.block
        assert block is not None
        assert isinstance(block.size, int)
        assert isinstance(block.mask, int)
        assert isinstance(block.passes, int)
        self.round_size = self._size = block.size
        self._mask = block.mask
        self._first_draft = int(not block.from_pending)  # the row of the first draft
        # A post-head that runs in passes reads the pending token's row, whatever that row drafts.
        self._first_row = 0 if block.passes else self._first_draft
        after = {one.graph_type.name for one in post_head.values()}
        inputs = RoundInput(
            programs=[runner.program, *(one.program for one in post_head.values())],
            feeds={f.slot: f.taps for f in runner.drafter.feeds if f.graph in after},
            tree=runner.drafter.tree,
            n_passes=block.passes,
            n_known=self._first_draft - self._first_row,
        )
        feeds = [feed for feed in runner.drafter.feeds if not feed.graph]
        self._is_fed = bool(block.entries)  # with entries that another graph makes
        entries = Entries(runner, feeds, upstream, is_fed=self._is_fed)
        runners = {name: runner, **post_head}
        super().__init__(name, runners, draft_block, inputs, entries=[entries], upstream=upstream)
        self._is_whole = runner.program.is_run_whole
        self._passes = block.passes
        self._post_head = next(iter(post_head.values()), None)
        for later_runner in post_head.values():
            for slot, width in later_runner.program.slots().items():
                later_runner.sources[slot] = ZeroSource(width)  # the block feeds it as it runs
        if self._post_head is not None and self._passes:
            self._n_batch = min(self._n_batch, self._post_head.n_batch)
        self._masks = {feed.slot: self._mask_rows(feed) for feed in feeds}
        self._check()

    def _check(self) -> None:
        """Refuse a block that its graphs cannot run."""
        where = f"drafter {self.spec.full_name}"
        n_tokens = self.runner.program.n_embeddings
        if self._mask >= n_tokens:
            raise LinkError(
                "the drafter's table has no row for the mask token",
                where=where,
                wanted=f"0..{n_tokens - 1}",
                got=self._mask,
                fix="convert the drafter again, or give the file that was made for this target",
            )
        if self._is_whole and not self._is_fed:
            raise LinkError(
                "rows that see a whole block make no entries of a text",
                where=where,
                wanted="a further graph that makes them: Block(entries=...)",
                fix="or let each row see what is before it alone",
            )
        if self._n_batch < self._size:
            raise LinkError(
                "a block runs in one piece",
                where=where,
                wanted=f"n_batch {self._size}",
                got=f"n_batch {self._n_batch}",
            )
        if self._post_head is not None:
            self._check_post_head(self._post_head, where)

    def _check_post_head(self, post_head: GraphRunner, where: str) -> None:
        """Refuse a post-head that does not fit the block, or cannot run as it is declared."""
        programs = (self.runner.program, post_head.program)
        made, chosen = (p.shape("logits")[1] if "logits" in p.outputs else 0 for p in programs)
        if made != chosen:
            raise LinkError(
                "the post-head's logits are not of the tokens that the block's are of",
                where=where,
                wanted=f"{made} logits",
                got=f"{chosen} logits",
            )
        program = post_head.program
        sees_too_much = program.sees_ahead if self._passes else program.is_run_whole
        if sees_too_much:
            raise LinkError(
                "the post-head's rows see more than they may",
                where=where,
                wanted="none after them" if self._passes else "none: it runs row after row",
                got=", ".join(dict.fromkeys(node.op for node in program.nodes)),
            )

    def _n_rows(self, jobs: Sequence[DraftJob]) -> int:
        return self._size

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        """Return a block and what chooses its drafts."""
        n_rows = self.runner.n_batch // len(jobs) - self._size + 1
        texts = [self._entries[0].catch_up(job, n_rows) for job in jobs]
        spans = [self._span(job) for job in jobs]
        most = [max(len(rows) - self._first_draft, 0) for rows in spans]
        wanted = [max(min(job.k, n), 0) for job, n in zip(jobs, most, strict=True)]
        reserved = [ReservedRows(self.runner, self._batch(jobs, texts, spans, wanted))]
        if self._post_head is not None and any(wanted):
            batch = self._post_head_rows(self._post_head, jobs, wanted)
            reserved.append(ReservedRows(self._post_head, batch, is_fed=True, is_kept=False))
        return RoundRows(wanted, wanted, [rows.given for rows in reserved], reserved)

    def _span(self, job: DraftJob) -> range:
        """Return the places of a sequence's block: as many as are wanted, or as have to be."""
        begin = len(job.history) - 1
        n = job.k + self._first_draft
        end = begin + (self._size if self._is_whole else min(n, self._size))
        return range(begin, min(end, self.runner.n_ctx))

    def _batch(
        self,
        jobs: Sequence[DraftJob],
        texts: Sequence[range],
        spans: Sequence[range],
        lengths: Sequence[int],
    ) -> Batch:
        """Return the missing entries and the blocks; outputs are the rows that are read."""
        rows = BatchRows(self.runner, self._masks)
        for job, text, span, k in zip(jobs, texts, spans, lengths, strict=True):
            read, masks, tokens = self._read_rows(k), span[1:], job.history[text.start :].tolist()
            outputs = [row in read for row in range(len(span))]
            rows.add(job.seq, tokens, text, [False] * (len(text) - 1) + outputs[:1])
            rows.add(job.seq, [self._mask] * len(masks), masks, outputs[1:])
            rows.fetch(job.seq, text)
            for slot, of_masks in self._masks.items():
                rows.feed(slot, of_masks[: len(masks)])
        return rows.batch()

    def _mask_rows(self, feed: Feed) -> F32:
        """Return what feeds a slot for all mask tokens of a block, where the graph reads it."""
        rows = np.repeat(_mask_row(feed, self.runner), self._size - 1, axis=0)
        return hand_over(rows, self.runner.backend.row_buffer)

    def _post_head_rows(
        self, post_head: GraphRunner, jobs: Sequence[DraftJob], lengths: Sequence[int]
    ) -> Batch:
        """Return the rows of the post-head, each after the token before its draft.

        Where the text has no token before the pending one, that stands for it.
        """
        batch = BatchRows(post_head)
        for job, k in zip(jobs, lengths, strict=True):
            known, rows = job.history[-2:].tolist(), self._read_rows(k)
            text = [known[0], *known[-1:], *[0] * k]  # drafts are filled in
            batch.add(
                job.seq,
                [text[row - self._first_draft + 1] for row in rows],
                [len(job.history) - 1 + row for row in rows],
                [row >= self._first_draft for row in rows],
            )
        return batch.batch()

    def _read_rows(self, k: int) -> range:
        """Return the rows of a block that are read for ``k`` drafts."""
        return range(self._first_row, self._first_draft + k) if k else range(0)


def _mask_row(feed: Feed, runner: GraphRunner) -> F32:
    """Return what feeds a slot for mask tokens, float32[1, width].

    Raises
    ------
    LinkError
        The file has no such tensor, or one of another width or with values that are not finite.
    """
    spec = runner.drafter
    assert isinstance(spec, DrafterSpec)
    tensor = runner.model.find_weight(feed.mask, spec)
    width = runner.program.slots()[feed.slot]
    row = None if tensor is None else tensor.array()
    if row is None or row.shape != (width,) or not np.isfinite(row).all():
        raise LinkError(
            "no row that feeds a slot for mask tokens",
            where=f"{runner.model.path}, drafter {spec.name!r}: tensor {feed.mask!r}",
            wanted=f"[{width}], finite",
            got=None if tensor is None else tuple(tensor.shape),
            fix="convert the drafter again",
        )
    return np.asarray(row, np.float32)[None]
