"""How long drafts should be, from what a drafter's declaration says."""

from __future__ import annotations

from mtpcore.cross import Cross
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.decoding.lengths.controller import Controller
from mtpcore.decoding.lengths.prospects import Expectation

__all__ = ["controller_for", "default_length"]

_COST, _ROW = 0.15, 0.25
"""What one more draft costs beside a pass of the target, and what verifying it does."""
_COST_OF_SHAPE = {"block": (0.0, 0.15), "proposer": (0.0, 0.05)}
"""The same, where one more draft costs next to nothing to make."""
_UNDECLARED = 8, 0.5
"""Of a proposer without a declaration: its longest draft, and the acceptance expected."""


def default_length(spec: DrafterSpec) -> int:
    """Return a draft length that pays on ordinary text.

    Draft i is reached and accepted with probability rate**i, the rate being the middle of what
    the declaration expects of first drafts; drafts go on while that exceeds their cost.
    ``mtpcore bench`` measures what a guess can not know. A tree is as deep as its declaration says.
    """
    if spec.tree is not None:
        return _longest_length(spec)
    rate = sum(spec.acceptance) / 2
    cost = sum(_COST_OF_SHAPE.get(spec.shape, (_COST, _ROW)))
    length = 1
    while length < spec.limit and rate ** (length + 1) >= cost:
        length += 1
    return length


def _longest_length(spec: DrafterSpec) -> int:
    """Return the longest draft that a declaration allows; of a tree its depth."""
    return min(spec.tree.n_levels, spec.limit) if spec.tree else spec.limit


def controller_for(cross: Cross) -> Controller:
    """Return what chooses lengths for a Cross: up to what its drafters and its memory allow.

    Of several drafters it also chooses which ones are asked.
    """
    return Controller(
        {
            role: _expectation(drafter.spec, cross.llm.longest_draft)
            for role, drafter in cross.drafters.items()
        }
    )


def _expectation(spec: DrafterSpec | None, longest: int) -> Expectation:
    limit, expected = _UNDECLARED
    if spec is None:
        return Expectation(min(limit, longest), expected, finds=True)
    return Expectation(
        min(_longest_length(spec), longest),
        sum(spec.acceptance) / 2,
        _COST_OF_SHAPE.get(spec.shape, (_COST, _ROW))[0],
        finds=spec.shape == "proposer",
    )
