"""Drafts whose passes follow each other on the device, and what verifies them, in one launch.

Of a later pass everything but tokens and recycled rows is known beforehand. So the host plans all
passes and uploads at once what they need; on the device chosen tokens and recycled rows are placed
in the rows of later passes, and the host waits once, for all drafts. A block is one pass, whose
drafts are chosen together, or one after the other where a penalty counts those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.base import CheckedBatch, DraftRun, FusedSampling, Plan, Verification
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
    """

    def __init__(self, k: list[int], *, is_block: bool = False) -> None:
        self.k, each = k, range(max(k))
        self.passes = [
            [i for i, most in enumerate(k) if most > p or not (p or is_block)] for p in each
        ]
        self.first = [sum(map(len, self.passes[:p])) for p in each]
        self.n = sum(map(len, self.passes))

    def number(self, i: int, p: int) -> int:
        """Return the number of the draft that sequence i gets from pass p."""
        return self.first[p] + self.passes[p].index(i)

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
        steps["before"] = before
        steps["is_to_go_on"] = [self.k[i] > p + 1 for i in self.passes[p]]
        return steps

    def steps_at_once(self, steps: range, p_min: list[float]) -> NDArray[np.void]:
        """Return ``STEP`` of each draft of some steps of a block, which are judged together."""
        parts = [self.steps(p, p_min) for p in steps]
        for depth, part in enumerate(parts):
            part["depth"] = depth
        return np.concatenate(parts)

    def outputs_of_block(self, outputs: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the rows that choose drafts, by the numbers of these; they come by sequence."""
        begin = np.cumsum([0, *self.k])
        return outputs[[begin[i] + p for p, active in enumerate(self.passes) for i in active]]

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

    ``recycled`` are slots and what feeds them; ``n_tokens`` tokens have embeddings in
    what drafts, ``n_readable`` in what verifies, too; ``n_drafting`` sequences are to get drafts.
    """

    recycled: tuple[tuple[str, str], ...]
    n_tokens: int
    n_readable: int
    n_drafting: int
    verifies: bool


class Stage(NamedTuple):
    """A pass of a round: its run, and what goes on between it and others.

    It makes ``n`` drafts, from number ``first`` of the round on; the one that verifies makes none.
    ``brought`` is what it brings from the host by the round's array, besides its run. Drafts of
    ``n_depths`` steps are judged in it. It may only choose from what the stage before it ran.
    """

    plan: DevicePlan
    run: PlannedRun
    brought: dict[str, NDArray[Any]]
    first: int = 0
    n: int = 0
    n_depths: int = 1
    only_chooses: bool = False

    @property
    def key(self) -> Hashable:
        """What its launches depend on, besides the arrays of the round; it keeps the plan's."""
        lengths = tuple((name, len(values)) for name, values in self.brought.items())
        made = (self.first, self.n, self.n_depths, self.only_chooses)
        return (self.plan, self.run.shape, lengths, *made)

    def n_placed(self, what: str) -> int:
        """Return how many tokens, or recycled rows, are placed in it."""
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
        """Say whether only tokens, recycled rows and penalties depend on what is drafted.

        Rows that are given come from the host.
        """
        plans: list[Plan | DevicePlan] = [self._plan, *(later.plan for later in run.later)]
        return (
            max(run.k, default=0) > 0
            and not run.given
            and all(self.is_here(plan) for plan in plans)
            and len({id(plan) for plan in plans}) == len(plans)
        )

    def is_here(self, plan: Plan | DevicePlan) -> TypeGuard[DevicePlan]:
        """Whether a plan is on the same device."""
        return isinstance(plan, type(self._plan)) and plan.device is self._device

    def run(self, run: DraftRun, memory: Memory | None) -> tuple[list[list[int]], int]:
        """Return the drafts of each sequence, and how many passes ran; see ``Plan.draft``."""
        check_draft(run, self._plan.program)
        order = DraftOrder([*run.k], is_block=run.is_block)
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
        stages = []
        for p, (plan, its_memory, batch) in enumerate(passes):
            has_odds = any(run.p_min[i] > 0 for i in order.passes[p])
            drafted, parts = order.texts({row: (i, p) for row, i in enumerate(order.passes[p])})
            planned = plan.take(batch, its_memory, has_odds=has_odds, drafted=parts)
            pairs = order.filled(p, batch) if run.later else order.chained(p)
            brought = {"steps": order.steps(p, [*run.p_min]), **_placed(pairs, run.recycle)}
            brought["drafted"] = drafted
            if not p:
                brought["drafts"] = np.array([(NO_DRAFT, 0, 0)] * order.n, DRAFT)
            stages.append(Stage(plan, planned, brought, order.first[p], len(order.passes[p])))
        for slot, name in run.recycle.items():
            width = self._plan.program.values[self._plan.program.outputs[name]].shape[1]
            self.room(f"rows of {slot}", order.n, np.float32, int(width))
        self.room("marks", len(run.recycle) * len(run.k), np.int32)
        return stages

    def _filling(self, run: DraftRun, order: DraftOrder, memory: Memory | None) -> list[Stage]:
        """Return the pass that runs a block, and the steps that choose drafts from its rows.

        All are chosen in one step where no choice depends on another.
        """
        plan, choice = self._plan, self._plan.choice
        assert choice is not None
        each, outputs = range(len(order.passes)), order.outputs_of_block(run.batch.outputs)
        rows = msgspec.structs.replace(run.batch, outputs=outputs)
        plan.check(_choosing_in_block(rows, run, order, each), memory)
        has_penalties = any(sampler.sampling.has_penalties for sampler in run.samplers)
        stages = list[Stage]()
        for steps in [range(p, p + 1) for p in each] if has_penalties else [each]:
            first, n = order.first[steps[0]], sum(len(order.passes[p]) for p in steps)
            has_odds = any(run.p_min[i] > 0 for i in order.passes[steps[0]])
            numbered = {order.number(i, p): (i, p) for p in steps for i in order.passes[p]}
            drafted, parts = order.texts(numbered if has_penalties else {})
            batch = _choosing_in_block(rows, run, order, steps)
            if stages:
                assert batch.fused_sampling is not None
                choosing, more = choice.take(batch.fused_sampling, has_odds=has_odds, drafted=parts)
                shape = stages[0].run.shape._replace(n_parts=len(more), choosing=choosing)
                planned = PlannedRun(shape, more)
            else:
                planned = plan.take(batch, memory, has_odds=has_odds, drafted=parts)
            brought = {"steps": order.steps_at_once(steps, [*run.p_min]), "drafted": drafted}
            if not stages:
                brought["drafts"] = np.array([(NO_DRAFT, 0, 0)] * order.n, DRAFT)
            stages.append(Stage(plan, planned, brought, first, n, len(steps), bool(stages)))
        self.room("marks", 0, np.int32)  # no row is recycled
        return stages

    def _verifying(self, order: DraftOrder, plan: DevicePlan, verification: Verification) -> Stage:
        """Return the pass of the target."""
        memory, first = verification.memory, [*verification.first]
        rows = {first[i] + n: (i, n) for i, k in enumerate(order.k) for n in range(k + 1)}
        outputs = enumerate(verification.batch.outputs.tolist())
        lengths = {output: rows[row] for output, row in outputs if row in rows}
        batch = without_drafts(verification.batch, lengths)
        plan.check(batch, memory)
        drafted, parts = order.texts(lengths)
        brought = {"drafted": drafted, **_placed(order.verified(first), {})}
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
        shape = RoundShape(
            tuple(run.recycle.items()),
            EVERY_TOKEN if run.is_block else n_tokens_of(drafting),  # a block reads no draft
            n_tokens_of(stages),
            *(n_drafting, verifies),
        )
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
            condition = None  # of the pass at hand, set by the one before
            for stage, table in zip(stages, tables, strict=True):
                is_last, following = stage is stages[-1], None
                if has_conditions and is_recorded and not is_last:
                    following = self._device.condition()
                is_last_draft = is_last or (verifies and stage is stages[-2])
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
            for slot, _ in shape.recycled:
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
        if not stage.n:
            return
        kept = () if is_last_draft else shape.recycled
        for number, (slot, name) in enumerate(kept):
            made, rows = plan.arrays[program.outputs[name]], arrays[f"rows of {slot}"]
            which = None if program.shape(name)[0] == OUTPUTS else plan.rows.outputs
            yield copy_rows(made, rows, stage.n, rows=which, to_row=stage.first)
            yield mark_not_finite(rows, arrays["marks"], stage.first, stage.n, number * stage.n)
        assert choice is not None
        assert choosing is not None
        is_for_verification = is_last_draft and shape.verifies and following is not None
        yield judge(
            *(choice.ids, arrays["steps"], arrays["marks"], choice.logits),
            *(choice.odds if choosing.has_odds else None, arrays["drafts"]),
            first=stage.first,
            n=stage.n,
            n_depths=stage.n_depths,
            n_marks=len(kept),
            n_tokens=shape.n_tokens,
            n_readable=shape.n_readable,
            condition=None if is_for_verification else following,
        )
        if is_for_verification:
            yield complete(arrays["drafts"], arrays["wanted"], shape.n_drafting, following)


def _placed(pairs: NDArray[np.void], recycle: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return what places drafts, and recycled rows with them, in the rows of ``PAIR`` [n]."""
    if not len(pairs):
        return {}
    tokens = pairs.copy()
    tokens["from"] = WORDS * pairs["from"] + NEXT
    return {"pairs of tokens": tokens, **({"pairs of rows": pairs} if recycle else {})}


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


def _choosing_in_block(
    batch: CheckedBatch, run: DraftRun, order: DraftOrder, steps: range
) -> CheckedBatch:
    """Return a block whose rows of some steps choose, after the texts before all drafts."""
    places = [(i, p) for p, active in enumerate(order.passes) for i in active]
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
    """Return the later passes of a chain: a row of each sequence, so many places on; no slots."""
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
