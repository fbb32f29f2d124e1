"""Which builder makes the rounds of a drafter."""

from __future__ import annotations

from typing import cast

from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.rounds import BuildRound
from mtpcore.drafting.stages import draft_block, draft_chains, draft_heads
from mtpcore.drafting.tree_stages import draft_head_trees, draft_trees

__all__ = ["builder_of"]


def builder_of(spec: DrafterSpec) -> BuildRound:
    """Return the declaration's own builder, or that of its shape."""
    if spec.schedule is not None:
        return cast(BuildRound, spec.schedule)
    if spec.heads.order == "each-step":
        return draft_head_trees if spec.shape == "tree" else draft_heads
    return {"chain": draft_chains, "tree": draft_trees, "block": draft_block}[spec.shape]
