"""How long drafts should be, from what a drafter's declaration says."""

from __future__ import annotations

from mtpcore.cross.growth import deepest
from mtpcore.spec import DrafterSpec

__all__ = ["default_length"]

_COST = 0.4
"""What one more draft costs beside a pass of the target, the verified row included."""
_PROPOSER_COST = 0.05


def default_length(spec: DrafterSpec) -> int:
    """Return a draft length that pays on ordinary text.

    Draft i is reached and accepted with probability rate**i, the rate being the middle of what
    the declaration expects of first drafts; drafts go on while that exceeds their cost.
    ``mtpcore bench`` measures what a guess can not know. A tree is as deep as its declaration says.
    """
    if spec.tree is not None:
        return min(deepest(spec.tree), spec.limit)
    rate = sum(spec.acceptance) / 2
    cost = _PROPOSER_COST if spec.shape == "proposer" else _COST
    length = 1
    while length < spec.limit and rate ** (length + 1) >= cost:
        length += 1
    return length
