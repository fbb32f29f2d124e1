"""A schedule as steps on a device: what they choose, and what kernels are told of drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch, FusedSampling
from mtpcore.backends.cuda.launch.passes import NEXT, PAIR, STEP, WORDS
from mtpcore.backends.schedule import KNOWN, OF_DRAFT, PENDING, Fill, Pick, Schedule, Text

__all__ = ["DraftOrder", "DraftStep", "KeptRows", "StageOrder"]


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
    ``asks_p_min``   whether drafts are to be probable enough
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


class StageOrder:
    """What stages of a schedule keep for others.

    Those that feed others keep the rows of all outputs, which are numbered: those of stage i from
    ``first_kept[i]`` to ``first_kept[i + 1]``; ``first_kept[-1]`` is one that is always finite.

    Attributes
    ----------
    keeps : list of set of KeptRows
        By stage.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, stages = schedule, schedule.round.stages
        self._parents = [parent for _, parent in schedule.round.drafts]
        self._n_after = Counter(self._parents)
        self._sources = _sources(schedule)
        self.keeps: list[set[KeptRows]] = [set() for _ in stages]
        for stage, sources in zip(stages, self._sources, strict=True):
            widths = schedule.pass_of(stage).plan.program.slots()
            kept = {KeptRows(tuple(of), widths[slot]) for slot, of in stage.feeds.items()}
            for number, _ in sources.values():
                self.keeps[number] |= kept
        n = [len(rows.batch.outputs) * bool(self.keeps[i]) for i, rows in enumerate(schedule.rows)]
        self.first_kept = [*accumulate(n, initial=0)]

    def _text(self, draft: int) -> Text:
        return self._schedule.texts[self._schedule.round.drafts[draft].text]

    def _fed(self, number: int) -> dict[int, int]:
        """Return which kept row feeds each row of a stage."""
        sources = self._sources[number].items()
        return {row: self.first_kept[stage] + output for row, (stage, output) in sources}

    def batch(self, step: DraftStep) -> CheckedBatch:
        """Return the rows of a step's stage."""
        return self._schedule.rows[step.stage].batch

    def choosers(self, step: DraftStep) -> FusedSampling | None:
        """Return who chooses from which output of a step, after the texts before all drafts."""
        if not step.picks:
            return None
        n, none = len(self._schedule.rows[step.stage].batch.outputs), np.zeros(0, np.int32)
        texts: list[Text | None] = [None] * n
        indices = [0] * n
        for output, draft, _ in step.picks:
            texts[output] = text = self._text(draft)
            indices[output] = text.index + self._schedule.round.depths[draft]
        return FusedSampling(
            samplers=[text.sampler if text else None for text in texts],
            indices=indices,
            token_ids=self._schedule.token_ids,
            texts=[text.history if text else none for text in texts],
            n_prompt=[text.n_prompt if text else 0 for text in texts],
        )

    def placed(self, step: DraftStep) -> dict[str, NDArray[Any]]:
        """Return ``PAIR`` of drafts, and of kept rows, and the rows of a pass that they go to."""
        fills, fed = self._schedule.rows[step.stage].fills, self._fed(step.stage)
        tokens = [(WORDS * fill.draft + NEXT, row) for row, fill in fills if fill.draft != KNOWN]
        pairs = {"tokens": tokens, "rows": [(kept, row) for row, kept in fed.items()]}
        return {f"pairs of {what}": np.array(of, PAIR) for what, of in pairs.items() if of}

    def known(self) -> dict[str, NDArray[Any]]:
        """Return what a round brings besides, before its first step."""
        return {}

    def asks_odds(self, step: DraftStep) -> bool:
        """Say whether it matters how probable drafts of a step are."""
        return step.asks_p_min and any(self._text(draft).p_min > 0 for _, draft, _ in step.picks)


class DraftOrder(StageOrder):
    """What rows and drafts of a schedule without branches wait for, and its steps.

    A draft waits for the one before it, and for kept rows, neighbours that are to be finite. If it
    is a single one, the draft before it does not go on without, so that nothing is run for it.

    Attributes
    ----------
    is_known : bool
        Whether drafts wait for nothing else. If not, there are no steps.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        stages = schedule.round.stages
        self._anew = {pick.draft for stage in stages if stage.repeats for pick in stage.picks}
        self._levels: list[dict[int, int]] = []  # how many drafts of its stage are before each
        self._reads: list[dict[int, range]] = []  # which kept rows each draft waits for
        self._reads_next: dict[tuple[int, int], int] = {}  # by stage and draft
        self._chosen_in: dict[int, int] = {}
        self.is_known = all(map(self._find_reads, range(len(stages))))
        self.steps = self._find_steps() if self.is_known else []

    def _path(self, draft: int) -> list[int]:
        """Return the drafts before one, in order."""
        found = list[int]()
        while (draft := self._parents[draft]) != PENDING:
            found.append(draft)
        return found[::-1]

    # What there is to do

    def _find_reads(self, number: int) -> bool:
        """Find what drafts of a stage wait for; say whether that is all."""
        stage, rows = self._schedule.round.stages[number], self._schedule.rows[number]
        is_own = any(fill.stage == OF_DRAFT for fill in stage.fills) and len(stage.feeds) > 0
        n_kinds = len({pick.draft in self._anew for pick in stage.picks})
        if n_kinds > 1 or (stage.repeats and is_own):
            return False
        seq, outputs = rows.batch.seq.tolist(), rows.batch.outputs.tolist()
        fed, fills = self._fed(number), dict[int, list[tuple[int, Fill]]]()
        for row, fill in rows.fills:
            fills.setdefault(seq[row], []).append((row, fill))
        levels, reads = dict[int, int](), dict(self._reads[-1] if number else {})
        for output, draft, _ in stage.picks:
            path, last = self._path(draft), outputs[output]
            before = [(row, fill) for row, fill in fills.get(seq[last], ()) if row <= last]
            seen = {kept for one in path for kept in reads[one]}
            waits = sorted({fed[row] for row, _ in before if row in fed} - seen)
            reads[draft] = range(waits[0], waits[-1] + 1) if waits else range(0)
            others = {fill.draft for _, fill in before} - {KNOWN, *path}
            sources = (self._sources[number].get(row) for row, _ in before)
            is_sure = all(self._is_made(*of, path) for of in sources if of)
            if others or not is_sure or len(waits) < len(reads[draft]):
                return False
            parent = self._parents[draft]
            at = -1 if parent in levels else self._chosen_in.get(parent, -1)
            if len(waits) == self._n_after[parent] == 1 and waits[0] < self.first_kept[at + 1]:
                self._reads_next[at, parent] = waits[0]
            levels[draft] = levels.get(parent, -1) + 1
        self._chosen_in |= dict.fromkeys(levels, number)
        self._levels.append(levels)
        self._reads.append(reads)
        return True

    def _is_made(self, number: int, output: int, path: Sequence[int]) -> bool:
        """Say whether a row that feeds others is run in any case, or if these drafts are there."""
        stage = self._schedule.round.stages[number]
        begins = any(self._parents[pick.draft] == PENDING for pick in stage.picks)
        if not stage.picks or (begins and not stage.fills):
            return True
        return any(pick.output == output and pick.draft in path for pick in stage.picks)

    def _find_steps(self) -> list[DraftStep]:
        """Return the steps of all stages.

        Each pass that repeats settles one more draft, so that no more are needed than stand after
        each other. Where it matters how probable drafts are, the last one runs in any case, and it
        alone asks for that.
        """
        steps = list[DraftStep]()
        ends = any(text.p_min > 0 for text in self._schedule.texts)
        for number, stage in enumerate(self._schedule.round.stages):
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
                steps.append(DraftStep(number, picks, not i, is_last))
        if ends and steps[-1].asks_p_min:
            steps[-1] = steps[-1]._replace(may_end=True)
        return steps

    def _choices(self, number: int) -> list[list[Pick]]:
        """Return the picks of a stage: together, or one after the other where penalties count."""
        picks, levels = sorted(self._schedule.round.stages[number].picks), self._levels[number]
        if not any(self._text(draft).sampler.sampling.has_penalties for _, draft, _ in picks):
            return [picks]
        each = range(1 + max(levels.values()))
        return [[pick for pick in picks if levels[pick.draft] == level] for level in each]

    def _go_on(self, step: DraftStep, picks: Sequence[Pick]) -> bool:
        """Say whether picks can choose only if a draft of a step goes on."""
        here = {pick.draft for pick in step.picks}
        parents = [self._parents[pick.draft] for pick in picks]
        return step.asks_p_min and bool(parents) and here.issuperset(parents)

    # What kernels are told

    def _depths(self, step: DraftStep) -> dict[int, int]:
        """Return how many drafts of a step are before each."""
        levels = {draft: self._levels[step.stage][draft] for _, draft, _ in step.picks}
        first = min(levels.values(), default=0)
        return {draft: level - first for draft, level in levels.items()}

    def n_depths(self, step: DraftStep) -> int:
        """Return how many drafts of a step come one after the other, at most."""
        return 1 + max(self._depths(step).values(), default=0)

    def told(self, step: DraftStep) -> dict[str, NDArray[np.void]]:
        """Return ``STEP`` of each draft of a step."""
        depths, reads = self._depths(step), self._reads[step.stage]
        told = [
            (
                self._text(draft).p_min if step.asks_p_min else 0,
                *(draft, self._parents[draft], draft in self._n_after, depth),
                *(reads[draft].start, len(reads[draft])),
                self._reads_next.get((step.stage, draft), self.first_kept[-1]),
            )
            for draft, depth in depths.items()
        ]
        return {"steps": np.array(told, STEP)}

    def texts(self, step: DraftStep) -> dict[int, list[int]]:
        """Return the drafts in the text before each choice of a step, by output."""
        return {output: self._path(draft) for output, draft, _ in step.picks}


def _sources(schedule: Schedule) -> list[dict[int, tuple[int, int]]]:
    """Return by stage which output of which stage feeds each of its rows.

    Of the best of others it is the one that chose their last candidate.
    """
    chosen_by: dict[int, tuple[int, int]] = {}
    found = []
    for number, stage in enumerate(schedule.round.stages):
        fills = schedule.rows[number].fills if stage.feeds else []
        found.append(
            {
                row: chosen_by[fill.draft] if fill.stage == OF_DRAFT else (fill.stage, fill.source)
                for row, fill in fills
                if fill.stage != KNOWN
            }
        )
        for output, draft, _ in stage.picks:
            chosen_by |= dict.fromkeys(schedule.round.after(draft), (number, output))
    return found
