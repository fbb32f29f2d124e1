"""How long drafts should be, from what a drafter's declaration says."""

from __future__ import annotations

from mtpcore.cross import Cross
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.decoding.lengths.controller import Controller
from mtpcore.decoding.lengths.costs import Passes
from mtpcore.decoding.lengths.order import OrderController

__all__ = ["controller_for", "default_length"]

_COST = 0.4
"""What one more draft costs beside a pass of the target, the verified row included."""
_COST_OF_SHAPE = {"block": 0.15, "proposer": 0.05}
"""The same, where one more draft is no more than a row of a pass, or costs nothing to make."""
_UNDECLARED = 8, 4, 0.5
"""Of a proposer without a declaration: longest and first draft, acceptance expected."""


def default_length(spec: DrafterSpec) -> int:
    """Return a draft length that pays on ordinary text.

    Draft i is reached and accepted with probability rate**i, the rate being the middle of what
    the declaration expects of first drafts; drafts go on while that exceeds their cost.
    ``mtpcore bench`` measures what a guess can not know. A tree is as deep as its declaration says.
    """
    if spec.tree is not None:
        return _longest_length(spec)
    rate = sum(spec.acceptance) / 2
    cost = _COST_OF_SHAPE.get(spec.shape, _COST)
    length = 1
    while length < spec.limit and rate ** (length + 1) >= cost:
        length += 1
    return length


def _longest_length(spec: DrafterSpec) -> int:
    """Return the longest draft that a declaration allows; of a tree its depth."""
    return min(spec.tree.n_levels, spec.limit) if spec.tree else spec.limit


def controller_for(cross: Cross) -> Controller | OrderController:
    """Return what chooses lengths for a Cross: up to what its drafters and its memory allow.

    A drafter's declaration says with which length to begin. Of several drafters it also chooses
    which ones are asked, and in which order.
    """
    passes = Passes() if len(cross.drafters) > 1 else None
    controllers = {
        role: _controller(drafter.spec, cross.llm.longest_draft, passes)
        for role, drafter in cross.drafters.items()
    }
    if passes is None:
        return next(iter(controllers.values()), Controller(0))
    sparing = [
        role
        for role, drafter in cross.drafters.items()
        if drafter.spec is None or drafter.spec.shape == "proposer"
    ]
    return OrderController(controllers, passes, sparing)


def _controller(spec: DrafterSpec | None, longest: int, passes: Passes | None) -> Controller:
    limit, start, expected = _UNDECLARED
    if spec is not None:
        limit, start = _longest_length(spec), default_length(spec)
        expected = sum(spec.acceptance) / 2
    return Controller(min(limit, longest), start=start, expected=expected, passes=passes)
