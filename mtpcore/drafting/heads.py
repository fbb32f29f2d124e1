"""Drafting with several heads: each drafts one step, or level, and has a memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.base import RoundDrafter
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.entries import Entries
from mtpcore.drafting.levels import Levels, levels_for
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_heads, is_blind
from mtpcore.drafting.upstream import UpstreamGraphs
from mtpcore.errors import LinkError
from mtpcore.runtime.arrival import hand_over, join
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["HeadDrafter", "find_heads", "head_role", "n_heads"]

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
        spec, self.upstream = heads[name].drafter, upstream
        assert spec is not None
        feeds = [feed for feed in spec.feeds if not feed.graph]
        self._reads_target = spec.heads.hidden_from == "target"
        fed = () if self._reads_target else feeds
        inputs = RoundInput(
            programs=[runner.program for runner in heads.values()],
            feeds={feed.slot: (feed.recycle,) for feed in fed if feed.recycle},
            tree=spec.tree,
        )
        super().__init__(name, {**upstream.runners, **heads}, heads[name], draft_heads, inputs)
        self._heads = [
            Entries(runner, feeds, upstream, ahead=head * self._reads_target)
            for head, runner in enumerate(heads.values())
        ]
        self._n_batch = min(runner.n_batch for runner in heads.values())
        n_rows = max(len(heads), spec.tree.n_branches if spec.tree else 0)
        self._zeros = [  # in the place of rows that heads before make
            {
                slot: hand_over(np.zeros((n_rows, width), np.float32), runner.backend.row_buffer)
                for slot, width in runner.program.slots().items()
            }
            for runner in heads.values()
        ]
        self._remembers = any(entries.remembers for entries in self._heads)
        self.reads_text = self._remembers or bool(upstream.runners)

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Let each head hold exactly the entries of the tokens that the target has processed."""
        for entries in self._heads:
            entries.settle(seq, history)

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to one token a head for each job; sequences leave the loop one by one.

        A sequence with a non-finite hidden row gets no further drafts. What a head reads runs in
        one piece, so there are at most ``n_batch`` drafts.
        """
        drafts: dict[int, Draft] = {job.seq: [] for job in jobs}
        self.upstream.fill({job.seq: job.history[:-1] for job in jobs})
        jobs = [replace(job, k=self._reach(job)) for job in jobs]
        jobs = [job for job in jobs if job.k > 0]
        most = max((job.k for job in jobs), default=1)
        if self.spec.tree is not None:
            most = 1 + self.spec.tree.n_branches
        n_together = max(self._n_batch // most, 1)
        for begin in range(0, len(jobs), n_together):
            drafts |= self._draft_together(jobs[begin : begin + n_together], verify)
        return drafts

    def _reach(self, job: DraftJob) -> int:
        """Return how many drafts the target's rows allow, of those wanted."""
        most = min(job.k, len(self._heads), self._n_batch)
        for head, entries in enumerate(self._heads[:most]):
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
        return self._heads[head].missing(job.seq, len(job.history) + head * self._reads_target)

    def _draft_together(self, jobs: Sequence[DraftJob], verify: Verify | None) -> dict[int, Draft]:
        """Draft up to k tokens for each job, in one call without the GIL."""
        lengths, room = [job.k for job in jobs], [self._room(job, len(jobs)) for job in jobs]
        has_paths = self.spec.tree is None or self._remembers
        levels = levels_for(self.spec.tree, lengths, room, has_paths=has_paths)
        self._catch_up(jobs)
        heads = self._heads[: max(lengths)]
        reserved = [
            ReservedRows(entries.runner, self._batch(head, jobs, levels))
            for head, entries in enumerate(heads)
        ]
        passes = [rows.given for rows in reserved]
        drafts = self._run_round(jobs, lengths, room, passes, reserved, verify)
        for job in jobs:
            for entries in heads:
                entries.rewind(job.seq, len(job.history) - 1)
        return drafts

    def _room(self, job: DraftJob, n_jobs: int) -> int:
        """Return how many rows of drafts a sequence may have in a pass."""
        runners = [entries.runner for entries in self._heads]
        n_ctx = min(runner.n_ctx for runner in runners)
        longest = min(runner.longest_draft for runner in runners)
        return max(min(n_ctx - len(job.history), self._n_batch // n_jobs - 1, longest), 0)

    def _catch_up(self, jobs: Sequence[DraftJob]) -> None:
        """Let heads read accepted entries that do not fit the rows of a draft, or of a tree."""
        room = self._n_batch // len(jobs)
        for job in jobs:
            for head, entries in enumerate(self._heads[: job.k]):
                lacking = entries.missing(job.seq, len(job.history) + head)
                if self.spec.tree is not None or len(lacking) > room:
                    entries.settle(job.seq, job.history[:-1])

    def _batch(self, head: int, jobs: Sequence[DraftJob], levels: Levels) -> Batch:
        """Return what a head reads: accepted entries it lacks, the pending token, the drafts.

        The tokens of drafts, and the rows that heads before make, are filled in by the loop.
        """
        entries, runner = self._heads[head], self._heads[head].runner
        widths, make = runner.program.slots(), runner.backend.row_buffer
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        parent: list[int] = []
        outputs: list[bool] = []
        slots: dict[str, list[F32]] = {slot: [] for slot in widths}
        branches = self.spec.tree is not None
        for text, job in enumerate(jobs):
            if not levels.choosing(text, head):
                continue
            depths, pending = self._depths(head, text, levels), len(job.history) - 1
            begin = entries.missing(job.seq, pending + 1).start
            known = range(begin if entries.remembers or not head else pending + 1, pending + 1)
            at = [*known, *(pending + depth for depth in depths)]
            at = [place for place in at if place >= entries.first]
            if branches:
                row_at = {place: len(tokens) + i for i, place in reversed([*enumerate(at)])}
                parent += [row_at.get(place - 1, -1) for place in at]
            tokens += [int(job.history[place]) if place <= pending else 0 for place in at]
            seqs += [job.seq] * len(at)
            places += at
            outputs += [place == pending + head for place in at]
            n_known = len(at) if self._reads_target else len(known)
            for slot, slot_rows in slots.items():
                if n_known:
                    slot_rows += self._fetch(head, slot, job.seq, at[:n_known])
                if n_known < len(at):
                    slot_rows.append(self._zeros[head][slot][: len(at) - n_known])
        batch = Batch(
            tokens, seq=seqs, pos=places, parent=parent if branches else None, outputs=outputs
        )
        batch.slots = {slot: join(rows, widths[slot], make) for slot, rows in slots.items()}
        return batch

    def _fetch(self, head: int, slot: str, seq: int, places: list[int]) -> list[F32]:
        """Return the target's rows for these places, ascending, some of them more than once."""
        each = np.arange(places[0], places[-1] + 1, dtype=np.int32)
        rows: F32 = self._heads[head].runner.sources[slot](np.full(len(each), seq, np.int32), each)
        if len(each) == len(places):
            return [rows]
        return [rows[place - places[0] :][:1] for place in places]

    def _depths(self, head: int, text: int, levels: Levels) -> list[int]:
        """Return how many drafts come before each row of a draft that a head reads of a text."""
        entries, is_chain = self._heads[head], self.spec.tree is None
        reads_newest = is_chain and not entries.remembers
        if reads_newest or (not is_chain and is_blind(entries.runner.program, self._inputs.feeds)):
            return [head] * (head > 0)
        return [depth for depth, _ in levels.branches(text, head)]


def head_role(role: str, head: int) -> str:
    """Return the role of a head of the drafter in ``role``."""
    return f"{role}_head{head}" if head else role


def find_heads(role: str, runners: Mapping[str, GraphRunner]) -> dict[str, GraphRunner]:
    """Return the graphs of the heads of the drafter in ``role``, by role in their order.

    Raises
    ------
    LinkError
        One is missing, or runs another graph.
    """
    runner = runners[role]
    spec = runner.drafter
    assert spec is not None
    heads = {role: runner}
    for head in range(1, n_heads(spec)):
        name = head_role(role, head)
        candidate = runners.get(name)
        if (
            candidate is None
            or candidate.head != head
            or candidate.drafter != spec
            or candidate.graph_type != runner.graph_type
            or candidate.model is not runner.model
        ):
            raise LinkError(
                "a head of the drafter has no context",
                where=f"role {role}, drafter {spec.name!r}",
                wanted=f"head {head} in the role {name}",
                got=", ".join(runners) if candidate is None else repr(candidate),
                fix=f"{name}=Context(model, graph_type='draft', "
                f"drafter={spec.name!r}, head={head}), or let link() make the contexts",
            )
        heads[name] = candidate
    return heads


def n_heads(spec: DrafterSpec) -> int:
    """Return how many heads have contexts of their own."""
    assert isinstance(spec.heads.count, int)
    return spec.heads.count if spec.heads.order == "each-step" else 1
