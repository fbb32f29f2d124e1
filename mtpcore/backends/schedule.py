"""A round as plain data: which passes run, what they read of each other, and what they choose.

A schedule is a list of stages. A stage is a plan with its memory and a batch, whose rows may have
free cells. Fills say what goes there before it runs: the token of a draft that an earlier stage
chose, and for slots a row that an earlier stage made. Picks say which row of its logits chooses
which draft. Nothing else is told, so that every shape of draft is a list of these:

=====================  ===========================================================================
chain                  a stage a draft, all of one plan; its row gets the draft before, and the row
                       that chose it
heads for each step    a stage a head; it has the rows of all drafts before its own
block                  one stage with a row for each draft
post-head in order     a block that chooses nothing, then a stage a draft; its row gets the draft
                       before, and the block's row
post-head in passes    a block that chooses all drafts, then a stage that chooses them anew after
                       those that were there, until none changes
=====================  ===========================================================================

``backends/draft.py`` runs a schedule by the words of this page; other loops give the same drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.batch import I32, ChangeLogits, CheckedBatch, RunsBatches, Verification
from mtpcore.errors import BatchError
from mtpcore.graph.parts import part_sizes
from mtpcore.graph.program import Program
from mtpcore.memory.base import Memory

__all__ = [
    "KNOWN",
    "OF_DRAFT",
    "PENDING",
    "DraftToken",
    "Fill",
    "Pick",
    "Schedule",
    "Stage",
    "Text",
    "check_schedule",
    "n_embeddings",
]

KNOWN = -1
"""In place of a draft or a stage: the batch has the token, or the rows of slots."""
OF_DRAFT = -2
"""In place of a stage: the one that chose the draft whose token the row gets, and its row there."""
PENDING = -1
"""The token before the first draft."""


class Text(msgspec.Struct, frozen=True):
    """A text that gets drafts, and what chooses them.

    ``history`` int32[n] are the tokens that penalties read, ``n_prompt`` of them the prompt; the
    first draft has index ``index``. A draft that is less probable than ``p_min`` is none.
    ``processor`` changes the logits before they choose; it runs on the host.
    """

    sampler: Sampler
    history: I32
    n_prompt: int
    index: int
    p_min: float = 0.0
    processor: ChangeLogits | None = None


class DraftToken(NamedTuple):
    """A draft: its text, and the draft before it, or PENDING."""

    text: int
    parent: int


class Fill(NamedTuple):
    """What a row of a stage gets before it runs.

    ``draft``: whose token, or KNOWN. ``stage`` and ``output``: which row feeds its slots, by its
    number among that stage's outputs; or KNOWN, or where the stage does not repeat OF_DRAFT.
    """

    row: int
    draft: int
    stage: int = OF_DRAFT
    output: int = 0


class Pick(NamedTuple):
    """An output whose logits choose a draft."""

    output: int
    draft: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A pass, and what goes on between it and others.

    A row is dead, and what is chosen after it is no draft, if its fill cannot be had: the draft is
    none or has no embedding, the row that feeds its slots is not finite. So are the rows of its
    sequence after it. A stage runs if it chooses nothing, or a draft from a row that is not dead;
    where it has fills, rows after the last of these are left out unless it ``runs_whole``.

    Attributes
    ----------
    plan, memory, batch
        Places of all rows are reserved in ``memory``, and may be written.
    fills : sequence of Fill
        By row.
    feeds : mapping of str to sequence of str
        Of each slot that fills feed the outputs whose rows, side by side, do.
    picks : sequence of Pick
        A draft comes after the one before it.
    repeats : int
        0: its drafts are chosen here first. Else they were chosen before and are chosen anew, from
        rows that get them: at most so many times, until none changes. A token without an embedding
        is 0 there. ``p_min`` is asked of the last choice alone.
    ends_at_nan : bool
        Whether an output with NaN chooses none, where more of it is read than the fused choice;
        else NaN counts as -inf.
    """

    plan: RunsBatches
    memory: Memory | None
    batch: CheckedBatch
    fills: Sequence[Fill] = ()
    feeds: Mapping[str, Sequence[str]] = {}
    picks: Sequence[Pick] = ()
    repeats: int = 0
    runs_whole: bool = False
    ends_at_nan: bool = False


class Schedule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The stages of a round, in order; samplers of ``texts`` share one scratch.

    ``token_ids`` int32[n_logits] names the token of each logit, if that is not its index. A
    ``verification`` may be run, too.
    """

    stages: Sequence[Stage]
    texts: Sequence[Text]
    drafts: Sequence[DraftToken]
    token_ids: I32 | None = None
    verification: Verification | None = None

    @cached_property
    def n_tokens(self) -> int:
        """How many tokens have embeddings wherever a draft is read; 0: none is."""
        programs = [
            stage.plan.program
            for stage in self.stages
            if any(fill.draft != KNOWN for fill in stage.fills)
        ]
        return min(filter(None, map(n_embeddings, programs)), default=0)

    @cached_property
    def depths(self) -> list[int]:
        """How many drafts come before each."""
        depths: list[int] = []
        for _, parent in self.drafts:
            depths.append(0 if parent == PENDING else depths[parent] + 1)
        return depths

    @cached_property
    def feeders(self) -> list[set[int]]:
        """Which stages feed slots of each."""
        chosen: dict[int, int] = {}  # the stage that chose each draft last
        feeders: list[set[int]] = []
        for number, stage in enumerate(self.stages):
            of = set[int]()
            for _, draft, source, _ in stage.fills if stage.feeds else ():
                if source != KNOWN:
                    of.add(chosen[draft] if source == OF_DRAFT else source)
            feeders.append(of)
            for _, draft in stage.picks:
                chosen[draft] = number
        return feeders

    @cached_property
    def read_late(self) -> set[int]:
        """The stages whose plan runs again before another stage reads what they made."""
        late = set[int]()
        for number, feeders in enumerate(self.feeders):
            again = int(self.stages[number].repeats > 0)
            for feeder in feeders:
                plan = self.stages[feeder].plan
                if any(self.stages[n].plan is plan for n in range(feeder + 1, number + again)):
                    late.add(feeder)
        return late

    @cached_property
    def names(self) -> list[str]:
        """The outputs that feed slots."""
        feeds = [names for stage in self.stages for names in stage.feeds.values()]
        return [*dict.fromkeys(chain.from_iterable(feeds))]

    @property
    def takes_host(self) -> bool:
        """Whether anything but plans has a part in it: then it runs stage by stage."""
        return any(text.processor is not None for text in self.texts)

    def by_text(self, tokens: Iterable[int]) -> list[list[int]]:
        """Return the drafts of each text, of the tokens of all; below 0 where one is none."""
        found: list[list[int]] = [[] for _ in self.texts]
        for draft, token in zip(self.drafts, tokens, strict=True):
            if token >= 0:
                found[draft.text].append(token)
        return found


def n_embeddings(program: Program) -> int:
    """Return how many tokens a program has embeddings of; 0 where it reads no tokens."""
    tables = [
        (node.weights[0], node.attrs.get("n_parts", 1), node.attrs.get("n_first", 0))
        for node in program.nodes
        if node.op in ("embed", "embed_by_position")
    ]
    return min(
        (max(part_sizes(table.shape[0], n, first)) for table, n, first in tables if table),
        default=0,
    )


def check_schedule(schedule: Schedule) -> None:
    """Raise BatchError where a schedule does not fit itself or the programs of its stages."""
    _check_drafts(schedule)
    chosen: dict[int, int] = {}  # the stage that chose each draft last
    for number, stage in enumerate(schedule.stages):
        where = f"stage {number}"
        if stage.batch.parent is not None:
            raise BatchError("drafts are chains", where=where)
        if "codes" in stage.plan.program.inputs:
            raise BatchError("a graph that reads codes cannot draft", where=where)
        _check_fills(schedule, number, chosen)
        _check_picks(schedule, number, chosen)
    if len(chosen) < len(schedule.drafts):
        missing = {*range(len(schedule.drafts))} - chosen.keys()
        raise BatchError("a draft that nothing chooses", got=min(missing))


def _check_drafts(schedule: Schedule) -> None:
    for number, (text, parent) in enumerate(schedule.drafts):
        is_there = 0 <= text < len(schedule.texts) and PENDING <= parent < number
        if not is_there or (parent != PENDING and schedule.drafts[parent].text != text):
            raise BatchError(
                "a draft of no text, or behind none before it",
                where=f"draft {number}",
                wanted=f"texts 0..{len(schedule.texts) - 1}, drafts before {number}",
                got=(text, parent),
            )


def _check_fills(schedule: Schedule, number: int, chosen: Mapping[int, int]) -> None:
    """Raise BatchError where a row gets what is not there, or of another width."""
    stage, where = schedule.stages[number], f"stage {number}"
    n_rows, slots, before = len(stage.batch.tokens), stage.plan.program.slots(), -1
    if lost := stage.feeds.keys() - slots.keys():
        raise BatchError("slots that the graph does not have", where=where, got=sorted(lost))
    feeders, n_fed = set[int](), 0
    for row, draft, source, output in stage.fills:
        if not before < row < n_rows:
            wanted = f"rows of 0..{n_rows - 1}, one after the other"
            raise BatchError("fills by row", where=where, wanted=wanted, got=row)
        before = row
        if draft != KNOWN and draft not in chosen:
            raise BatchError("a draft before it is chosen", where=f"{where}, row {row}", got=draft)
        if source == KNOWN:
            continue
        if source != OF_DRAFT:
            of = source
            is_there = 0 <= of < number and 0 <= output < len(schedule.stages[of].batch.outputs)
        else:  # which changes with each time that a stage repeats
            of = chosen.get(draft, KNOWN)
            is_there = of != KNOWN and not stage.repeats
        if not is_there:
            raise BatchError("a row before it is made", where=f"{where}, row {row}", got=source)
        feeders.add(of)
        n_fed += 1
    for of in feeders:
        _check_feeds(stage, slots, schedule.stages[of].plan.program, where)
    missing = slots.keys() - stage.batch.slots.keys()
    if missing and (n_fed < n_rows or missing - stage.feeds.keys()):
        raise BatchError(
            "a slot that nothing feeds", where=where, got=sorted(missing), wanted="an output for it"
        )


def _check_feeds(stage: Stage, slots: Mapping[str, int], made: Program, where: str) -> None:
    """Raise BatchError where a slot is not fed by outputs of its width."""
    for slot, names in stage.feeds.items():
        widths = [int(made.shape(name)[1]) for name in names if name in made.outputs]
        if len(widths) < max(len(names), 1) or sum(widths) != slots[slot]:
            raise BatchError(
                "a slot is fed by outputs of its width",
                where=f"{where}: feeds[{slot!r}]",
                wanted=", ".join(made.outputs),
                got=names,
            )


def _check_picks(schedule: Schedule, number: int, chosen: dict[int, int]) -> None:
    """Raise BatchError where a draft cannot be chosen; note what is."""
    stage, where = schedule.stages[number], f"stage {number}"
    if stage.picks and "logits" not in stage.plan.program.outputs:
        raise BatchError("a graph without logits cannot draft", where=where)
    n_outputs, n_drafts, is_anew = len(stage.batch.outputs), len(schedule.drafts), stage.repeats > 0
    outputs = set[int]()
    for output, draft in stage.picks:
        is_first = chosen.get(draft, number) < number if is_anew else draft not in chosen
        if not is_first or not 0 <= output < n_outputs or not 0 <= draft < n_drafts:
            raise BatchError(
                "no output, or a draft that is chosen elsewhere",
                where=where,
                wanted=f"outputs 0..{n_outputs - 1}",
                got=(output, draft),
            )
        if schedule.drafts[draft].parent not in chosen and schedule.drafts[draft].parent != PENDING:
            raise BatchError("a draft before the one before it", where=where, got=draft)
        outputs.add(output)
        chosen[draft] = number
    if len(outputs) < len(stage.picks):
        raise BatchError("an output that chooses twice", where=where, got=stage.picks)
