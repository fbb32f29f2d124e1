"""Drafts whose passes follow each other on the device, and what verifies them, in one launch.

Of a later pass everything but tokens and recycled rows is known beforehand. So the host plans all
passes and uploads at once what they need; on the device chosen tokens and recycled rows are placed
in the rows of later passes, and the host waits once, for all drafts. A block is one pass, whose
drafts are chosen together, or one after the other where a penalty counts those before it; or a
post-head chooses them in passes of its own, which read the block's rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import (
    CheckedBatch,
    DraftRun,
    FusedSampling,
    Plan,
    PostHead,
    Verification,
)
from mtpcore.backends.block_draft import until_unreadable
from mtpcore.backends.cuda.draft_order import DraftOrder
from mtpcore.backends.cuda.launch.passes import (
    DRAFT,
    NEXT,
    PAIR,
    WORDS,
    complete,
    judge,
    place,
)
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import Drafted
from mtpcore.backends.cuda.rounds import EVERY_TOKEN, Rounds, n_tokens_of, without_drafts
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun
from mtpcore.backends.draft import check_draft, n_embeddings
from mtpcore.graph.program import OUTPUTS
from mtpcore.memory.base import Memory

__all__ = ["DraftLoop"]


class RoundShape(NamedTuple):
    """What the launches of a round depend on besides its passes.

    ``n_tokens`` tokens have embeddings in what drafts, ``n_readable`` in what verifies, too;
    ``n_drafting`` sequences are to get drafts.
    """

    n_tokens: int
    n_readable: int
    n_drafting: int
    verifies: bool


class Kept(NamedTuple):
    """Rows that a stage keeps for the slots of later ones: where they begin among all, how many.

    ``feeds`` are slots, each with the outputs whose rows, side by side, feed it.
    """

    first: int
    n: int
    feeds: tuple[tuple[str, tuple[str, ...]], ...]


NOTHING = Kept(0, 0, ())


class Stage(NamedTuple):
    """A pass of a round: its run, and what goes on between it and others.

    It makes ``n`` drafts; the one that verifies makes none. ``brought`` is what it brings from the
    host by the round's array, besides its run. Slots that are ``fed`` get rows that were kept
    before, and rows of its own are ``kept`` for others. Drafts of ``n_depths`` steps are judged in
    it, by which of the rows of ``marked`` are finite. It may only choose from what the stage before
    it ran. Where it ``may_end`` drafts, the next stage runs only if some sequence goes on; where it
    ``repeats`` drafts, only if one is another than before.
    """

    plan: DevicePlan
    run: PlannedRun
    brought: dict[str, NDArray[Any]]
    n: int = 0
    n_depths: int = 1
    only_chooses: bool = False
    fed: tuple[str, ...] = ()
    kept: Kept = NOTHING
    marked: Kept = NOTHING
    may_end: bool = False
    repeats: bool = False

    @property
    def joins(self) -> bool:
        """Whether it goes on choosing the drafts that the stage before it began to repeat."""
        return self.repeats and self.only_chooses

    @property
    def settings(self) -> Hashable:
        """What its launches depend on, besides its run and the arrays of the round."""
        return self[3:]

    def n_placed(self, what: str) -> int:
        """Return how many tokens, or rows for slots, are placed in it."""
        return len(self.brought.get(f"pairs of {what}", ()))


class DraftLoop:
    """Rounds of chains and blocks that begin with a plan.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan, self._rounds = plan, Rounds(plan)

    def can_run(self, run: DraftRun) -> bool:
        """Say whether only tokens, recycled rows and penalties depend on what is drafted."""
        plans: list[Plan | DevicePlan] = [self._plan, *(later.plan for later in run.later)]
        if run.post_head is not None:
            plans.append(run.post_head.plan)
        return (
            max(run.k, default=0) > 0
            and all(self._rounds.is_here(plan) for plan in plans)
            and len({id(plan) for plan in plans}) == len(plans)
        )

    def run(self, run: DraftRun, memory: Memory | None) -> tuple[list[list[int]], int]:
        """Return the drafts of each sequence, and how many passes ran; see ``Plan.draft``."""
        check_draft(run, self._plan.program)
        read = run.post_head and _rows_of_sequences(run.post_head.batch, run.k)
        order = DraftOrder([*run.k], is_block=run.is_block, read=read or ())
        if run.post_head is not None:
            stages = self._following(run, run.post_head, order, memory)
        else:
            stages = (self._filling if run.is_block else self._drafting)(run, order, memory)
        verification = run.verification
        target = verification and verification.plan
        if verification and target and self._rounds.is_here(target):
            stages.append(self._verifying(order, target, verification))
            wanted = [order.number(i, k - 1) for i, k in enumerate(order.k) if k]
            stages[0].brought["wanted"] = np.array(wanted, np.int32)  # the last draft looks at it
        shape = self._launch(run, stages)
        raw = self._plan.device.read(self._rounds.arrays["drafts"], 0, order.n * DRAFT.itemsize)
        drafts, n_passes = order.read(np.frombuffer(raw, DRAFT))
        if run.post_head is not None:
            n_tokens = n_embeddings(run.post_head.plan.program)
            drafts = [until_unreadable(ids, n_tokens) for ids in drafts]
        is_whole = [*map(len, drafts)] == order.k and max(chain(*drafts)) < shape.n_readable
        if verification and shape.verifies and is_whole:
            verification.arrays = stages[-1].plan.result(verification.batch)
        return drafts, 1 if run.is_block else n_passes

    # What the host plans

    def _drafting(self, run: DraftRun, order: DraftOrder, memory: Memory | None) -> list[Stage]:
        """Return the passes that draft, all checked before anything is uploaded."""
        passes: list[tuple[DevicePlan, Memory | None, CheckedBatch]] = []
        passes.append((self._plan, memory, run.batch))
        if run.later:
            passes += [(cast(DevicePlan, one.plan), one.memory, one.batch) for one in run.later]
        else:
            batches = _chain(run.batch, order, 0 if run.in_place else 1)
            passes += [(self._plan, memory, batch) for batch in batches]
        passes = [
            (plan, its_memory, _choosing(batch, run, order.passes[p], p))
            for p, (plan, its_memory, batch) in enumerate(passes[: len(order.passes)])
        ]
        for p, (plan, its_memory, batch) in enumerate(passes):
            if p and not run.later:  # its slots are filled in
                plan.check_memory(batch, its_memory)
            else:
                plan.check(batch, its_memory)
        feeds = tuple((slot, (name,)) for slot, name in run.recycle.items())
        stages = []
        for p, (plan, its_memory, batch) in enumerate(passes):
            has_odds = any(run.p_min[i] > 0 for i in order.passes[p])
            drafted, parts = order.texts({row: (i, p) for row, i in enumerate(order.passes[p])})
            planned = plan.take(batch, its_memory, has_odds=has_odds, drafted=parts)
            pairs = order.filled(p, batch) if run.later else order.chained(p)
            placed = _placed(pairs, pairs if run.recycle else None)
            brought = {"steps": order.steps(p, [*run.p_min]), **placed}
            brought["drafted"] = drafted
            if not p:
                brought["drafts"] = order.none
            first, n = order.first[p], len(order.passes[p])
            kept = Kept(first, n, feeds) if p + 1 < len(passes) else NOTHING
            fed, ends = tuple(run.recycle), max(run.p_min) > 0
            stage = Stage(plan, planned, brought, n, fed=fed, kept=kept, marked=kept, may_end=ends)
            stages.append(stage)
        self._keep(feeds, order.n, len(run.k))
        return stages

    def _filling(self, run: DraftRun, order: DraftOrder, memory: Memory | None) -> list[Stage]:
        """Return the pass that runs a block, and the steps that choose drafts from its rows."""
        self._plan.check(_choosing_in_block(run.batch, run, range(len(order.passes))), memory)
        self._keep((), 0, 0)  # no row is recycled
        first, *others = self._choosing(self._plan, run.batch, memory, run, order)
        return [first._replace(brought=first.brought | {"drafts": order.none}), *others]

    def _following(
        self, run: DraftRun, post_head: PostHead, order: DraftOrder, memory: Memory | None
    ) -> list[Stage]:
        """Return the pass that runs a block, and those of the post-head that chooses its drafts."""
        plan, rows = cast(DevicePlan, post_head.plan), post_head.batch
        wanted = _choosing_in_block(rows, run, range(len(order.passes))).fused_sampling
        assert plan.choice is not None
        assert wanted is not None
        self._plan.check(run.batch, memory)
        plan.check_memory(rows, post_head.memory)  # the block feeds its slots
        plan.choice.check(wanted, order.n)
        feeds = tuple((slot, tuple(names)) for slot, names in post_head.feeds.items())
        kept = Kept(0, len(rows.tokens), feeds)
        self._keep(feeds, kept.n, kept.n)
        block = self._plan.take(run.batch, memory)
        first = Stage(self._plan, block, {"drafts": order.none}, kept=kept)
        if post_head.passes:
            behind = self._in_passes(run, post_head, order, block)
        else:
            behind = self._in_order(run, post_head, order)
        fed = tuple(post_head.feeds)
        return [first, *(stage._replace(fed=fed, marked=kept) for stage in behind)]

    def _in_order(self, run: DraftRun, post_head: PostHead, order: DraftOrder) -> Iterator[Stage]:
        """Yield the passes of a post-head that runs row by row."""
        plan = cast(DevicePlan, post_head.plan)
        for p, active in enumerate(order.passes):
            at = [order.read_rows[i].start + p for i in active]
            batch = _choosing(_row_of_each(post_head.batch, at), run, active, p)
            drafted, parts = order.texts({row: (i, p) for row, i in enumerate(active)})
            has_odds = any(run.p_min[i] > 0 for i in active)
            planned = plan.take(batch, post_head.memory, has_odds=has_odds, drafted=parts)
            rows = np.array([*zip(at, range(len(at)), strict=True)], PAIR)
            brought = {"steps": order.steps(p, [*run.p_min]), "drafted": drafted}
            brought |= _placed(order.chained(p), rows if post_head.feeds else None)
            yield Stage(plan, planned, brought, len(active), may_end=max(run.p_min) > 0)

    def _in_passes(
        self, run: DraftRun, post_head: PostHead, order: DraftOrder, block: PlannedRun
    ) -> Iterator[Stage]:
        """Yield what chooses from a block's logits, and passes of a post-head with all rows.

        Each pass settles one more draft, so no more are needed than there are drafts, and none
        behind one that changes nothing. Where it matters how probable drafts are, the last pass
        always runs, and alone looks at that.
        """
        plan, rows = cast(DevicePlan, post_head.plan), post_head.batch
        anyhow = msgspec.structs.replace(run, p_min=[0.0] * len(run.k))
        n_before = max(len(read) - k for read, k in zip(order.read_rows, run.k, strict=True))
        yield from self._choosing(
            self._plan, run.batch, None, anyhow, order, ran=block, n_before=n_before
        )
        same = np.array([(row, row) for row in range(len(rows.tokens))], PAIR)
        placed = _placed(order.behind(), same if post_head.feeds else None)
        n_passes = min(post_head.passes, len(order.passes))
        n_repeating = n_passes - 1 if max(run.p_min) > 0 else n_passes
        for number in range(n_passes):
            repeats = number < n_repeating
            wanted = anyhow if repeats else run
            stages = self._choosing(plan, rows, post_head.memory, wanted, order)
            stages[0].brought.update(placed)
            for stage in stages:
                # Each step of the last pass runs, or its draft would be that of the pass before.
                is_last = number + 1 == n_passes and stage is stages[-1]
                may_end = number + 1 < n_repeating if repeats else is_last
                yield stage._replace(may_end=may_end, repeats=repeats)

    def _choosing(
        self,
        plan: DevicePlan,
        rows: CheckedBatch,
        memory: Memory | None,
        run: DraftRun,
        order: DraftOrder,
        *,
        ran: PlannedRun | None = None,
        n_before: int = 0,
    ) -> list[Stage]:
        """Return the pass that runs rows which choose all drafts, and the steps that choose.

        All are chosen in one step where no choice depends on another. ``ran`` is the run, where it
        is that of a stage before. Of each sequence ``n_before`` outputs choose nothing.
        """
        assert plan.choice is not None
        each = range(len(order.passes))
        has_penalties = any(sampler.sampling.has_penalties for sampler in run.samplers)
        stages = list[Stage]()
        for steps in [range(p, p + 1) for p in each] if has_penalties else [each]:
            n = sum(len(order.passes[p]) for p in steps)
            has_odds = any(run.p_min[i] > 0 for i in order.passes[steps[0]])
            batch, only_chooses = _choosing_in_block(rows, run, steps, n_before), ran is not None
            places = [*enumerate(_places(run.k, n_before))] if has_penalties else []
            drafted, parts = order.texts({row: (i, p) for row, (i, p) in places if p in steps})
            if ran is not None:
                assert batch.fused_sampling is not None
                choosing, more = plan.choice.take(
                    batch.fused_sampling, has_odds=has_odds, drafted=parts
                )
                shape = ran.shape._replace(n_parts=len(more), choosing=choosing)
                planned = PlannedRun(shape, more)
            else:
                planned = ran = plan.take(batch, memory, has_odds=has_odds, drafted=parts)
            brought = {"steps": order.steps_at_once(steps, [*run.p_min]), "drafted": drafted}
            ends = max(run.p_min) > 0
            stage = Stage(plan, planned, brought, n, len(steps), only_chooses, may_end=ends)
            stages.append(stage)
        return stages

    def _keep(self, feeds: tuple[tuple[str, tuple[str, ...]], ...], n: int, n_marked: int) -> None:
        """Make room for n rows of each slot, and for marks of ``n_marked``."""
        program = self._plan.program
        for slot, names in feeds:
            width = sum(int(program.shape(name)[1]) for name in names)
            self._rounds.room(f"rows of {slot}", n, np.float32, width)
        self._rounds.room("marks", len(feeds) * n_marked, np.int32)

    def _verifying(self, order: DraftOrder, plan: DevicePlan, verification: Verification) -> Stage:
        """Return the pass of the target."""
        memory, first = verification.memory, [*verification.first]
        rows = {first[i] + n: (i, n) for i, k in enumerate(order.k) for n in range(k + 1)}
        outputs = enumerate(verification.batch.outputs.tolist())
        lengths = {output: rows[row] for output, row in outputs if row in rows}
        batch = without_drafts(verification.batch, lengths)
        plan.check(batch, memory)
        drafted, parts = order.texts(lengths)
        brought = {"drafted": drafted, **_placed(order.verified(first))}
        return Stage(plan, plan.take(batch, memory, drafted=parts), brought)

    # What the device does

    def _launch(self, run: DraftRun, stages: list[Stage]) -> RoundShape:
        """Start all passes: as a graph that leaves out what nobody goes on to, or one by one."""
        verifies = not stages[-1].n
        n_drafting = sum(k > 0 for k in run.k)
        drafting = stages[:-1] if verifies else stages
        is_chain = not run.is_block or (run.post_head is not None and not run.post_head.passes)
        n_tokens = n_tokens_of(drafting) if is_chain else EVERY_TOKEN
        shape = RoundShape(n_tokens, n_tokens_of(stages), n_drafting, verifies)
        self._rounds.start(shape, stages, partial(self._launches, shape))
        return shape

    def _launches(
        self, shape: RoundShape, stage: Stage, is_last_draft: bool, following: Any
    ) -> Iterator[Launch]:
        """Yield the launches of a pass; ``following`` is the condition of the next one."""
        plan, arrays, program = stage.plan, self._rounds.arrays, stage.plan.program
        if n := stage.n_placed("tokens"):
            pairs, tokens = arrays["pairs of tokens"], plan.arrays[program.inputs["tokens"]]
            yield place(arrays["drafts"], pairs, tokens, n, 1)
        if n := stage.n_placed("rows"):
            for slot in stage.fed:
                rows, to = arrays[f"rows of {slot}"], plan.arrays[program.inputs[slot]]
                yield place(rows, arrays["pairs of rows"], to, n, to.shape[1])
        drafted = Drafted(arrays["drafts"], arrays["drafted"])
        choice, choosing = plan.choice, stage.run.shape.choosing
        if stage.only_chooses:
            assert choice is not None
            assert choosing is not None
            yield from choice.launches(choosing, drafted)
        else:
            yield from plan.launches(stage.run, drafted)
        yield from self._keeping(plan, stage.kept)
        if not stage.n:
            return
        assert choice is not None
        assert choosing is not None
        is_for_verification = is_last_draft and shape.verifies and following is not None
        yield judge(
            *(choice.ids, arrays["steps"], arrays["marks"], choice.logits),
            *(choice.odds if choosing.has_odds else None, arrays["drafts"]),
            n=stage.n,
            n_depths=stage.n_depths,
            n_marks=len(stage.marked.feeds),
            n_marked=stage.marked.n,
            n_tokens=shape.n_tokens,
            n_readable=shape.n_readable,
            repeats=stage.repeats,
            condition=None if is_for_verification else following,
        )
        if is_for_verification:
            yield complete(arrays["drafts"], arrays["wanted"], shape.n_drafting, following)

    def _keeping(self, plan: DevicePlan, kept: Kept) -> Iterator[Launch]:
        """Yield what keeps rows of a pass, and says which are not finite."""
        arrays, program = self._rounds.arrays, plan.program
        for number, (slot, names) in enumerate(kept.feeds):
            rows, left = arrays[f"rows of {slot}"], 0
            for name in names:
                made = plan.arrays[program.outputs[name]]
                which = None if program.shape(name)[0] == OUTPUTS else plan.rows.outputs
                yield copy_rows(made, rows, kept.n, rows=which, to_row=kept.first, to=left)
                left += made.shape[1]
            yield mark_not_finite(rows, arrays["marks"], kept.first, kept.n, number * kept.n)


def _placed(
    tokens: NDArray[np.void], rows: NDArray[np.void] | None = None
) -> dict[str, NDArray[Any]]:
    """Return what places drafts as tokens, and rows for slots, as ``PAIR`` [n] says."""
    placed: dict[str, NDArray[Any]] = {}
    if len(tokens):
        placed["pairs of tokens"] = tokens.copy()
        placed["pairs of tokens"]["from"] = WORDS * tokens["from"] + NEXT
    if rows is not None and len(rows):
        placed["pairs of rows"] = rows
    return placed


def _rows_of_sequences(batch: CheckedBatch, k: Sequence[int]) -> list[range]:
    """Return the rows of each sequence of a post-head; none of those that get no drafts."""
    ends = [0, *(np.flatnonzero(np.diff(batch.seq, append=-1)) + 1).tolist()]
    rows = map(range, ends, ends[1:])
    return [next(rows) if n else range(0) for n in k]


def _row_of_each(batch: CheckedBatch, rows: list[int]) -> CheckedBatch:
    """Return some rows of a batch, which all are outputs; no slots."""
    return CheckedBatch(
        tokens=batch.tokens[rows],
        positions=batch.positions[rows],
        seq=batch.seq[rows],
        place=batch.place[rows],
        outputs=np.arange(len(rows), dtype=np.int32),
    )


def _choosing(batch: CheckedBatch, run: DraftRun, active: list[int], p: int) -> CheckedBatch:
    """Return a pass's batch with the samplers of its sequences, and the texts before all drafts."""
    wanted = FusedSampling(
        samplers=[run.samplers[i] for i in active],
        indices=[run.indices[i] + p for i in active],
        token_ids=run.token_ids,
        texts=[run.history[i] for i in active],
        n_prompt=[run.n_prompt[i] for i in active],
    )
    return msgspec.structs.replace(batch, fused_sampling=wanted)


def _places(k: Sequence[int], n_before: int) -> list[tuple[int, int]]:
    """Return of each output of a block its sequence and draft; below 0 where it chooses none."""
    return [(i, p) for i, n in enumerate(k) if n for p in range(-n_before, n)]


def _choosing_in_block(
    batch: CheckedBatch, run: DraftRun, steps: range, n_before: int = 0
) -> CheckedBatch:
    """Return a block whose rows of some steps choose, after the texts before all drafts."""
    places = _places(run.k, n_before)
    wanted = FusedSampling(
        samplers=[run.samplers[i] if p in steps else None for i, p in places],
        indices=[run.indices[i] + p for i, p in places],
        token_ids=run.token_ids,
        texts=[run.history[i] for i, _ in places],
        n_prompt=[run.n_prompt[i] for i, _ in places],
    )
    return msgspec.structs.replace(batch, fused_sampling=wanted)


def _chain(batch: CheckedBatch, order: DraftOrder, step: int) -> list[CheckedBatch]:
    """Return the later passes of a chain: each has a row of each sequence, ``step`` places on."""
    batches = []
    for p, active in enumerate(order.passes):
        newest, ahead = batch.outputs[active], np.int32(p * step)
        batches.append(
            CheckedBatch(
                tokens=np.zeros(len(active), np.int32),
                positions=batch.positions[newest] + ahead,
                seq=batch.seq[newest],
                place=batch.place[newest] + ahead,
                outputs=np.arange(len(active), dtype=np.int32),
            )
        )
    return batches[1:]
