"""What a round of drafts is built from, what is built of it, and the drafts that it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from mtpcore.backends.schedule import CHOICE, Drafts, Round, Schedule
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.declarations.spec import TreeShape
from mtpcore.graph.program import Program

__all__ = ["BuildRound", "RoundInput", "drafts_of", "find_missing"]


class RoundInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a round of drafts is built from.

    Attributes
    ----------
    wanted : sequence of int
        How many drafts of each text are wanted; of trees how deep they are to be.
    room : sequence of int
        How many rows of drafts a text may have in a pass.
    programs : sequence of Program
        The graphs of the passes that a round may have. Of a drafter that drafts token by token it
        is one, and the pass's outputs are the newest rows of the texts; of heads for each step one
        a head; of a block the block's, and where it has a post-head, that one's.
    feeds : mapping of str to sequence of str
        Of each slot that a row of drafts is fed by an earlier pass, the outputs that do so.
    step : int
        How many places a draft's row stands after the row before.
    tree : TreeShape, optional
        The shape of trees, where drafts are to branch.
    n_passes : int
        How often a post-head runs at most; 0 where it runs in order.
    n_known : int
        How many rows of a post-head come before those of a text that choose drafts.
    """

    wanted: Sequence[int] = ()
    room: Sequence[int] = ()
    programs: Sequence[Program]
    feeds: Mapping[str, Sequence[str]] = {}
    step: int = 1
    tree: TreeShape | None = None
    n_passes: int = 0
    n_known: int = 0


BuildRound = Callable[[RoundInput], Round]


def drafts_of(schedule: Schedule, drafted: Drafts) -> list[Draft]:
    """Return the drafts of each text: a list of tokens, or a tree where any is ranked."""
    built = schedule.round
    if not built.is_ranked:
        return list(schedule.by_text(drafted.tokens))
    return [DraftTree(*built.tree_of(text, drafted)) for text in range(len(schedule.texts))]


def find_missing(schedule: Schedule, drafted: Drafts) -> dict[int, int]:
    """Return how many drafts come before the first one that could not be chosen, by text.

    One with another rank than the first may be none: there are no more tokens to choose from.
    """
    missing: dict[int, int] = {}
    built = schedule.round
    for stage in built.stages if min(drafted.tokens, default=0) < 0 else ():
        for _, draft, rank in stage.picks:
            text, parent = built.drafts[draft]
            is_next = parent < 0 or drafted.tokens[parent] >= 0
            if rank in (CHOICE, 0) and is_next and drafted.tokens[draft] < 0:
                missing.setdefault(text, built.depths[draft])
    return missing
