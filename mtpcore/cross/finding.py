"""Finding the drafter that a caller means: in a draft model, in the model, or in mtpcore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mtpcore.declarations.checks import check_tree
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, TreeShape
from mtpcore.drafting.lookup import LOOKUP
from mtpcore.errors import LinkError, PluginError

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["DrafterLike", "find_drafter", "find_with_tree"]

DrafterLike = str | DrafterSpec | Proposer
"""What names a drafter, or is one."""

BUILT_IN = {spec.name: spec for spec in (LOOKUP,)}
"""Drafters that every model has: used if a caller names one, and lookup where nothing else is."""


def find_drafter(
    model: Model, draft_model: Model | None, drafter: str | DrafterSpec
) -> tuple[Model, DrafterSpec] | None:
    """Return which model holds a drafter, and its declaration; None: there is none for "auto".

    A name is looked for in the draft model, in the model itself, and among what comes with mtpcore.
    "auto" is the draft model, else the model's best, else lookup; a model that writes frames of
    codes, which no text repeats, is left without.

    Raises
    ------
    PluginError
        None has it; or the draft model itself is meant, and there is none.
    """
    source = draft_model or model
    if drafter == "auto":
        if source is draft_model and draft_model.as_draft_model:
            return source, draft_model.as_draft_model
        if source.drafters:
            return source, source.find_drafter(None)
        return (model, LOOKUP) if model.codebooks is None else None
    name = drafter.name if isinstance(drafter, DrafterSpec) else drafter
    if draft_model and name in {spec.name for spec in draft_model.drafters_for_others}:
        return draft_model, draft_model.find_drafter(drafter)
    if name in {spec.name for spec in model.drafters}:
        return model, model.find_drafter(drafter)
    if name in BUILT_IN:
        return model, BUILT_IN[name]
    itself = model.as_draft_model
    if draft_model is None and itself is not None and name == itself.name:
        raise PluginError(
            "no draft model is given",
            where=f"drafter {name!r}",
            fix="give its file: draft_model=load_model(path) (-md)",
        )
    return source, source.find_drafter(drafter)


def find_with_tree(
    model: Model, draft_model: Model | None, drafter: str | DrafterSpec, tree: TreeShape | None
) -> tuple[Model, DrafterSpec] | None:
    """Return which model holds a drafter, and its declaration with the tree that was asked for.

    Raises
    ------
    LinkError
        None has it, or it cannot draft trees.
    """
    try:
        found = find_drafter(model, draft_model, drafter)
        if tree is not None:
            check_tree(tree)
    except PluginError as error:
        raise error.into(LinkError) from None
    if tree is None or found is None:
        return found
    source, spec = found
    if spec.schedule is not None and spec.shape != "proposer":
        return source, msgspec.structs.replace(spec, tree=tree)
    if spec.shape not in ("chain", "tree"):
        raise LinkError(
            "this drafter cannot draft trees",
            where=f"drafter {spec.full_name}",
            wanted="one whose shape is chain or tree, or that has rounds of its own",
            got=f"shape {spec.shape}",
            fix="leave tree= (--draft-tree) out",
        )
    return source, msgspec.structs.replace(spec, shape="tree", tree=tree)
