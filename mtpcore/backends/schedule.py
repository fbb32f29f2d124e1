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
All of them begin with the same check (``mtpcore._ext._draft.check``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.batch import I32, ChangeLogits, CheckedBatch, RunsBatches, Verification
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
