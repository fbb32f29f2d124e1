"""A schedule as steps on a device: what they choose, and what kernels are told of drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch, FusedSampling
from mtpcore.backends.cuda.launch.passes import FILL, PICK
from mtpcore.backends.cuda.launch.trees import MOST_RANKS, NODE, PATH, SELECTION, TREE
from mtpcore.backends.cuda.runs import DevicePlan
from mtpcore.backends.schedule import CHOICE, KNOWN, OF_DRAFT, Fill, Pick, Schedule, Text
from mtpcore.memory.base import LOG

__all__ = ["DraftOrder", "DraftStep", "KeptRows", "can_walk", "trees_of"]

_NONE = -1


class KeptRows(NamedTuple):
    """Rows of outputs, side by side, that are kept for slots of later passes; how wide they are."""

    names: tuple[str, ...]
    width: int

    @property
    def array(self) -> str:
        """The name of the array that they are in."""
        return f"rows of {', '.join(self.names)}: {self.width}"


class DraftStep(NamedTuple):
    """A pass of a stage and a choice of drafts, or another choice from the pass before.

    ===============  ============================================================================
    ``stage``        its number
    ``picks``        what is chosen, by output
    ``runs``         whether it begins with the pass
    ``asks_p_min``   whether drafts are to be probable enough, even if they are chosen anew
    ``is_repeated``  whether it counts if drafts are others than before, and not if they go on
    ``may_end``      whether the next step runs only if a draft goes on, or is another
    ``n_ranks``      how many tokens are ranked, of which drafts are some; 0: one is chosen
    ===============  ============================================================================
    """

    stage: int
    picks: Sequence[Pick]
    runs: bool
    asks_p_min: bool
    is_repeated: bool = False
    may_end: bool = False
    n_ranks: int = 0


class DraftOrder:
    """The steps of a schedule, and what they are told.

    Stages that feed others keep the rows of all outputs, which are numbered: those of stage i from
    ``first_kept[i]`` to ``first_kept[i + 1]``, ``first_kept[-1]`` of them in all. A stage
    runs with all of its rows: those that are dead are run for nothing. Where drafts are the best of
    others, the device finds which row a row comes after: the host knows how deep each is.

    Attributes
    ----------
    keeps : list of set of KeptRows
        By stage.
    fed : list of list of (str, KeptRows)
        By stage the slots that kept rows feed.
    is_known : bool
        Whether a device can do all of it. If not, there are no steps.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._round = schedule, schedule.round
        stages, bests = self._round.stages, self._round.bests
        self._parents = [parent for _, parent in self._round.drafts]
        self._candidates = {n: best.candidates for best in bests for n in best.drafts}
        self._going = {n for best in bests if best.goes_on for n in best.candidates}
        self._going |= {*self._parents}
        anew = [pick.draft for stage in stages if stage.repeats for pick in stage.picks]
        self._anew = {*anew}
        texts = schedule.texts
        self._ends = any(text.p_min > 0 for text in texts)  # it matters how probable drafts are
        self._penalised = {i for i, t in enumerate(texts) if t.sampler.sampling.has_penalties}
        self.keeps: list[set[KeptRows]] = [set() for _ in stages]
        self.fed: list[list[tuple[str, KeptRows]]] = []
        self._levels: list[dict[int, int]] = []  # how many drafts of its stage are before each
        chosen_in: dict[int, int] = {}
        for number, stage in enumerate(stages):
            widths = schedule.pass_of(stage).plan.program.slots()
            sources = {
                chosen_in[fill.draft] if fill.stage == OF_DRAFT else fill.stage
                for _, fill in (schedule.rows[number].fills if stage.feeds else ())
            } - {KNOWN}
            fed = [(slot, KeptRows(tuple(of), widths[slot])) for slot, of in stage.feeds.items()]
            self.fed.append(fed if sources else [])
            for source in sources:
                self.keeps[source] |= {kept for _, kept in fed}
            levels: dict[int, int] = {}
            for pick in stage.picks:
                levels[pick.draft] = levels.get(self._parents[pick.draft], -1) + 1
                for draft in self._round.after(pick.draft) if bests else [pick.draft]:
                    chosen_in[draft] = number
            self._levels.append(levels)
        n = [len(rows.batch.outputs) * bool(self.keeps[i]) for i, rows in enumerate(schedule.rows)]
        self.first_kept = [*accumulate(n, initial=0)]
        self.is_known = len(anew) == len(self._anew) and all(
            self._is_chosen(number) and self._is_drawn(number) for number in range(len(stages))
        )
        self.steps = self._find_steps() if self.is_known else []

    def _text(self, draft: int) -> Text:
        return self._schedule.texts[self._round.drafts[draft].text]

    def _plan(self, number: int) -> DevicePlan:
        return cast(DevicePlan, self._schedule.pass_of(self._round.stages[number]).plan)

    # What a device can do

    def _is_chosen(self, number: int) -> bool:
        """Say whether outputs choose one draft each, or rank tokens, after drafts before."""
        stage = self._round.stages[number]
        of_output: dict[int, tuple[int, int]] = {}
        n_ranks: dict[tuple[int, int], int] = {}
        ranked = [pick for pick in stage.picks if pick.rank != CHOICE]
        here = {n for pick in ranked for n in self._round.after(pick.draft)}
        for output, draft, rank in ranked:
            text, parent = self._round.drafts[draft]
            of = text, self._round.depths[draft]
            if parent in here or of_output.setdefault(output, of) != of:
                return False
            n_ranks[output, parent] = max(n_ranks.get((output, parent), 0), rank + 1)
        # Penalties look at the drafts before, which are the same ones for all that an output ranks.
        is_apart = not self._penalised or len(n_ranks) == len(of_output)
        # A share is one among the tokens that are ranked: how many these are matters.
        is_uniform = not self._candidates or len({*n_ranks.values()}) < 2
        has_room = max(n_ranks.values(), default=0) <= MOST_RANKS
        is_alike = not ranked or (len(ranked) == len(stage.picks) and not stage.ends_at_nan)
        return is_apart and is_uniform and has_room and is_alike

    def _is_drawn(self, number: int) -> bool:
        """Say whether it is known how deep rows of a tree are."""
        batch, fills = self._schedule.rows[number]
        draft_of = {row: fill.draft for row, fill in fills if fill.draft != KNOWN}
        if batch.parent is None or not draft_of:
            return True
        plan = self._plan(number)
        if plan.program.sees_ahead or (plan.walks and not can_walk(batch)):
            return False
        here = {*draft_of.values()}
        for row, draft in draft_of.items():
            before = self._before(draft)
            is_begun = before.isdisjoint(here) and draft_of.keys().isdisjoint(_above(batch, row))
            if not (before <= here or is_begun):
                return False
        return True

    def _before(self, draft: int) -> set[int]:
        """Return the drafts that may come before one."""
        return {self._parents[of] for of in self._candidates.get(draft, [draft])}

    # What there is to do

    def _find_steps(self) -> list[DraftStep]:
        """Return the steps of all stages.

        Each pass that repeats settles one more draft, so that no more are needed than stand after
        each other. Where it matters how probable drafts are, the last one runs in any case, and it
        alone asks for that.
        """
        steps, ends = list[DraftStep](), self._ends
        for number, stage in enumerate(self._round.stages):
            choices, n = self._choices(number), stage.repeats
            if n and not self._schedule.pass_of(stage).plan.program.sees_ahead:
                n = min(n, 1 + max(self._levels[number].values(), default=0))
            for again in range(1, n + 1):
                asks = ends and again == n
                flags = asks, not asks, again < n - ends
                steps += [DraftStep(number, of, not i, *flags) for i, of in enumerate(choices)]
            for i, picks in enumerate(() if n else choices):
                if ends and steps and self._go_on(steps[-1], picks):
                    steps[-1] = steps[-1]._replace(may_end=True)
                is_last = not any(pick.draft in self._anew for pick in picks)
                n_ranks = 1 + max((pick.rank for pick in picks), default=CHOICE)
                steps.append(DraftStep(number, picks, not i, is_last, n_ranks=n_ranks))
        if ends and steps[-1].asks_p_min:
            steps[-1] = steps[-1]._replace(may_end=True)
        return steps

    def _choices(self, number: int) -> list[list[Pick]]:
        """Return the picks of a stage: together, or one after the other where penalties count."""
        picks, levels = sorted(self._round.stages[number].picks), self._levels[number]
        if not picks or not self._penalised:
            return [picks]
        each = range(1 + max(levels.values()))
        return [[pick for pick in picks if levels[pick.draft] == level] for level in each]

    def _go_on(self, step: DraftStep, picks: Sequence[Pick]) -> bool:
        """Say whether picks can choose only if a draft of a step goes on."""
        here = {draft for pick in step.picks for draft in self._round.after(pick.draft)}
        parents = [self._parents[pick.draft] for pick in picks]
        return step.asks_p_min and bool(parents) and here.issuperset(parents)

    def batch(self, step: DraftStep) -> CheckedBatch:
        """Return the rows of a step's stage, each after one that is as deep as the right one."""
        batch, fills = self._schedule.rows[step.stage]
        if batch.parent is None:
            return batch
        parent = batch.parent.copy()
        row_of = {fill.draft: row for row, fill in fills if fill.draft != KNOWN}
        for draft, row in row_of.items():
            for before in self._before(draft) & row_of.keys():
                parent[row] = row_of[before]
        return replace(batch, parent=parent)

    def choosers(self, step: DraftStep) -> FusedSampling | None:
        """Return who chooses from which output of a step, after the texts before all drafts."""
        if not step.picks:
            return None
        n, none = len(self._schedule.rows[step.stage].batch.outputs), np.zeros(0, np.int32)
        texts: list[Text | None] = [None] * n
        indices = [0] * n
        for output, draft, _ in step.picks:
            texts[output] = text = self._text(draft)
            indices[output] = text.index + self._round.depths[draft]
        return FusedSampling(
            samplers=[text.sampler if text else None for text in texts],
            indices=indices,
            token_ids=self._schedule.token_ids,
            texts=[text.history if text else none for text in texts],
            n_prompt=[text.n_prompt if text else 0 for text in texts],
        )

    def texts(self, step: DraftStep) -> dict[int, list[int]]:
        """Return the drafts in the text before each choice, by output, where penalties count them.

        Those that only the device can know are told by the last one; ``write_paths`` finds them.
        """
        paths: dict[int, list[int]] = {}
        for output, draft, _ in step.picks if self._penalised else ():
            path, depth, at = list[int](), self._round.depths[draft], self._parents[draft]
            while at >= 0:
                path.append(at)
                at = self._parents[at]
            if depth and self._round.drafts[draft].text in self._penalised:
                paths[output] = path[::-1] if len(path) == depth else path[:1] * depth
        return paths

    def n_depths(self, step: DraftStep) -> int:
        """Return how many drafts of a step come one after the other, at most."""
        return 1 + max(self._depths(step).values(), default=0)

    def _depths(self, step: DraftStep) -> dict[int, int]:
        """Return how many drafts of a step are before each."""
        levels = {pick.draft: self._levels[step.stage][pick.draft] for pick in step.picks}
        first = min(levels.values(), default=0)
        return {draft: level - first for draft, level in levels.items()}

    def asks_odds(self, step: DraftStep) -> bool:
        """Say whether it matters how probable drafts of a step are."""
        return self._ends and any(self._p_min(step, pick.draft) > 0 for pick in step.picks)

    def _p_min(self, step: DraftStep, draft: int) -> float:
        is_asked = self._ends and (step.asks_p_min or draft not in self._anew)
        return self._text(draft).p_min if is_asked else 0.0

    # What kernels are told

    def known(self) -> dict[str, NDArray[Any]]:
        """Return ``NODE`` of each draft, and which kept rows there are, before any stage."""
        nodes = [(1.0, parent, _NONE, n) for n, parent in enumerate(self._parents)]
        made = np.zeros(self.first_kept[-1], np.int32)
        for number, stage in enumerate(self._round.stages):
            if not stage.picks:
                made[self.first_kept[number] : self.first_kept[number + 1]] = 1
        return {"nodes": np.array(nodes, NODE), "made": made}

    def told(self, step: DraftStep) -> dict[str, NDArray[Any]]:
        """Return what a step brings besides its run, by the names of arrays."""
        batch, fills = self._schedule.rows[step.stage]
        fill_at, above = _fills_by_row(batch, fills)
        told: dict[str, NDArray[Any]] = {
            "picks": self._picks(step, [fill_at[row] for row in batch.outputs.tolist()])
        }
        bests = [best for pick in step.picks for best in self._round.found_with.get(pick.draft, ())]
        if bests:
            listed = [[*best.candidates, *best.drafts] for best in bests]
            begins = accumulate(map(len, listed), initial=0)
            selections = [
                (begin, len(best.candidates), len(best.drafts), best.goes_on)
                for begin, best in zip(begins, bests, strict=False)
            ]
            told["selections"] = np.array(selections, SELECTION)
            told["listed"] = np.concatenate(listed).astype(np.int32)
        if fills and step.runs:
            told |= self._fills(step, above)
        paths, begin = list[tuple[int, int, int]](), 0
        for path in self.texts(step).values():
            if len(path) > 1 and path[0] == path[-1]:
                paths.append((path[-1], begin, len(path)))
            begin += len(path)
        return told | ({"paths": np.array(paths, PATH)} if paths else {})

    def _picks(self, step: DraftStep, fill_of: Sequence[int]) -> NDArray[np.void]:
        """Return ``PICK`` of each draft of a step; ``fill_of`` are those of outputs."""
        depths, levels = self._depths(step), self._levels[step.stage]
        outputs = {output: i for i, output in enumerate(sorted({p.output for p in step.picks}))}
        first, is_kept = self.first_kept[step.stage], bool(self.keeps[step.stage])
        picks = [
            (
                *(self._p_min(step, draft), draft, parent, parent in levels),
                outputs[output] * max(step.n_ranks, 1) + max(rank, 0),
                *(fill_of[output], first + output if is_kept else _NONE),
                *(depths[draft], draft in self._going),
            )
            for output, draft, rank in step.picks
            for parent in [self._parents[draft]]
        ]
        return np.array(picks, PICK)

    def _fills(self, step: DraftStep, above: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return ``FILL`` of the rows of a pass, and in a tree which one is of which draft."""
        stage, fills = self._round.stages[step.stage], self._schedule.rows[step.stage].fills
        batch = self.batch(step)
        parent = [_NONE] * len(batch.seq) if batch.parent is None else batch.parent.tolist()
        table = [
            (row, fill.draft, self._kept_for(fill) if stage.feeds else _NONE, before, parent[row])
            for (row, fill), before in zip(fills, above, strict=True)
        ]
        told: dict[str, NDArray[Any]] = {"fills": np.array(table, FILL)}
        if batch.parent is not None:
            told["fills of drafts"] = np.full(len(self._parents), _NONE, np.int32)
            for i, (_, fill) in enumerate(fills):
                if fill.draft != KNOWN:
                    told["fills of drafts"][fill.draft] = i
            if self._plan(step.stage).walks:
                told["trees"] = trees_of(batch)
        return told

    def _kept_for(self, fill: Fill) -> int:
        """Return which kept row feeds a row, or KNOWN or OF_DRAFT in its place."""
        return fill.stage if fill.stage < 0 else self.first_kept[fill.stage] + fill.source


def _fills_by_row(
    batch: CheckedBatch, fills: Sequence[tuple[int, Fill]]
) -> tuple[list[int], list[int]]:
    """Return which fill each row has, or the nearest row before it, and what is before each fill.

    -1: none.
    """
    seq = batch.seq.tolist()
    fill_at, above = [_NONE] * len(seq), list[int]()
    if not fills:
        return fill_at, above
    own, newest = {row: i for i, (row, _) in enumerate(fills)}, dict[int, int]()
    parent = None if batch.parent is None else batch.parent.tolist()
    for row, its in enumerate(seq):
        before = newest.get(its, _NONE) if parent is None else parent[row]
        newest[its] = row
        fill_at[row] = _NONE if before < 0 else fill_at[before]
        if row in own:
            above.append(fill_at[row])
            fill_at[row] = own[row]
    return fill_at, above


def _above(batch: CheckedBatch, row: int) -> Iterator[int]:
    """Yield the rows before one, as the batch says."""
    assert batch.parent is not None
    while (row := int(batch.parent[row])) >= 0:
        yield row


def can_walk(batch: CheckedBatch) -> bool:
    """Say whether rows of a sequence are together, and no more than are logged."""
    seq = batch.seq.tolist()
    n = Counter(seq)
    n_changes = sum(one != other for one, other in pairwise(seq))
    return n_changes == len(n) - 1 and max(n.values()) <= LOG


def trees_of(batch: CheckedBatch) -> NDArray[np.void]:
    """Return ``TREE`` of the sequences of a batch, each with its rows together."""
    n = Counter(batch.seq.tolist())
    firsts = accumulate(n.values(), initial=0)
    trees = [(i, first, of) for i, (first, of) in enumerate(zip(firsts, n.values(), strict=False))]
    return np.array(trees, TREE)
