"""Drafts whose passes follow each other on the device, and what verifies them, in one launch.

Of a later pass everything but tokens and recycled rows is known beforehand. So the host plans all
passes and uploads at once what they need; on the device chosen tokens and recycled rows are placed
in the rows of later passes, and the host waits once, for all drafts. A block is one pass, whose
drafts are chosen together, or one after the other where a penalty counts those before it; or a
post-head chooses them in passes of its own, which read the block's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.base import (
    CheckedBatch,
    DraftRun,
    FusedSampling,
    Plan,
    PostHead,
    Verification,
)
from mtpcore.backends.block_draft import until_unreadable
from mtpcore.backends.cuda.choice import DraftedParts
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import (
    DRAFT,
    NEXT,
    NO_DRAFT,
    PAIR,
    STEP,
    WORDS,
    complete,
    judge,
    place,
    spread,
)
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Launch, start
from mtpcore.backends.cuda.launch.tokens import Drafted
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun
from mtpcore.backends.cuda.staging import Part
from mtpcore.backends.draft import check_draft, n_embeddings
from mtpcore.graph.program import OUTPUTS
from mtpcore.memory.base import Memory

__all__ = ["EVERY_TOKEN", "DraftLoop", "DraftOrder", "n_tokens_of", "without_drafts"]

EVERY_TOKEN = int(np.iinfo(np.int32).max)


class DraftOrder:
    """Which sequences are in each pass, and the numbers of their drafts.

    Sequence i is in pass p if ``k[i] > p``, and each is in the first; ``passes`` has them in order.
    Of a block all drafts come from one pass, and those are its steps, without sequences that get
    none. The drafts of a pass have the numbers from ``first`` of it on, ``n`` are all.

    Each draft is chosen behind a row of those of a block that feed its post-head: ``read`` are the
    rows of each sequence. Without them what feeds a pass is in the order of its sequences.
    """

    def __init__(self, k: list[int], *, is_block: bool = False, read: Sequence[range] = ()) -> None:
        self.k, self.read_rows, each = k, read, range(max(k))
        self.passes = [
            [i for i, most in enumerate(k) if most > p or not (p or is_block)] for p in each
        ]
        self.first = [sum(map(len, self.passes[:p])) for p in each]
        self.n = sum(map(len, self.passes))

    def number(self, i: int, p: int) -> int:
        """Return the number of the draft that sequence i gets from pass p."""
        return self.first[p] + self.passes[p].index(i)

    @property
    def none(self) -> NDArray[np.void]:
        """``DRAFT`` [n] before any is made."""
        return np.array([(NO_DRAFT, 0, 0)] * self.n, DRAFT)

    def texts(
        self, lengths: Mapping[int, tuple[int, int]]
    ) -> tuple[NDArray[np.int32], DraftedParts]:
        """Return the drafts that texts go on with, and the part of each output.

        ``lengths`` are of each output its sequence, and how many of its drafts.
        """
        numbers: list[int] = []
        parts = dict[int, tuple[int, int]]()
        for output, (i, n) in lengths.items():
            parts[output] = len(numbers), n
            numbers += [self.number(i, p) for p in range(n)]
        return np.array(numbers, np.int32), parts

    def steps(self, p: int, p_min: list[float]) -> NDArray[np.void]:
        """Return ``STEP`` of each sequence of a pass."""
        before = [self.number(i, p - 1) if p else -1 for i in self.passes[p]]
        steps = np.zeros(len(before), STEP)
        steps["p_min"] = [p_min[i] for i in self.passes[p]]
        steps["number"] = self.first[p] + np.arange(len(steps))
        steps["before"] = before
        steps["is_to_go_on"] = [self.k[i] > p + 1 for i in self.passes[p]]
        steps["read_next"] = np.arange(len(steps))
        if self.read_rows:
            rows = [(self.read_rows[i], self.k[i] - p) for i in self.passes[p]]
            steps["first_read"] = [read.start for read, _ in rows]
            steps["n_read"] = [0 if p else len(read) - n + 1 for read, n in rows]
            steps["read_next"] = [read.stop - n + 1 for read, n in rows]
        return steps

    def steps_at_once(self, steps: range, p_min: list[float]) -> NDArray[np.void]:
        """Return ``STEP`` of each draft of some steps of a block, which are judged together.

        They come by sequence, as rows do.
        """
        parts = [self.steps(p, p_min) for p in steps]
        for depth, part in enumerate(parts):
            part["depth"] = depth
        numbers = [self.number(i, p) for i, k in enumerate(self.k) for p in steps if p < k]
        at = np.array(numbers) - self.first[steps[0]]
        made: NDArray[np.void] = np.concatenate(parts)[at]
        return made

    def chained(self, p: int) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and rows, where a pass has one row of each sequence."""
        pairs = [(self.number(i, p - 1), row) for row, i in enumerate(self.passes[p]) if p]
        return np.array(pairs, PAIR)

    def filled(self, p: int, batch: CheckedBatch) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and rows, where a pass has the newest rows of its sequences."""
        pairs = []
        for i, newest in zip(self.passes[p], batch.outputs.tolist(), strict=True):
            for draft in range(p):
                row = newest - p + 1 + draft
                if row >= 0 and batch.seq[row] == batch.seq[newest]:
                    pairs.append((self.number(i, draft), row))
        return np.array(pairs, PAIR)

    def behind(self) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and the rows behind them, where a post-head has all rows."""
        drafts = [(i, p) for i, k in enumerate(self.k) for p in range(k - 1)]
        rows = [(self.number(i, p), self.read_rows[i].stop - self.k[i] + p + 1) for i, p in drafts]
        return np.array(rows, PAIR)

    def verified(self, first: list[int]) -> NDArray[np.void]:
        """Return ``PAIR`` of all drafts and their rows, which follow ``first`` of each sequence."""
        drafts = [(i, p) for i, k in enumerate(self.k) for p in range(k)]
        return np.array([(self.number(i, p), first[i] + 1 + p) for i, p in drafts], PAIR)

    def read(self, drafted: NDArray[np.void]) -> tuple[list[list[int]], int]:
        """Return the drafts of each sequence from ``DRAFT`` [n], and how many passes they took."""
        drafts: list[list[int]] = [[] for _ in self.k]
        n_passes = 0
        for p, sequences in enumerate(self.passes):
            if p and not drafted["goes_on"][self.first[p - 1] : self.first[p]].any():
                break
            n_passes += 1
            for i in sequences:
                token = int(drafted["token"][self.number(i, p)])
                if token >= 0 and self.k[i]:
                    drafts[i].append(token)
        return drafts, n_passes


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
    it ran. Where it ``may_end`` drafts, the next stage runs only if some sequence goes on.
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
    may_end: bool = True

    @property
    def key(self) -> Hashable:
        """What its launches depend on, besides the arrays of the round; it keeps the plan's."""
        lengths = tuple((name, len(values)) for name, values in self.brought.items())
        return (self.plan, self.run.shape, lengths, *self[3:])

    def n_placed(self, what: str) -> int:
        """Return how many tokens, or rows for slots, are placed in it."""
        return len(self.brought.get(f"pairs of {what}", ()))


class RoundStage(Protocol):
    """What rounds are made of: stages of chains and blocks, or of trees."""

    @property
    def plan(self) -> DevicePlan:
        """Of the pass."""

    @property
    def run(self) -> PlannedRun:
        """The pass."""

    @property
    def brought(self) -> dict[str, NDArray[Any]]:
        """What it brings from the host by the round's array, besides its run."""

    @property
    def n(self) -> int:
        """How many drafts, or nodes, it makes; 0 where it verifies."""

    @property
    def may_end(self) -> bool:
        """Whether the next one runs only if some sequence goes on."""

    @property
    def key(self) -> Hashable:
        """What its launches depend on, besides the arrays of the round."""


_Stage = TypeVar("_Stage", bound=RoundStage)


class DraftLoop:
    """Rounds that begin with a plan, and the arrays in which its passes leave each other rows.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan, self._device = plan, plan.device
        self.arrays: dict[str, DeviceArray] = {}
        self._n_made = 0  # arrays, of which some have gone

    def can_run(self, run: DraftRun) -> bool:
        """Say whether only tokens, recycled rows and penalties depend on what is drafted."""
        plans: list[Plan | DevicePlan] = [self._plan, *(later.plan for later in run.later)]
        if run.post_head is not None:
            plans.append(run.post_head.plan)
        return (
            max(run.k, default=0) > 0
            and all(self.is_here(plan) for plan in plans)
            and len({id(plan) for plan in plans}) == len(plans)
        )

    def is_here(self, plan: Plan | DevicePlan) -> TypeGuard[DevicePlan]:
        """Whether a plan is on the same device."""
        return isinstance(plan, type(self._plan)) and plan.device is self._device

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
        if verification and target and self.is_here(target):
            stages.append(self._verifying(order, target, verification))
            wanted = [order.number(i, k - 1) for i, k in enumerate(order.k) if k]
            stages[0].brought["wanted"] = np.array(wanted, np.int32)  # the last draft looks at it
        shape = self._launch(run, stages)
        raw = self._device.read(self.arrays["drafts"], 0, order.n * DRAFT.itemsize)
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
            fed = tuple(run.recycle)
            stages.append(Stage(plan, planned, brought, n, fed=fed, kept=kept, marked=kept))
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
        first = Stage(self._plan, block, {"drafts": order.none}, kept=kept, may_end=False)
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
            yield Stage(plan, planned, brought, len(active))

    def _in_passes(
        self, run: DraftRun, post_head: PostHead, order: DraftOrder, block: PlannedRun
    ) -> Iterator[Stage]:
        """Yield what chooses from a block's logits, and passes of a post-head with all rows.

        Each pass settles one more draft, so no more are needed than there are drafts.
        """
        plan, rows = cast(DevicePlan, post_head.plan), post_head.batch
        anyhow = msgspec.structs.replace(run, p_min=[0.0] * len(run.k))
        n_before = max(len(read) - k for read, k in zip(order.read_rows, run.k, strict=True))
        for stage in self._choosing(
            self._plan, run.batch, None, anyhow, order, ran=block, n_before=n_before
        ):
            yield stage._replace(may_end=False)
        same = np.array([(row, row) for row in range(len(rows.tokens))], PAIR)
        placed = _placed(order.behind(), same if post_head.feeds else None)
        n_passes = min(post_head.passes, len(order.passes))
        for number in range(n_passes):
            wanted = run if number == n_passes - 1 else anyhow
            stages = self._choosing(plan, rows, post_head.memory, wanted, order)
            stages[0].brought.update(placed)
            for stage in stages:
                yield stage._replace(may_end=False)

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
            stages.append(Stage(plan, planned, brought, n, len(steps), only_chooses))
        return stages

    def _keep(self, feeds: tuple[tuple[str, tuple[str, ...]], ...], n: int, n_marked: int) -> None:
        """Make room for n rows of each slot, and for marks of ``n_marked``."""
        program = self._plan.program
        for slot, names in feeds:
            width = sum(int(program.shape(name)[1]) for name in names)
            self.room(f"rows of {slot}", n, np.float32, width)
        self.room("marks", len(feeds) * n_marked, np.int32)

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

    def room(self, name: str, n: int, dtype: DTypeLike, *width: int) -> DeviceArray:
        """Return an array of n rows, or more: it stays where it is as long as it has room."""
        held = self.arrays.get(name)
        if held is None or held.shape[0] < n or held.shape[1:] != width:
            most = 1 << max(n - 1, 0).bit_length()
            self._n_made += 1  # first: cut off in between, no graph is taken for another's
            self.arrays[name] = self._device.empty((most, *width), dtype)
        return self.arrays[name]

    # What the device does

    def _launch(self, run: DraftRun, stages: list[Stage]) -> RoundShape:
        """Start all passes: as a graph that leaves out what nobody goes on to, or one by one."""
        verifies = not stages[-1].n
        n_drafting = sum(k > 0 for k in run.k)
        drafting = stages[:-1] if verifies else stages
        is_chain = not run.is_block or (run.post_head is not None and not run.post_head.passes)
        n_tokens = n_tokens_of(drafting) if is_chain else EVERY_TOKEN
        shape = RoundShape(n_tokens, n_tokens_of(stages), n_drafting, verifies)
        self.start(shape, stages, partial(self._launches, shape), max(run.p_min) > 0)
        return shape

    def start(
        self,
        shape: Hashable,
        stages: Sequence[_Stage],
        launches: Callable[[_Stage, int, bool, Any], Iterator[Launch]],
        has_conditions: bool,
    ) -> None:
        """Start stages, each with what it brings; ``launches`` are those of a stage.

        They depend on nothing but ``shape`` and the stage. ``launches`` is given where the table of
        what is brought begins, whether it is the last one that drafts, and the condition of the
        following one, if that may be left out.
        """
        staging, verifies = self._plan.staging, not stages[-1].n
        for stage in stages:
            for name, values in stage.brought.items():
                self.room(name, len(values), values.dtype)
        parts = [
            [
                *stage.run.parts,
                *(Part(values, self.arrays[name]) for name, values in stage.brought.items()),
            ]
            for stage in stages
        ]
        tables = staging.send(parts)
        key = (
            *(shape, has_conditions, tuple(stage.key for stage in stages), tuple(tables)),
            *(self._n_made, staging.array.shape),
        )

        def work(is_recorded: bool) -> None:
            condition = None  # of this pass, set by the one before
            for stage, table in zip(stages, tables, strict=True):
                is_last, following = stage is stages[-1], None
                is_last_draft = is_last or (verifies and stage is stages[-2])
                may_end = stage.may_end or is_last_draft
                if has_conditions and is_recorded and may_end and not is_last:
                    following = self._device.condition()
                started = launches(stage, table, is_last_draft, following)
                if condition is None:
                    start(self._device, started)
                else:
                    self._device.when(condition, partial(start, self._device, started))
                condition = following

        self._plan.graphs.start(key, work)

    def _launches(
        self, shape: RoundShape, stage: Stage, table: int, is_last_draft: bool, following: Any
    ) -> Iterator[Launch]:
        """Yield the launches of a pass; ``following`` is the condition of the next one."""
        plan, arrays, program = stage.plan, self.arrays, stage.plan.program
        yield spread(self._plan.staging.array, table, len(stage.run.parts) + len(stage.brought))
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
            condition=None if is_for_verification else following,
        )
        if is_for_verification:
            yield complete(arrays["drafts"], arrays["wanted"], shape.n_drafting, following)

    def _keeping(self, plan: DevicePlan, kept: Kept) -> Iterator[Launch]:
        """Yield what keeps rows of a pass, and says which are not finite."""
        arrays, program = self.arrays, plan.program
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


def n_tokens_of(stages: Sequence[RoundStage]) -> int:
    """Return how many tokens have an embedding in every pass."""
    tables = [n_embeddings(stage.plan.program) for stage in stages]
    return min(filter(None, tables), default=EVERY_TOKEN)


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


def without_drafts(batch: CheckedBatch, lengths: Mapping[int, tuple[int, int]]) -> CheckedBatch:
    """Return a batch whose texts end before their drafts, which are any tokens there.

    ``lengths`` are as in ``DraftOrder.texts``.
    """
    wanted = batch.fused_sampling
    if wanted is None or not wanted.texts:
        return batch
    texts = [*wanted.texts]
    for output, (_, n) in lengths.items():
        texts[output] = texts[output][: max(len(texts[output]) - n, 0)]
    wanted = msgspec.structs.replace(wanted, texts=texts)
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
