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
fixed tree             a stage a level, whose rows choose several drafts each, by rank
grown tree             the same, but the rows of a stage get the best drafts of the level before,
                       whichever these are
=====================  ===========================================================================

``backends/draft.py`` runs a schedule by the words of this page; other loops give the same drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "BEST",
    "CHOICE",
    "KNOWN",
    "OF_DRAFT",
    "PENDING",
    "Best",
    "DraftToken",
    "Drafts",
    "Fill",
    "Pick",
    "Schedule",
    "Stage",
    "Text",
    "are_ranked",
    "check_schedule",
    "n_embeddings",
]

KNOWN = -1
"""In place of a draft or a stage: the batch has the token, or the rows of slots."""
OF_DRAFT = -2
"""In place of a stage: the one that chose the draft whose token the row gets, and its row there."""
PENDING = -1
"""In place of the draft before: there is none, but the pending token."""
BEST = -2
"""In place of the draft before: this is the best of other drafts, and comes where that does."""
CHOICE = -1
"""In place of a rank: the sampler's choice."""


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
    """A draft: its text, and the draft before it, or PENDING, or BEST."""

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
    """An output whose logits choose a draft: the sampler's choice, or what it ranks there.

    Those that an output ranks after one and the same draft come one after the other in a stage's
    picks. They are ranked together, as many as the greatest rank asks for (``Sampler.rank``).
    """

    output: int
    draft: int
    rank: int = CHOICE


class Best(NamedTuple):
    """Drafts of a text that are the best of others, in their order; of equal ones the first.

    What counts is the product of the shares on the way to a draft (``Sampler.rank``). They are
    found when the last of the ``candidates``, which are ranked, was chosen.

    ``goes_on``: others come after them; so all candidates are chosen by one stage, equally far from
    the pending token, and those without an embedding do not count. Else nothing reads them.
    """

    candidates: Sequence[int]
    drafts: Sequence[int]
    goes_on: bool = True


class Drafts(NamedTuple):
    """What a schedule drafted.

    Attributes
    ----------
    tokens : list of int
        The token of each draft, -1 where it is none.
    best_of : list of int
        Which candidate each draft is that is the best of others; of any other its own number.
    ran : list of bool
        Which stages were run.
    """

    tokens: list[int]
    best_of: list[int]
    ran: list[bool]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A pass, and what goes on between it and others.

    A row is dead, and what is chosen after it is no draft, if its fill cannot be had: the draft is
    none or has no embedding, the row that feeds its slots is not finite. So are the rows that come
    after it. A stage runs if it chooses nothing, or a draft from a row that is not dead; where it
    has fills, rows that no such draft comes after are left out unless it ``runs_whole``, and those
    of their sequence after them move up.

    In a tree, which is a batch with parents, a row with a draft comes after the row with the draft
    before it, where there is one; else the batch says what it comes after.

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

    ``token_ids`` int32[n_logits] names the token of each logit, if that is not its index. ``bests``
    come in the order in which they are found. A ``verification`` may be run, too.
    """

    stages: Sequence[Stage]
    texts: Sequence[Text]
    drafts: Sequence[DraftToken]
    bests: Sequence[Best] = ()
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
        """How many drafts come before each; of the best ones, before their first candidate."""
        of = {best: at.candidates[0] for at in self.bests for best in at.drafts if at.candidates}
        depths: list[int] = []
        for draft, (_, parent) in enumerate(self.drafts):
            if parent == BEST:
                depths.append(depths[of[draft]])
            else:
                depths.append(0 if parent == PENDING else depths[parent] + 1)
        return depths

    @cached_property
    def found_with(self) -> dict[int, list[Best]]:
        """Which best drafts are found when a draft was chosen, by the last candidate."""
        found: dict[int, list[Best]] = {}
        for best in self.bests:
            found.setdefault(self._last(best), []).append(best)
        return found

    def _last(self, best: Best) -> int:
        """Return the candidate that is chosen last."""
        candidates = {*best.candidates}
        for stage in reversed(self.stages):
            for pick in reversed(stage.picks):
                if pick.draft in candidates:
                    return pick.draft
        return PENDING

    def after(self, draft: int) -> Iterator[int]:
        """Yield a draft that was chosen, and the best ones that are found with it."""
        yield draft
        for best in self.found_with.get(draft, ()):
            yield from best.drafts

    @cached_property
    def feeders(self) -> list[set[int]]:
        """Which stages feed slots of each."""
        chosen: dict[int, int] = {}  # the stage that chose each draft last
        feeders: list[set[int]] = []
        # The best of drafts are found in the stage that chooses these.
        of_best = {draft: best.candidates[0] for best in self.bests for draft in best.drafts}
        for number, stage in enumerate(self.stages):
            of = set[int]()
            for _, draft, source, _ in stage.fills if stage.feeds else ():
                if source == OF_DRAFT:
                    source = chosen.get(of_best.get(draft, draft), KNOWN)
                of.add(source)
            feeders.append({n for n in of if 0 <= n < number})  # others are refused later
            chosen.update((pick.draft, number) for pick in stage.picks)
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

    @property
    def branches(self) -> bool:
        """Whether its drafts are trees, or a batch is."""
        has_trees = any(stage.batch.parent is not None for stage in self.stages)
        return has_trees or are_ranked(self.stages)

    def by_text(self, tokens: Iterable[int]) -> list[list[int]]:
        """Return the drafts of each text, of the tokens of all; below 0 where one is none."""
        found: list[list[int]] = [[] for _ in self.texts]
        for draft, token in zip(self.drafts, tokens, strict=True):
            if token >= 0:
                found[draft.text].append(token)
        return found


def are_ranked(stages: Iterable[Stage]) -> bool:
    """Say whether outputs rank any draft: then the drafts are trees."""
    return any(pick.rank != CHOICE for stage in stages for pick in stage.picks)


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
        if "codes" in stage.plan.program.inputs:
            raise BatchError("a graph that reads codes cannot draft", where=f"stage {number}")
        _check_fills(schedule, number, chosen)
        if stage.batch.parent is not None:
            _check_tree(schedule, number)
        _check_picks(schedule, number, chosen)
    if len(chosen) < len(schedule.drafts):
        missing = {*range(len(schedule.drafts))} - chosen.keys()
        raise BatchError("a draft that nothing chooses", got=min(missing))
    _check_bests(schedule, chosen)


def _check_drafts(schedule: Schedule) -> None:
    n_found = Counter(draft for best in schedule.bests for draft in best.drafts)
    for number, (text, parent) in enumerate(schedule.drafts):
        is_there = 0 <= text < len(schedule.texts) and BEST <= parent < number
        is_there &= n_found[number] == (parent == BEST)
        if not is_there or (parent >= 0 and schedule.drafts[parent].text != text):
            raise BatchError(
                "a draft of no text, or after none before it",
                where=f"draft {number}",
                wanted=f"texts 0..{len(schedule.texts) - 1}, drafts before {number}",
                got=(text, parent),
            )
    for number, best in enumerate(schedule.bests):
        of = {schedule.drafts[draft].text for draft in (*best.candidates, *best.drafts)}
        is_before = max(best.candidates, default=-1) < min(best.drafts, default=0)
        if len(of) != 1 or not is_before or min(best.candidates) < 0:
            raise BatchError("the best of drafts of one text before them", where=f"best {number}")


def _check_bests(schedule: Schedule, chosen: Mapping[int, int]) -> None:
    """Raise BatchError where candidates are not ranked, or drafts come after what is not read."""
    ranked = {p.draft for stage in schedule.stages for p in stage.picks if p.rank != CHOICE}
    last = set[int]()
    for number, best in enumerate(schedule.bests):
        candidates = {*best.candidates}
        are_alike = len({(chosen[n], schedule.depths[n]) for n in candidates}) == 1
        if not candidates <= ranked or (best.goes_on and not are_alike):
            raise BatchError(
                "candidates that are ranked, those of drafts that go on by one stage",
                where=f"best {number}",
                got=best.candidates,
            )
        last |= {*best.drafts} if not best.goes_on else set()
    read = {fill.draft for stage in schedule.stages for fill in stage.fills}
    if wrong := last & (read | {draft.parent for draft in schedule.drafts}):
        raise BatchError("a draft after one that does not go on", got=min(wrong))


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


def _check_tree(schedule: Schedule, number: int) -> None:
    """Raise BatchError where a row of a tree may come after none before it."""
    stage, where = schedule.stages[number], f"stage {number}"
    if stage.repeats:
        raise BatchError("a tree does not repeat", where=where)
    seq = stage.batch.seq
    rows = {fill.draft: fill.row for fill in stage.fills if fill.draft != KNOWN}
    if len(rows) < sum(fill.draft != KNOWN for fill in stage.fills):
        raise BatchError("a draft in two rows of a tree", where=where)
    of = {draft: best.candidates for best in schedule.bests for draft in best.drafts}
    for draft, row in rows.items():
        for candidate in of.get(draft, (draft,)):
            before = rows.get(schedule.drafts[candidate].parent, -1)
            if before >= row or (before >= 0 and seq[before] != seq[row]):
                raise BatchError(
                    "a row of a tree comes after a row of its sequence before it",
                    where=f"{where}, row {row}",
                    got=before,
                )


def _check_picks(schedule: Schedule, number: int, chosen: dict[int, int]) -> None:
    """Raise BatchError where a draft cannot be chosen; note what is."""
    stage, where = schedule.stages[number], f"stage {number}"
    if stage.picks and "logits" not in stage.plan.program.outputs:
        raise BatchError("a graph without logits cannot draft", where=where)
    n_outputs, n_drafts, is_anew = len(stage.batch.outputs), len(schedule.drafts), stage.repeats > 0
    of_output: dict[int, set[bool]] = {}  # whether its drafts are ranked, and there are several
    for output, draft, rank in stage.picks:
        is_first = chosen.get(draft, number) < number if is_anew else draft not in chosen
        is_there = 0 <= output < n_outputs and 0 <= draft < n_drafts
        if not is_first or not is_there or schedule.drafts[draft].parent == BEST:
            raise BatchError(
                "no output, or a draft that is chosen elsewhere",
                where=where,
                wanted=f"outputs 0..{n_outputs - 1}",
                got=(output, draft),
            )
        if schedule.drafts[draft].parent not in chosen and schedule.drafts[draft].parent != PENDING:
            raise BatchError("a draft before the one before it", where=where, got=draft)
        if rank < CHOICE or (rank != CHOICE and is_anew):
            raise BatchError("a rank from 0 on, of drafts not chosen anew", where=where, got=rank)
        if (rank == CHOICE and output in of_output) or False in of_output.get(output, ()):
            raise BatchError("an output that chooses twice", where=where, got=stage.picks)
        of_output.setdefault(output, set()).add(rank != CHOICE)
        chosen.update(dict.fromkeys(schedule.after(draft), number))
