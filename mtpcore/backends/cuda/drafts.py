"""Schedules whose passes follow each other on the device, and what verifies them, in one launch.

Of a later pass everything but tokens and rows for slots is known beforehand. So the host plans all
passes and uploads at once what they need; on the device chosen tokens and kept rows are placed in
the rows of later passes, and the host waits once, for all drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore._ext._draft import check
from mtpcore.backends.base import CheckedBatch, Verification
from mtpcore.backends.cuda.choice import list_drafts
from mtpcore.backends.cuda.draft_order import DraftOrder, DraftStep, KeptRows
from mtpcore.backends.cuda.launch.passes import (
    DRAFT,
    FILL,
    FOUND,
    NO_DRAFT,
    PAIR,
    complete,
    fill,
    judge,
    place,
)
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import Drafted
from mtpcore.backends.cuda.launch.trees import NODE, follow, take_best, write_paths
from mtpcore.backends.cuda.rounds import EVERY_TOKEN, DeviceStage, Rounds
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun, plan_choice, plan_runs
from mtpcore.backends.cuda.verified_trees import VerifiedTrees, can_verify
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import Drafts, Pass, Schedule
from mtpcore.graph.program import OUTPUTS

__all__ = ["DraftLoop"]


Take = Callable[[], PlannedRun]
"""Plans a run."""


class DraftShape(NamedTuple):
    """What the launches of a round depend on besides its stages.

    There are ``n_drafts``. ``kept`` are all kinds of rows that are kept, ``n_kept`` of each. Tokens
    below ``n_readable`` are read by any pass. ``n_wanted`` drafts are to be there for what verifies
    them; 0: it is not in the round.
    """

    n_drafts: int
    kept: tuple[KeptRows, ...]
    n_kept: int
    n_readable: int
    n_wanted: int


class DraftLoop:
    """Schedules that begin with a plan.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan, self._rounds = plan, Rounds(plan)

    def order(self, schedule: Schedule) -> DraftOrder | None:
        """Return the order in which the device runs a schedule; None where it takes the host.

        Raises
        ------
        BatchError
            As ``mtpcore._ext._draft.check``.
        """
        check(schedule)
        built = schedule.round
        if (
            not (built.drafts and built.stages[-1].picks)
            or schedule.takes_host
            or any(text.sampler.sampling.is_for_hosts for text in schedule.texts)
            or not all(self._rounds.is_here(one.plan) for one in schedule.passes)
            or not _brings_rows_once(schedule)
            or _leaves_rows_out(schedule)
        ):
            return None
        order = DraftOrder(schedule)
        return order if order.is_known else None

    def run(self, schedule: Schedule) -> Drafts:
        """Run a schedule; see ``Plan.run_schedule``."""
        order, verification = self.order(schedule), self._verification(schedule)
        if order is None:
            return run_schedule(schedule)
        shape, stages = self._planned(schedule, order, verification)
        self._rounds.start(shape, stages, partial(self._launches, shape))
        drafted = self._read(schedule)
        if verification:
            verified = [drafted.tokens[n] for n in _wanted(schedule)]
            if 0 <= min(verified) <= max(verified) < shape.n_readable:
                verification.arrays = stages[-1].plan.result(verification.batch)
                if schedule.round.is_ranked:
                    verification.batch = VerifiedTrees(schedule, verification).found(drafted)
        return drafted

    def _read(self, schedule: Schedule) -> Drafts:
        """Return what was drafted; read at once, but for which drafts are the best of others."""
        built, n = schedule.round, len(schedule.round.drafts)
        found = self._held("drafts", n + len(built.stages), DRAFT)
        tokens, is_open = found["token"].tolist()[:n], found["is_open"].tolist()[n:]
        parents, best_of = [parent for _, parent in built.drafts], [*range(n)]
        if built.bests:
            nodes = self._held("nodes", n, NODE)
            parents, best_of = nodes["parent"].tolist(), nodes["best_of"].tolist()
        for number, parent in enumerate(parents):
            # Drafts may have been chosen after one that cannot be read, or any that is chosen anew.
            if parent >= 0 and (tokens[parent] < 0 or 0 < schedule.n_tokens <= tokens[parent]):
                tokens[number] = NO_DRAFT
        ran = [bool(has) or not of.picks for has, of in zip(is_open, built.stages, strict=True)]
        return Drafts(tokens, best_of, ran)

    def _held(self, name: str, n: int, dtype: np.dtype[Any]) -> NDArray[np.void]:
        """Return the first n of an array of the round."""
        raw = self._plan.device.read(self._rounds.arrays[name], 0, n * dtype.itemsize)
        return np.frombuffer(raw, dtype)

    def _verification(self, schedule: Schedule) -> Verification | None:
        """Return the verification, if the device can run it after a schedule."""
        asked = schedule.verification
        if not asked or any(one.plan is asked.plan for one in schedule.passes):
            return None
        plan, is_tree = asked.plan, schedule.round.is_ranked
        if not self._rounds.is_here(plan) or (is_tree and not can_verify(plan, asked.batch)):
            return None
        return asked

    # What the host plans

    def _planned(
        self, schedule: Schedule, order: DraftOrder, verification: Verification | None
    ) -> tuple[DraftShape, list[DeviceStage]]:
        """Return the stages of a round, all checked before anything is uploaded."""
        made = [self._stage(schedule, order, step) for step in order.steps]
        first, drafts = made[0][0].brought, schedule.round.drafts
        n_entries = len(drafts) + len(order.keeps)  # one a draft and one a stage
        n_wanted, n_readable = 0, EVERY_TOKEN
        if verification:
            made.append(self._verifying(schedule, verification))
            n_readable = made[-1][0].n_readable
            first["wanted"] = np.array(_wanted(schedule), np.int32)
            n_wanted = len(first["wanted"])  # the last draft looks at them
        kept = tuple(sorted({one for keeps in order.keeps for one in keeps}))
        n_kept = order.first_kept[-1]
        for one in kept:
            self._rounds.room(one.array, n_kept, np.float32, one.width)
        first["marks"] = np.zeros(len(kept) * n_kept, np.int32)
        first["drafts"] = np.array([(NO_DRAFT, 0)] * n_entries, DRAFT)
        first |= order.known()
        self._rounds.room("rows of drafts", len(drafts), np.int32)
        n_filled = max(stage.n_filled for stage, _ in made)
        for name, dtype in (("pairs of rows", PAIR), ("found", FOUND), ("is dead", np.int32)):
            self._rounds.room(name, n_filled, dtype)
        runs = plan_runs([(stage.plan, take) for stage, take in made])
        stages = [stage._replace(run=run) for (stage, _), run in zip(made, runs, strict=True)]
        return DraftShape(len(drafts), kept, n_kept, n_readable, n_wanted), stages

    def _stage(
        self, schedule: Schedule, order: DraftOrder, step: DraftStep
    ) -> tuple[DeviceStage, Take]:
        """Return a step of a round that is yet to be planned, and what plans it."""
        stage, wanted = schedule.round.stages[step.stage], order.choosers(step)
        of, rows, has_odds = schedule.pass_of(stage), order.batch(step), order.asks_odds(step)
        plan, n_tokens = cast(DevicePlan, of.plan), schedule.n_tokens or EVERY_TOKEN
        drafted, parts = list_drafts(order.texts(step))
        first = order.first_kept[step.stage]
        made = DeviceStage(
            plan,
            {**order.told(step), "drafted": drafted},
            n=len(step.picks),
            n_depths=order.n_depths(step),
            entry=len(schedule.round.drafts) + step.stage,
            n_tokens=EVERY_TOKEN if stage.repeats else n_tokens,
            n_readable=n_tokens,
            runs=step.runs,
            is_whole=stage.runs_whole or not schedule.rows[step.stage].fills,
            is_anew=stage.repeats > 0,
            fed=tuple(order.fed[step.stage]),
            kept=tuple(sorted(order.keeps[step.stage])),
            first_kept=first,
            n_kept=order.first_kept[step.stage + 1] - first,
            may_end=step.may_end,
            is_repeated=step.is_repeated,
        )
        if not step.runs and wanted and plan.choice:
            plan.choice.check(wanted, len(rows.outputs))
            return made, partial(plan_choice, plan.choice, wanted, has_odds=has_odds, drafted=parts)
        batch = replace(rows, fused_sampling=wanted)
        plan.check(batch, of.memory, stage.feeds)
        take = partial(plan.take, batch, of.memory, has_odds=has_odds, drafted=parts)
        return made, partial(take, n_ranks=step.n_ranks)

    def _verifying(
        self, schedule: Schedule, verification: Verification
    ) -> tuple[DeviceStage, Take]:
        """Return the pass of the target, and what plans it."""
        plan, memory = cast(DevicePlan, verification.plan), verification.memory
        batch, trees = verification.batch, None
        if schedule.round.is_ranked:
            trees = VerifiedTrees(schedule, verification)
            batch, texts = trees.batch, trees.paths
        else:
            texts = _texts(schedule, verification)
        batch = _without_drafts(batch, {output: len(drafts) for output, drafts in texts.items()})
        plan.check(batch, memory)
        drafted, parts = list_drafts(texts)
        brought: dict[str, NDArray[Any]] = {"drafted": drafted}
        if trees:
            brought |= trees.told(parts, has_states=plan.walks is not None)
        else:
            brought["fills"] = _fills(schedule, verification)
        n_readable = plan.program.n_embeddings or EVERY_TOKEN
        n_readable = min(schedule.n_tokens or EVERY_TOKEN, n_readable)
        stage = DeviceStage(plan, brought, n_readable=n_readable)
        return stage, partial(plan.take, batch, memory, drafted=parts)

    # What the device does

    def _launches(
        self, shape: DraftShape, stage: DeviceStage, is_last_draft: bool, following: Any
    ) -> Iterator[Launch]:
        """Yield the launches of a stage; ``following`` is the condition of the next one."""
        plan, arrays = stage.plan, self._rounds.arrays
        if stage.n_filled:
            yield from self._filling(shape, stage)
        if n := len(stage.brought.get("rows of trees", ())):
            yield from self._following(shape, stage, n)
        if n := len(stage.brought.get("paths", ())):
            yield write_paths(arrays["paths"], arrays["nodes"], arrays["drafted"], n)
        drafted, choosing = Drafted(arrays["drafts"], arrays["drafted"]), stage.run.shape.choosing
        if stage.runs:
            # Rows are kept before a choice changes logits, which may be among them.
            run = stage.run._replace(shape=stage.run.shape._replace(choosing=None))
            yield from plan.launches(run)
            yield from self._keeping(shape, stage)
        if plan.choice is None or choosing is None:
            return
        yield from plan.choice.launches(choosing, drafted)
        if not stage.n:
            return
        is_for_verification = is_last_draft and shape.n_wanted > 0 and following is not None
        yield judge(
            ids=plan.choice.ids,
            rankings=plan.choice.rankings if choosing.n_ranks else None,
            picks=arrays["picks"],
            is_dead=arrays["is dead"],
            logits=plan.choice.logits,
            odds=plan.choice.odds if choosing.has_odds else None,
            drafts=arrays["drafts"],
            nodes=arrays["nodes"],
            made=arrays["made"],
            n=stage.n,
            n_depths=stage.n_depths,
            entry=stage.entry,
            first_kept=stage.first_kept,
            n_kept=stage.n_kept,
            is_whole=stage.is_whole,
            is_anew=stage.is_anew,
            is_repeated=stage.is_repeated,
            condition=None if is_for_verification else following,
        )
        if n := len(stage.brought.get("selections", ())):
            selected = arrays["selections"], arrays["listed"]
            yield take_best(*selected, arrays["drafts"], arrays["nodes"], n, stage.n_tokens)
        if is_for_verification:
            yield complete(arrays["drafts"], arrays["wanted"], shape.n_wanted, following)

    def _filling(self, shape: DraftShape, stage: DeviceStage) -> Iterator[Launch]:
        """Yield what gives rows of a pass drafts and kept rows, and says which are dead."""
        plan, arrays, inputs = stage.plan, self._rounds.arrays, stage.plan.program.inputs
        is_tree, n = "fills of drafts" in stage.brought, stage.n_filled
        yield fill(
            fills=arrays["fills"],
            drafts=arrays["drafts"],
            nodes=arrays["nodes"],
            fill_of=arrays["fills of drafts"] if is_tree else None,
            made=arrays["made"],
            marks=arrays["marks"],
            found=arrays["found"],
            is_dead=arrays["is dead"],
            rows=arrays["pairs of rows"] if stage.fed else None,
            tokens=plan.arrays[inputs["tokens"]] if "tokens" in inputs else None,
            parents=plan.rows.parent if is_tree else None,
            n=n,
            n_marks=len(shape.kept),
            n_marked=shape.n_kept,
            kinds=sum(1 << shape.kept.index(kept) for kept in {kept for _, kept in stage.fed}),
            n_tokens=stage.n_tokens,
            n_readable=stage.n_readable,
        )
        for slot, kept in stage.fed:
            yield place(
                arrays[kept.array],
                arrays["pairs of rows"],
                plan.arrays[inputs[slot]],
                n,
                kept.width,
            )
        yield from self._walking(stage)

    def _following(self, shape: DraftShape, stage: DeviceStage, n: int) -> Iterator[Launch]:
        """Yield what gives n rows of trees their drafts; once for each way in which rows see."""
        plan, arrays, inputs = stage.plan, self._rounds.arrays, stage.plan.program.inputs
        for seen in plan.seen or (None,):
            yield follow(
                tree_rows=arrays["rows of trees"],
                drafts=arrays["drafts"],
                nodes=arrays["nodes"],
                row_of=arrays["rows of drafts"],
                tokens=plan.arrays[inputs["tokens"]] if "tokens" in inputs else None,
                parents=plan.rows.parent,
                positions=plan.arrays[inputs["positions"]] if "positions" in inputs else None,
                visible=seen.array if seen else None,
                choosers=plan.choice.odds.choosers if plan.choice else None,
                numbers=arrays["drafted"],
                n=n,
                n_drafts=shape.n_drafts,
                n_axes=plan.program.n_axes if "positions" in inputs else 0,
                window=seen.window if seen else 0,
                n_readable=stage.n_readable,
            )
        yield from self._walking(stage)

    def _walking(self, stage: DeviceStage) -> Iterator[Launch]:
        """Yield what lets states go on as rows come after each other by now."""
        plan, trees = stage.plan, stage.brought.get("trees")
        if plan.walks and trees is not None:
            yield plan.walks.of_trees(self._rounds.arrays["trees"], plan.rows.parent, len(trees))

    def _keeping(self, shape: DraftShape, stage: DeviceStage) -> Iterator[Launch]:
        """Yield what keeps rows of a pass, and says which are not finite."""
        plan, arrays, program = stage.plan, self._rounds.arrays, stage.plan.program
        for kept in stage.kept:
            rows, left, first = arrays[kept.array], 0, stage.first_kept
            for name in kept.names:
                made = plan.arrays[program.outputs[name]]
                which = None if program.shape(name)[0] == OUTPUTS else plan.rows.outputs
                yield copy_rows(made, rows, stage.n_kept, rows=which, to_row=first, to=left)
                left += made.shape[1]
            begin = shape.kept.index(kept) * shape.n_kept + first
            yield mark_not_finite(rows, arrays["marks"], first, stage.n_kept, begin)


def _brings_rows_once(schedule: Schedule) -> bool:
    """Whether no stage uploads what another one of its plan reads: all is uploaded beforehand."""
    first: dict[int, Pass] = {}
    for stage, (batch, _) in zip(schedule.round.stages, schedule.rows, strict=True):
        of = schedule.pass_of(stage)
        is_later, one = id(of.plan) in first, first.setdefault(id(of.plan), of)
        brings = batch.slots or batch.embeddings is not None or of.memory is not one.memory
        if is_later and brings:
            return False
    return True


def _leaves_rows_out(schedule: Schedule) -> bool:
    """Whether a stage may run without rows that others of their sequence see."""
    for stage, (batch, fills) in zip(schedule.round.stages, schedule.rows, strict=True):
        is_whole = stage.runs_whole or not fills or not stage.picks
        seq = batch.seq.tolist()
        sees_ahead = schedule.pass_of(stage).plan.program.sees_ahead
        if sees_ahead and not is_whole and len({*seq}) < len(seq):
            return True
    return False


def _wanted(schedule: Schedule) -> list[int]:
    """Return the drafts that are to be there for what verifies them."""
    return [draft for its in schedule.round.verified.values() for draft in its]


def _texts(schedule: Schedule, verification: Verification) -> dict[int, list[int]]:
    """Return of outputs of chains the drafts that their texts go on with."""
    verified, rows = schedule.round.verified, dict[int, list[int]]()
    for text, first in enumerate(verification.first):
        drafts = verified.get(text, [])
        rows |= {first + n: drafts[:n] for n in range(len(drafts) + 1)}
    outputs = enumerate(verification.batch.outputs.tolist())
    return {output: rows[row] for output, row in outputs if row in rows}


def _fills(schedule: Schedule, verification: Verification) -> NDArray[np.void]:
    """Return ``FILL`` of the drafts of chains."""
    verified = schedule.round.verified
    fills = [
        (first + n, draft, -1, -1, -1)
        for text, first in enumerate(verification.first)
        for n, draft in enumerate(verified.get(text, ()), start=1)
    ]
    return np.array(fills, FILL)


def _without_drafts(batch: CheckedBatch, lengths: Mapping[int, int]) -> CheckedBatch:
    """Return a batch whose texts end before their drafts, which are any tokens there.

    ``lengths`` say of outputs how many drafts there are in their texts.
    """
    wanted = batch.fused_sampling
    if wanted is None or not wanted.texts:
        return batch
    texts = [*wanted.texts]
    for output, n in lengths.items():
        texts[output] = texts[output][: max(len(texts[output]) - n, 0)]
    return replace(batch, fused_sampling=replace(wanted, texts=texts))
