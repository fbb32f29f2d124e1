"""A round as plain data: which passes run, what they read of each other, and what they choose.

A round is a list of stages. A stage runs the rows of a pass, a batch that is there before any
draft and may have free cells, or rows of its own after them. Fills say what a row gets before it
runs: the token of a draft that an earlier stage chose, and for slots a row that an earlier stage
made. Picks say which row of its logits chooses which draft. Nothing else is told, so that every
shape of draft is a list of these:

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

Rows are told by the outputs of a pass, whatever stands before these: so a round does not depend on
texts, and is made and checked once for many of them. A schedule is a round with its passes and
texts. ``backends/draft.py`` runs it by the words of this page; other loops give the same drafts.
All of them begin with the same check (``mtpcore._ext._draft.check``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.batch import I32, ChangeLogits, CheckedBatch, RunsBatches, Verification
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
    "Pass",
    "Pick",
    "Round",
    "Rows",
    "Schedule",
    "Stage",
    "Text",
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
    """A row of a stage, and what it gets before it runs.

    The row is that of an ``output`` of the pass, or as many rows ``ahead`` of it. ``draft``: whose
    token, or KNOWN. ``stage`` and ``source``: which row feeds its slots, by its number among that
    stage's outputs; or KNOWN, or where the stage does not repeat OF_DRAFT.
    """

    output: int
    draft: int
    stage: int = OF_DRAFT
    source: int = 0
    ahead: int = 0


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


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its memory and a batch, which are there before any draft.

    Places of its rows, and of those that are new, are reserved in ``memory``, and may be written.
    """

    plan: RunsBatches
    memory: Memory | None
    batch: CheckedBatch


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in one go, and what goes on between it and others.

    A row is dead, and what is chosen after it is no draft, if its fill cannot be had: the draft is
    none or has no embedding, the row that feeds its slots is not finite. So are the rows that come
    after it. A stage runs if it chooses nothing, or a draft from a row that is not dead; where it
    has fills, rows that no such draft comes after are left out unless it ``runs_whole``, and those
    of their sequence after them move up.

    In a tree a row with a draft comes after the row with the draft before it, where there is one;
    else after what is stored, or as the pass's batch says.

    Attributes
    ----------
    graph : int
        The number of the pass.
    rows : str
        "given": those of the pass. Fills are in their order; one is none if the pass has no such
        row of the output's sequence. Else a new row for each fill, and an output each, with what
        that output's row has where it gets nothing, at the position that many ahead. As a "chain"
        its place is that far ahead, too; as a "tree" it is the next one of its sequence.
    fills : sequence of Fill
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

    graph: int = 0
    rows: Literal["given", "chain", "tree"] = "given"
    fills: Sequence[Fill] = ()
    feeds: Mapping[str, Sequence[str]] = {}
    picks: Sequence[Pick] = ()
    repeats: int = 0
    runs_whole: bool = False
    ends_at_nan: bool = False


class Round(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The stages of a round, in order, and what they draft.

    ``bests`` come in the order in which they are found. What was found out about a round is kept
    with it, its check, too.
    """

    stages: Sequence[Stage]
    drafts: Sequence[DraftToken]
    bests: Sequence[Best] = ()

    @cached_property
    def is_ranked(self) -> bool:
        """Whether outputs rank any draft: then the drafts are trees."""
        return any(pick.rank != CHOICE for stage in self.stages for pick in stage.picks)

    @cached_property
    def drafts_of(self) -> Mapping[int, list[int]]:
        """The numbers of the drafts of each text that has any."""
        found: dict[int, list[int]] = {}
        for number, (text, _) in enumerate(self.drafts):
            found.setdefault(text, []).append(number)
        return found

    @cached_property
    def verified(self) -> Mapping[int, list[int]]:
        """The numbers of the drafts of each text that has any, as far as they are verified.

        They are the best ones that nothing comes after, where there are such; else all but the best
        ones, which are others once more.
        """
        last = [draft for best in self.bests if not best.goes_on for draft in best.drafts]
        found: dict[int, list[int]] = {}
        for draft in last or range(len(self.drafts)):
            text, parent = self.drafts[draft]
            if last or parent != BEST:
                found.setdefault(text, []).append(draft)
        return found

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
        order = [pick.draft for stage in self.stages for pick in stage.picks]
        chosen_at = {draft: at for at, draft in enumerate(order)}
        found: dict[int, list[Best]] = {}
        for best in self.bests:
            last = max(best.candidates, key=lambda draft: chosen_at.get(draft, PENDING))
            found.setdefault(last, []).append(best)
        return found

    def tree_of(self, text: int, drafted: Drafts) -> tuple[list[int], list[int]]:
        """Return the tree that a text is verified with.

        Parameters
        ----------
        text : int
        drafted : Drafts
            What was made of this round.

        Returns
        -------
        list of int, list of int
            Its tokens, and the number of the one that each comes after; -1: the pending token.
        """
        there = [n for n in self.verified.get(text, ()) if drafted.tokens[n] >= 0]
        nodes = [drafted.best_of[n] for n in there]
        number = {node: i for i, node in enumerate(nodes)}
        parents = [self.drafts[node].parent for node in nodes]
        return (
            [drafted.tokens[node] for node in nodes],
            [number[drafted.best_of[before]] if before >= 0 else -1 for before in parents],
        )

    def after(self, draft: int) -> Iterator[int]:
        """Yield a draft that was chosen, and the best ones that are found with it."""
        yield draft
        for best in self.found_with.get(draft, ()):
            yield from best.drafts

    @cached_property
    def ahead(self) -> Mapping[int, Mapping[int, tuple[int, int]]]:
        """By pass and output, how far ahead the first and the last place of new rows is."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        for stage in self.stages:
            counts: dict[int, int] = {}
            for output, *_, ahead in stage.fills if stage.rows != "given" else ():
                counts[output] = counts.get(output, 0) + 1
                place = counts[output] if stage.rows == "tree" else ahead
                reach = found.setdefault(stage.graph, {})
                first, last = reach.get(output, (place, place))
                reach[output] = min(first, place), max(last, place)
        return found


class Rows(NamedTuple):
    """The rows of a stage as a batch, and what they get, by row."""

    batch: CheckedBatch
    fills: list[tuple[int, Fill]]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A round with what it reads; samplers of ``texts`` share one scratch.

    ``token_ids`` int32[n_logits] names the token of each logit, if that is not its index. A
    ``verification`` may be run, too.
    """

    round: Round
    passes: Sequence[Pass]
    texts: Sequence[Text]
    token_ids: I32 | None = None
    verification: Verification | None = None

    def pass_of(self, stage: Stage) -> Pass:
        """Return the pass whose plan and memory a stage runs with."""
        return self.passes[stage.graph]

    @cached_property
    def rows(self) -> list[Rows]:
        """The rows of each stage."""
        return [_rows_of(stage, self.pass_of(stage).batch) for stage in self.round.stages]

    @cached_property
    def n_tokens(self) -> int:
        """How many tokens have embeddings wherever a draft is read; 0: none is."""
        programs = [
            self.pass_of(stage).plan.program
            for stage in self.round.stages
            if any(fill.draft != KNOWN for fill in stage.fills)
        ]
        return min(filter(None, (program.n_embeddings for program in programs)), default=0)

    @property
    def takes_host(self) -> bool:
        """Whether anything but plans has a part in it: then it runs stage by stage."""
        return any(text.processor is not None for text in self.texts)

    def by_text(self, tokens: Sequence[int]) -> list[list[int]]:
        """Return the drafts of each text, of the tokens of all; below 0 where one is none."""
        numbers = [self.round.drafts_of.get(text, ()) for text in range(len(self.texts))]
        return [[tokens[n] for n in its if tokens[n] >= 0] for its in numbers]


def _rows_of(stage: Stage, given: CheckedBatch) -> Rows:
    """Return the rows of a stage of a pass over a ``given`` batch."""
    outputs = given.outputs[[fill.output for fill in stage.fills]]
    ahead = np.array([fill.ahead for fill in stage.fills], np.int32)
    if stage.rows == "given":
        fills = zip(outputs.tolist(), (outputs + ahead).tolist(), stage.fills, strict=True)
        own = [
            (row, fill)
            for output, row, fill in fills
            if 0 <= row < len(given.seq) and given.seq[row] == given.seq[output]
        ]
        return Rows(given, own)
    is_known = [fill.draft == KNOWN for fill in stage.fills]
    is_fed = all(fill.stage != KNOWN for fill in stage.fills)
    kept = given.slots.keys() - stage.feeds.keys() if is_fed else given.slots.keys()
    seq, place = given.seq[outputs], given.place[outputs] + ahead
    if stage.rows == "tree":
        newest = dict(zip(seq.tolist()[::-1], given.place[outputs].tolist()[::-1], strict=True))
        for row, its in enumerate(seq.tolist()):
            place[row] = newest[its] = newest[its] + 1
    batch = CheckedBatch(
        tokens=np.where(is_known, given.tokens[outputs], 0).astype(np.int32),
        positions=given.positions[outputs] + ahead[:, None],
        seq=seq,
        place=place,
        outputs=np.arange(len(seq), dtype=np.int32),
        parent=np.full(len(seq), -1, np.int32) if stage.rows == "tree" else None,
        slots={slot: np.asarray(given.slots[slot])[outputs] for slot in kept},
    )
    return Rows(batch, [*enumerate(stage.fills)])
