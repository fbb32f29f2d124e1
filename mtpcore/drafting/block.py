"""Drafting a block: one pass over the pending token and mask tokens makes all drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import FusedSampling
from mtpcore.backends.draft import n_embeddings
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import DrafterSpec, Feed
from mtpcore.drafting.chain import GraphDrafter
from mtpcore.drafting.drafters import DraftJob, Verify, draft_settings
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.errors import LinkError
from mtpcore.graph.program import OUTPUTS
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner, run_drafts

__all__ = ["BlockDrafter"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class BlockDrafter(GraphDrafter):
    """A drafter's graph that fills a block; entries are kept as ``GraphDrafter`` keeps them.

    Those of true tokens are the graph's own, or made by the further graph that the declaration
    names. A block is the pending token and masks behind it. What it stores is taken back, and where
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
        super().__init__(name, runner, upstream)
        block = self.spec.block
        assert block is not None
        assert isinstance(block.size, int)
        assert isinstance(block.mask, int)
        assert isinstance(block.passes, int)
        self._size, self._mask = block.size, block.mask
        self._first_draft = int(not block.from_pending)  # the row of the first draft
        self._is_fed = bool(block.entries)  # with entries that another graph makes
        self._is_whole = runner.program.is_run_whole
        self._passes = block.passes
        # A post-head that runs in passes reads the pending token's row, whatever that row drafts.
        self._first_row = 0 if block.passes else self._first_draft
        self.runners = {**self.runners, **post_head}
        self._post_head = next(iter(post_head.values()), None)
        self._masks = {feed.slot: _mask_row(feed, runner) for feed in self._feeds}
        self.reads_rows = False  # a block's pass reads its text's tokens
        self._check()

    def _check(self) -> None:
        """Refuse a block that its graphs cannot run."""
        where = f"drafter {self.spec.name!r} of plugin {self.spec.plugin!r}"
        n_tokens = n_embeddings(self.runner.program)
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
        n_batch = self.runner.n_batch
        if self._post_head is not None and self._passes:
            n_batch = min(n_batch, self._post_head.n_batch)
        if n_batch < self._size:
            raise LinkError(
                "a block runs in one piece",
                where=where,
                wanted=f"n_batch {self._size}",
                got=f"n_batch {n_batch}",
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
                wanted="none behind them" if self._passes else "none: it runs row after row",
                got=", ".join(dict.fromkeys(node.op for node in program.nodes)),
            )

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Hold exactly the entries of the tokens that the target has processed."""
        if not self._is_fed:
            super().settle(seq, history, rows)
            return
        self._rewind(seq, len(history))
        self.upstream.fill({seq: history})

    def _readable(self, seq: int, history: I32, rows: EmbeddingRows, places: range) -> range:
        """Return the places before the first one whose entry or hidden row cannot be had."""
        if not self._is_fed:
            return super()._readable(seq, history, rows, places)
        return places if len(places) <= 1 else places[:0]  # only the pending token has no entry

    def _run(self, active: list[DraftJob], drafts: dict[int, Draft], verify: Verify | None) -> None:
        """Draft for as many sequences at once as blocks fit a batch."""
        n_together = max(self.runner.n_batch // self._size, 1)
        for begin in range(0, len(active), n_together):
            self._run_together(active[begin : begin + n_together], drafts, verify)

    def _run_together(
        self, jobs: list[DraftJob], drafts: dict[int, Draft], verify: Verify | None
    ) -> None:
        spans = [self._span(job) for job in jobs]
        lengths = [max(len(rows) - self._first_draft, 0) for rows in spans]
        lengths = [min(job.k, n) for job, n in zip(jobs, lengths, strict=True)]
        batch = self._batch(jobs, spans, lengths)
        if self._post_head is None and len(batch) <= self.runner.n_batch:
            self._draft_at_once(jobs, lengths, batch, drafts, verify)
            return
        fused = None if self._post_head else self._fused_sampling(jobs, lengths)
        output = self.runner.process(batch, fused)
        for job in jobs:
            self._rewind(job.seq, len(job.history) - self._is_fed)
        if self._post_head is None:
            chosen = self._choose(jobs, lengths, output)
        elif self._passes:
            chosen = self._choose_in_passes(jobs, lengths, output)
        else:
            chosen = self._choose_in_order(jobs, lengths, output)
        self._note(jobs, lengths, chosen, drafts)

    def _draft_at_once(
        self,
        jobs: list[DraftJob],
        lengths: list[int],
        batch: Batch,
        drafts: dict[int, Draft],
        verify: Verify | None,
    ) -> None:
        """Run a block and choose its drafts in one draft run, with what verifies them."""
        settings = draft_settings(jobs, {}, self._ids)
        settings["is_block"] = True
        settings["verification"] = verify and verify(
            self.runner.plan, [job.seq for job in jobs], lengths
        )
        chosen = run_drafts([(self.runner, batch)], lengths, settings)
        for job in jobs:
            self._rewind(job.seq, len(job.history) - self._is_fed)
        self._note(jobs, lengths, chosen, drafts)

    def _note(
        self,
        jobs: list[DraftJob],
        lengths: list[int],
        chosen: list[list[int]],
        drafts: dict[int, Draft],
    ) -> None:
        """Note what was drafted; fewer tokens than were asked for mean rows that are not finite."""
        for job, k, ids in zip(jobs, lengths, chosen, strict=True):
            drafts[job.seq] = ids
            if len(ids) < k and job.p_min <= 0:
                self._pause(job.seq, len(job.history) + len(ids) - 1)

    def _span(self, job: DraftJob) -> range:
        """Return the places of a sequence's block: as many as are wanted, or as have to be."""
        begin = len(job.history) - 1
        n = job.k + self._first_draft
        end = begin + (self._size if self._is_whole else min(n, self._size))
        return range(begin, min(end, self.runner.n_ctx))

    def _batch(
        self, jobs: Sequence[DraftJob], spans: Sequence[range], lengths: Sequence[int]
    ) -> Batch:
        """Return the missing entries and the blocks; outputs are the rows that are read."""
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        wanted: list[bool] = []
        slots: dict[str, list[F32]] = {slot: [] for slot in self._masks}
        for job, span, k in zip(jobs, spans, lengths, strict=True):
            text = self._entries(job)
            n_masks = len(span) - 1
            tokens += job.history[text.start :].tolist() + [self._mask] * n_masks
            seqs += [job.seq] * (len(text) + n_masks)
            places += [*text, *span[1:]]
            read = range(self._first_row, self._first_draft + k)
            wanted += [False] * (len(text) - 1) + [row in read for row in range(len(span))]
            at = np.array(text, np.int32)
            for slot, rows in slots.items():
                rows.append(self.runner.sources[slot](np.full(len(at), job.seq, np.int32), at))
                rows.append(np.repeat(self._masks[slot], n_masks, axis=0))
        return Batch(
            tokens,
            seq=seqs,
            pos=places,
            outputs=wanted,
            slots={slot: np.concatenate(rows) for slot, rows in slots.items()},
        )

    def _fused_sampling(
        self, jobs: Sequence[DraftJob], lengths: Sequence[int]
    ) -> FusedSampling | None:
        """Return what chooses drafts while their logits are computed; None if all are needed."""
        samplers = [
            job.sampler if job.sampler.is_gumbel_max and job.p_min <= 0 else None
            for job, k in zip(jobs, lengths, strict=True)
            for _ in range(k)
        ]
        if not any(samplers):
            return None
        indices = [
            len(job.history) + i for job, k in zip(jobs, lengths, strict=True) for i in range(k)
        ]
        return FusedSampling(samplers=samplers, indices=indices, token_ids=self._ids)

    def _choose(
        self, jobs: Sequence[DraftJob], lengths: Sequence[int], output: Output, n_before: int = 0
    ) -> list[list[int]]:
        """Return each sequence's drafts, each chosen from its row with those before it known.

        Of each sequence the first ``n_before`` outputs draft nothing.
        """
        chosen: list[list[int]] = []
        begin = 0
        for job, k in zip(jobs, lengths, strict=True):
            ids: list[int] = []
            begin += n_before
            for at in range(begin, begin + k):
                token = output.chosen_at(at)
                if token is None:
                    logits = output.logits_at(at)
                    token, is_good = self._choose_from(job, logits, ids)
                    if not is_good or np.isnan(logits).any():
                        break
                ids.append(token)
            chosen.append(ids)
            begin += k
        return chosen

    def _choose_from(self, job: DraftJob, logits: F32, ids: Sequence[int]) -> tuple[int, bool]:
        """Return the draft behind these, and whether it is as probable as it is to be."""
        text = np.concatenate([job.history, np.array(ids, np.int32)])
        asked = logits, text, job.n_prompt, len(text), self._ids
        if job.p_min <= 0:  # then the sum over all logits is spared
            return job.sampler.choose(*asked), True
        token, probability = job.sampler.choose_with_probability(*asked)
        return token, probability >= job.p_min

    def _choose_in_order(
        self, jobs: Sequence[DraftJob], lengths: Sequence[int], output: Output
    ) -> list[list[int]]:
        """Return each sequence's drafts, by the post-head: row by row, from the token before."""
        post_head = self._post_head
        assert post_head is not None
        rows = self._post_head_rows(post_head, output)
        begins = np.cumsum([0, *lengths[:-1]])
        lengths = _sound(rows, lengths)
        some = [i for i, k in enumerate(lengths) if k]
        chosen: list[list[int]] = [[] for _ in jobs]
        if not some:
            return chosen
        rows = _rows_by_pass(rows, begins[some], [lengths[i] for i in some])
        pending = Batch(
            [int(jobs[i].history[-1]) for i in some],
            seq=[jobs[i].seq for i in some],
            pos=[len(jobs[i].history) - 1 for i in some],
            outputs="all",
            slots={slot: part[:, 0] for slot, part in rows.items()},
        )
        settings = draft_settings([jobs[i] for i in some], {}, self._ids)
        settings["given"] = rows
        drafted = run_drafts([(post_head, pending)], [lengths[i] for i in some], settings)
        for i, ids in zip(some, drafted, strict=True):
            chosen[i] = ids
            post_head.rewind(jobs[i].seq, 0)
        return chosen

    def _choose_in_passes(
        self, jobs: Sequence[DraftJob], lengths: Sequence[int], output: Output
    ) -> list[list[int]]:
        """Return each sequence's drafts, by the post-head: all at once, in several passes.

        Each pass reads what the one before has chosen, which is Jacobi's iteration (Wang and others
        2026, arXiv 2608.02438). Rows see none behind them, and noise belongs to a place: so draft i
        no longer changes after pass i, and a pass that changes nothing is the last one.
        """
        post_head = self._post_head
        assert post_head is not None
        rows = self._post_head_rows(post_head, output)
        n_before = self._first_draft - self._first_row
        begins = np.cumsum([0, *(n_before + k for k in lengths[:-1])])
        anyhow = [msgspec.structs.replace(job, p_min=0.0) for job in jobs]
        chosen = self._choose(anyhow, lengths, output, n_before)
        sound = _sound(rows, [n_before + k for k in lengths])
        chosen = [ids[: max(n - n_before, 0)] for ids, n in zip(chosen, sound, strict=True)]
        for _ in range(self._passes):
            before, lengths = chosen, [len(ids) for ids in chosen]
            if not any(lengths):
                break
            batch = self._pass(jobs, before, begins, rows)
            output = post_head.process(batch, self._fused_sampling(jobs, lengths))
            for job in jobs:
                post_head.rewind(job.seq, 0)
            chosen = self._choose(anyhow, lengths, output)
            if chosen == before:
                break
        return self._choose(jobs, lengths, output)

    def _pass(
        self,
        jobs: Sequence[DraftJob],
        drafts: Sequence[Sequence[int]],
        begins: NDArray[np.int64],
        rows: Mapping[str, F32],
    ) -> Batch:
        """Return the rows of a pass of the post-head, each behind the token before its draft.

        ``begins`` says where the rows of each sequence begin in ``rows``. Where the text has no
        token before the pending one, that stands for it.
        """
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        wanted: list[bool] = []
        taken: list[int] = []
        for job, ids, begin in zip(jobs, drafts, begins.tolist(), strict=True):
            known = job.history[-2:].tolist()
            text, pending = [*known, *ids], len(known) - 1
            at = range(self._first_row, self._first_draft + len(ids)) if ids else range(0)
            tokens += [text[max(pending + row - self._first_draft, 0)] for row in at]
            seqs += [job.seq] * len(at)
            places += [len(job.history) - 1 + row for row in at]
            wanted += [row >= self._first_draft for row in at]
            taken += range(begin, begin + len(at))
        slots = {  # mostly all rows, which are not copied
            slot: part if len(part) == len(taken) else part[taken] for slot, part in rows.items()
        }
        return Batch(tokens, seq=seqs, pos=places, outputs=wanted, slots=slots)

    def _post_head_rows(self, post_head: GraphRunner, output: Output) -> dict[str, F32]:
        """Return what feeds each slot of the post-head, float32[n_outputs, width]."""
        feeds = [feed for feed in self.spec.feeds if feed.graph == post_head.graph_type.name]
        return {feed.slot: self._rows(feed, output) for feed in feeds}

    def _rows(self, feed: Feed, output: Output) -> F32:
        """Return what feeds a slot of the post-head, float32[n_outputs, width]."""
        parts = []
        for name in feed.taps:
            part = np.asarray(output.logits if name == "logits" else output.tap(name))
            is_output = self.runner.program.shape(name)[0] == OUTPUTS
            parts.append(part if is_output else part[output.outputs])
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _sound(rows: Mapping[str, F32], lengths: Sequence[int]) -> list[int]:
    """Return how many rows of each sequence come before the first that is not finite.

    ``lengths`` are how many there are of each, one sequence after the other.
    """
    finite = np.ones(sum(lengths), bool)
    for part in rows.values():
        finite &= np.isfinite(part).all(axis=1)
    ends = np.cumsum(lengths).tolist()
    broken = np.flatnonzero(~finite)
    return [
        int(min(broken[(broken >= end - n) & (broken < end)], default=end)) - (end - n)
        for n, end in zip(lengths, ends, strict=True)
    ]


def _rows_by_pass(
    rows: Mapping[str, F32], begins: NDArray[np.int64], lengths: Sequence[int]
) -> dict[str, F32]:
    """Return what feeds each slot of a post-head that runs row after row.

    Row [i, p] of float32[m, n, width] is sequence i's in pass p, and ``begins`` say where its rows
    begin. Those of shorter drafts end with copies of their last row, which nobody reads.
    """
    m, n = len(lengths), max(lengths)
    at = begins[:, None] + np.minimum(np.arange(n), np.array(lengths)[:, None] - 1)
    are_all = np.array_equal(at.ravel(), np.arange(len(next(iter(rows.values()), at))))
    return {  # mostly all rows, which are not copied
        slot: part.reshape(m, n, -1) if are_all else part[at] for slot, part in rows.items()
    }


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
