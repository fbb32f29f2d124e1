"""What a round of drafts is built from, what is built of it, and the drafts that it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from mtpcore.backends.schedule import (
    BEST,
    CHOICE,
    Best,
    Drafts,
    DraftToken,
    Schedule,
    Stage,
    are_ranked,
)
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.declarations.spec import TreeShape

__all__ = ["BuildRound", "Round", "RoundInput", "drafts_of", "find_missing"]


class RoundInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a round of drafts is built from.

    Attributes
    ----------
    wanted : sequence of int
        How many drafts of each text are wanted; of trees how deep they are to be.
    room : sequence of int
        How many rows of drafts a text may have in a pass.
    passes : sequence of Stage
        Passes over rows that are there before any draft, or whose free cells the builder fills;
        places are reserved. Of a drafter that drafts token by token it is one, whose outputs are
        the newest rows of the texts; of heads for each step one a head; of a block the block's, and
        where it has a post-head, that one's.
    feeds : mapping of str to sequence of str
        Of each slot that a row of drafts is fed by an earlier pass, the outputs that do so.
    step : int
        How many places a draft's row stands after the row before.
    tree : TreeShape, optional
        The shape of trees, where drafts are to branch.
    n_passes : int
        How often a post-head runs at most; 0 where it runs in order.
    """

    wanted: Sequence[int]
    room: Sequence[int]
    passes: Sequence[Stage]
    feeds: Mapping[str, Sequence[str]] = {}
    step: int = 1
    tree: TreeShape | None = None
    n_passes: int = 0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of a round, and what they draft; see ``mtpcore.backends.schedule``."""

    stages: Sequence[Stage]
    drafts: Sequence[DraftToken]
    bests: Sequence[Best] = ()


BuildRound = Callable[[RoundInput], Round]


def drafts_of(schedule: Schedule, drafted: Drafts) -> list[Draft]:
    """Return the drafts of each text: a list of tokens, or a tree where any is ranked.

    A tree has the drafts that nothing comes after, if there are such, the best ones; else all.
    """
    if not are_ranked(schedule.stages):
        return list(schedule.by_text(drafted.tokens))
    last = [draft for best in schedule.bests if not best.goes_on for draft in best.drafts]
    nodes: list[list[int]] = [[] for _ in schedule.texts]
    for draft in last or range(len(schedule.drafts)):
        text, parent = schedule.drafts[draft]
        if drafted.tokens[draft] >= 0 and (last or parent != BEST):
            nodes[text].append(drafted.best_of[draft])
    return [_tree(schedule, drafted, its) for its in nodes]


def _tree(schedule: Schedule, drafted: Drafts, nodes: Sequence[int]) -> DraftTree:
    """Return a tree of these drafts."""
    number = {node: i for i, node in enumerate(nodes)}
    parents = [schedule.drafts[node].parent for node in nodes]
    return DraftTree(
        [drafted.tokens[node] for node in nodes],
        [number[drafted.best_of[parent]] if parent >= 0 else -1 for parent in parents],
    )


def find_missing(schedule: Schedule, drafted: Drafts) -> dict[int, int]:
    """Return how many drafts come before the first one that could not be chosen, by text.

    One with another rank than the first may be none: there are no more tokens to choose from.
    """
    missing: dict[int, int] = {}
    for stage in schedule.stages:
        for _, draft, rank in stage.picks:
            text, parent = schedule.drafts[draft]
            is_next = parent < 0 or drafted.tokens[parent] >= 0
            if rank in (CHOICE, 0) and is_next and drafted.tokens[draft] < 0:
                missing.setdefault(text, schedule.depths[draft])
    return missing
