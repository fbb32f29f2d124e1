"""What an adapter of stacks of experts changes in a checkpoint.

The classes of transformers 5 hold the experts of a layer as two stacks, ``gate_up_proj`` and
``down_proj``, whatever a checkpoint has: a tensor for each expert, under names of its own, or
stacks. Which of its tensors are meant is told by what a model file makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mtpcore.conversion.family import Family
from mtpcore.conversion.metadata import family_metadata
from mtpcore.conversion.peft import MERGE, LowRank, OfExperts
from mtpcore.conversion.plan import ExpertCount, Wish, apply_change, wishes_of
from mtpcore.conversion.published import convert_json
from mtpcore.declarations.checkpoint import Config
from mtpcore.errors import ModelFileError

__all__ = ["spread_over_experts"]

_PARTS = {"gate_up_proj": (("gate_up",), ("gate", "up")), "down_proj": (("down",),)}
"""What a stack is in a model file, of which some hold the gate's rows and those of up as one."""


def spread_over_experts(
    changes: Mapping[str, OfExperts],
    family: Family,
    config: Config,
    present: Mapping[str, object] | None,
) -> Iterator[tuple[str, LowRank | OfExperts]]:
    """Yield what changes of stacks are of a checkpoint's tensors, by their names.

    Parameters
    ----------
    changes : mapping of str to OfExperts
        By the class's parameter, with its layer's number.
    family : Family
    config : Config
    present : mapping, optional
        The checkpoint's tensors by name; None where they are not at hand.

    Raises
    ------
    ModelFileError
        The model has no such experts, not as many, or of another size.
    """
    metadata = family_metadata(family.architecture, [family.main], config)
    width, n_experts = (
        convert_json(metadata.get(f"{family.architecture}.{key}", 0), ExpertCount, config.file)
        for key in ("embedding_length", "expert_count")
    )
    wishes = [*wishes_of(family, config, n_experts)]
    have_outputs_in_a = _have_outputs_in_a(changes, width)
    for name, change in changes.items():
        pairs = [_transposed(pair) for pair in change.pairs] if have_outputs_in_a else change.pairs
        found = _meant(name, wishes, present)
        if len({wish.names[0] for wish in found}) == 1:  # which holds all parts, as the class does
            yield from _of_tensors(found[0], pairs, name, config)
            continue
        if len(pairs[0].b) % len(found):
            raise _misfit(name, change, f"outputs in {len(found)} parts")
        for i, wish in enumerate(found):
            halves = [pair._replace(b=np.split(pair.b, len(found))[i]) for pair in pairs]
            yield from _of_tensors(wish, halves, name, config)


def _have_outputs_in_a(changes: Mapping[str, OfExperts], width: int) -> bool:
    """Say whether A has a column for each output, and B a row for each input.

    PEFT goes by the order of a parameter's axes, in which classes differ, and by what some of them
    say of it. It is the same order for all of a model's stacks.

    Raises
    ------
    ModelFileError
        No size tells.
    """
    found: set[bool] = set()
    for name, change in changes.items():
        pair = change.pairs[0]
        sizes = pair.a.shape[1], len(pair.b)
        reads = sizes if name.endswith(".gate_up_proj") else sizes[::-1]  # the model's width first
        if width not in reads:
            raise _misfit(name, change, f"{width} inputs or outputs")
        if reads[0] != reads[1]:
            found.add(reads[0] != width)
    if len(found) != 1:
        raise ModelFileError(
            "halves of stacks of experts that do not tell inputs from outputs",
            where=", ".join([*changes][:9]),
            fix=MERGE,
        )
    return found.pop()


def _meant(name: str, wishes: Sequence[Wish], present: Mapping[str, object] | None) -> list[Wish]:
    """Return the wishes that are made of a class's stack, one for each of its parts."""
    parameter, layer = name.rpartition(".")[2], re.search(r"\.(\d+)\.", name)
    n = layer[1] if layer else ""
    for parts in _PARTS[parameter]:
        found = [_one(f"blk.{n}.ffn_{part}_exps.weight", wishes, present) for part in parts]
        meant = [wish for wish in found if wish is not None]
        if len(meant) == len(parts):
            return meant
    raise ModelFileError(
        "the adapter changes experts that the model does not have",
        got=name,
        fix=f"give the adapter of this model; if it is that, {MERGE}",
    )


def _one(tensor: str, wishes: Sequence[Wish], present: Mapping[str, object] | None) -> Wish | None:
    """Return what a tensor of numbers is made of: rather of what the checkpoint has."""
    named = [wish for wish in wishes if wish.tensor == tensor and not wish.rename.blocks]
    there = [wish for wish in named if present is not None and wish.names[0] in present]
    return next(iter([*there, *named]), None)


def _of_tensors(
    wish: Wish, pairs: Sequence[LowRank], name: str, config: Config
) -> Iterator[tuple[str, LowRank | OfExperts]]:
    """Yield the changes of what a wish is made of, by pairs of matrices [out, in]."""
    if not wish.rename.is_stack:
        if len(pairs) != len(wish.names):
            raise _misfit(name, OfExperts(tuple(pairs)), f"{len(wish.names)} experts")
        yield from zip(wish.names, pairs, strict=True)
        return
    shape = len(pairs[0].b), pairs[0].a.shape[1]
    rows = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
    made = apply_change(wish.rename, rows, config, wish.names[0])
    has_inputs_first = made.ndim == 2 and (made[:1] != made[:1, :1]).any()
    of_stack = map(_transposed, pairs) if has_inputs_first else pairs
    yield wish.names[0], OfExperts(tuple(of_stack))


def _transposed(pair: LowRank) -> LowRank:
    return LowRank(pair.b.T, pair.a.T, pair.scale)


def _misfit(name: str, change: OfExperts, wanted: str) -> ModelFileError:
    pair = change.pairs[0]
    return ModelFileError(
        "an adapter of other experts than the model's",
        where=name,
        wanted=wanted,
        got=f"{len(change.pairs)} experts, A {list(pair.a.shape)} and B {list(pair.b.shape)} each",
        fix="give the adapter of this model",
    )
