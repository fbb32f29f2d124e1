"""Schedules of trees as steps on a device: which drafts get rows is known there alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda.draft_order import DraftStep, StageOrder
from mtpcore.backends.cuda.launch.trees import CHILD, LINK, MOST_RANKS, NODE, PATH, SELECTION, TREE
from mtpcore.backends.cuda.runs import DevicePlan
from mtpcore.backends.schedule import CHOICE, KNOWN, OF_DRAFT, Schedule
from mtpcore.memory.base import LOG

__all__ = ["TreeOrder"]


class TreeOrder(StageOrder):
    """The steps of a schedule whose drafts are ranked: a step a stage.

    A row gets a draft, and comes after the row of the draft before it; where drafts are the best of
    others, the device finds which one that is, and which kept row feeds it. So the host need not
    know more than how deep each row is.

    A draft goes on if its token can be read and the kept row that feeds its own is finite. It has
    children only then: rows of drafts that do not go on are run for nothing.

    Attributes
    ----------
    is_known : bool
        Whether the schedule asks for no more than that. If not, there are no steps.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self._stages, self._depths = schedule.round.stages, schedule.round.depths
        bests = schedule.round.bests
        self._candidates = {n: best.candidates for best in bests for n in best.drafts}
        self._going = {n for best in bests if best.goes_on for n in best.candidates}
        self._going |= {*self._parents}
        samplers = [text.sampler for text in schedule.texts]
        self._has_penalties = any(one.sampling.has_penalties for one in samplers)
        self._reads = any(rows.fills for rows in schedule.rows)
        self._chosen_in = {
            draft: number
            for number, stage in enumerate(self._stages)
            for pick in stage.picks
            for draft in schedule.round.after(pick.draft)
        }
        numbers = range(len(self._stages))
        self.is_known = len({frozenset(kept) for kept in self.keeps if kept}) < 2 and all(
            self._is_fed_alike(number) and self._is_ranked(number) and self._is_drawn(number)
            for number in numbers
        )
        self.steps = [*map(self._step, numbers)] if self.is_known else []

    def _plan(self, number: int) -> DevicePlan:
        return cast(DevicePlan, self._schedule.pass_of(self._stages[number]).plan)

    def _before(self, draft: int) -> set[int]:
        """Return the drafts that may come before one."""
        return {self._parents[of] for of in self._candidates.get(draft, [draft])}

    # What a device can do

    def _is_fed_alike(self, number: int) -> bool:
        """Say whether rows get drafts and, in all stages or in none, what chose these."""
        stage, fills = self._stages[number], self._schedule.rows[number].fills
        is_fed = any(self.keeps)
        return not fills or (
            bool(stage.feeds) == is_fed
            and all(fill.draft != KNOWN for _, fill in fills)
            and all(fill.stage == OF_DRAFT or not is_fed for _, fill in fills)
        )

    def _is_ranked(self, number: int) -> bool:
        """Say whether outputs rank tokens, each of one text, after drafts of stages before."""
        stage = self._stages[number]
        of_output: dict[int, tuple[int, int]] = {}
        n_ranks: dict[tuple[int, int], int] = {}
        for output, draft, rank in stage.picks:
            text, parent = self._schedule.round.drafts[draft]
            of = text, self._depths[draft]
            is_later = parent < 0 or self._chosen_in[parent] < number
            if rank == CHOICE or not is_later or of_output.setdefault(output, of) != of:
                return False
            n_ranks[output, parent] = max(n_ranks.get((output, parent), 0), rank + 1)
        # Penalties look at the drafts before, which are the same ones for all that an output ranks.
        is_apart = not self._has_penalties or len(n_ranks) == len(of_output)
        # A share is one among the tokens that are ranked: how many these are matters.
        is_uniform = not self._candidates or len({*n_ranks.values()}) < 2
        has_room = max(n_ranks.values(), default=0) <= MOST_RANKS
        return is_apart and is_uniform and has_room and not (stage.repeats or stage.ends_at_nan)

    def _is_drawn(self, number: int) -> bool:
        """Say whether a row comes after those of the drafts before its own, and no others."""
        stage, (batch, fills) = self._stages[number], self._schedule.rows[number]
        if not fills:  # a draft that cannot be read has children there, which count until the end
            return not self._reads or all(self._parents[pick.draft] < 0 for pick in stage.picks)
        plan = self._plan(number)
        if batch.parent is None or plan.program.sees_ahead or (plan.walks and not _can_walk(batch)):
            return False
        draft_of, outputs = {row: fill.draft for row, fill in fills}, batch.outputs.tolist()
        for output, draft, _ in stage.picks:
            if draft_of.get(outputs[output]) != self._parents[draft]:
                return False
        here = {*draft_of.values()}
        for row, draft in draft_of.items():
            before = self._before(draft)
            is_begun = before.isdisjoint(here) and draft_of.keys().isdisjoint(_above(batch, row))
            if not (before <= here or is_begun):
                return False
        return True

    def _step(self, number: int) -> DraftStep:
        """Return a stage as a step; the next one is left out if no draft of this goes on."""
        following = self._stages[number + 1 : number + 2]
        parents = [self._parents[pick.draft] for stage in following for pick in stage.picks]
        ends = any(text.p_min > 0 for text in self._schedule.texts) and len(parents) > 0
        picks = self._stages[number].picks
        return DraftStep(
            number,
            sorted(picks),
            runs=True,
            asks_p_min=True,
            may_end=ends and all(self._chosen_in.get(draft) == number for draft in parents),
            n_ranks=1 + max((pick.rank for pick in picks), default=-1),
        )

    # What kernels are told

    def batch(self, step: DraftStep) -> CheckedBatch:
        """Return the rows of a step's stage, each after one that is as deep as the right one."""
        batch, fills = self._schedule.rows[step.stage]
        if batch.parent is None:
            return batch
        parent, row_of = batch.parent.copy(), {fill.draft: row for row, fill in fills}
        for row, fill in fills:
            for draft in self._before(fill.draft) & row_of.keys():
                parent[row] = row_of[draft]
        return replace(batch, parent=parent)

    def n_depths(self, step: DraftStep) -> int:
        """Return 1: drafts of a step come beside each other."""
        return 1

    def texts(self, step: DraftStep) -> dict[int, list[int]]:
        """Return the drafts in the text before each choice, by output, where penalties count them.

        The last one is known; ``write_paths`` finds those before it.
        """
        return {
            output: [self._parents[draft]] * self._depths[draft]
            for output, draft, _ in step.picks
            if self._has_penalties and self._depths[draft]
        }

    def told(self, step: DraftStep) -> dict[str, NDArray[Any]]:
        """Return what ``grow`` and ``take_best`` are told of a step."""
        outputs = sorted({pick.output for pick in step.picks})
        kept = {output: self.first_kept[-1] for output in outputs}
        if self.keeps[step.stage]:
            kept = {output: self.first_kept[step.stage] + output for output in outputs}
        children = [
            (
                *(self._text(draft).p_min, draft, self._parents[draft]),
                *(outputs.index(output), rank, kept[output], draft in self._going),
            )
            for output, draft, rank in step.picks
        ]
        told = {"children": np.array(children, CHILD)}
        found = self._schedule.round.found_with
        bests = [best for pick in step.picks for best in found.get(pick.draft, ())]
        if bests:
            listed = [[*best.candidates, *best.drafts] for best in bests]
            begins = accumulate(map(len, listed), initial=0)
            selections = [
                (begin, len(best.candidates), len(best.drafts), best.goes_on)
                for begin, best in zip(begins, bests, strict=False)
            ]
            told["selections"] = np.array(selections, SELECTION)
            told["listed"] = np.concatenate(listed).astype(np.int32)
        return told

    def placed(self, step: DraftStep) -> dict[str, NDArray[Any]]:
        """Return what ``place`` is told, and what finds rows and texts of drafts before."""
        placed, fills = super().placed(step), self._schedule.rows[step.stage].fills
        if fills:
            row_of = np.full(len(self._parents), -1, np.int32)
            for row, fill in fills:
                row_of[fill.draft] = row
            placed["links"] = np.array([(fill.draft, row) for row, fill in fills], LINK)
            placed["rows of drafts"] = row_of
            if self._plan(step.stage).walks:
                placed["trees"] = _trees(self.batch(step))
        if texts := [*self.texts(step).values()]:
            begins = accumulate(map(len, texts), initial=0)
            paths = [(of[-1], begin, len(of)) for of, begin in zip(texts, begins, strict=False)]
            placed["paths"] = np.array(paths, PATH)
        return placed

    def known(self) -> dict[str, NDArray[Any]]:
        """Return ``NODE`` of each draft, before there is any."""
        nodes = [(0, parent, 0, n) for n, parent in enumerate(self._parents)]
        return {"nodes": np.array(nodes, NODE)}


def _above(batch: CheckedBatch, row: int) -> Iterator[int]:
    """Yield the rows before one, as the batch says."""
    assert batch.parent is not None
    while (row := int(batch.parent[row])) >= 0:
        yield row


def _can_walk(batch: CheckedBatch) -> bool:
    """Say whether rows of a sequence are together, and no more than are logged."""
    seq = batch.seq.tolist()
    n = Counter(seq)
    n_changes = sum(one != other for one, other in pairwise(seq))
    return n_changes == len(n) - 1 and max(n.values()) <= LOG


def _trees(batch: CheckedBatch) -> NDArray[np.void]:
    """Return ``TREE`` of the sequences of a batch, each with its rows together."""
    n = Counter(batch.seq.tolist())
    firsts = accumulate(n.values(), initial=0)
    trees = [(i, first, of) for i, (first, of) in enumerate(zip(firsts, n.values(), strict=False))]
    return np.array(trees, TREE)
