"""The tokens that a drafter can draft, where these are not all of the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import DrafterSpec
from mtpcore.errors import LinkError
from mtpcore.gguf.vocabulary import UNUSED
from mtpcore.graph import GraphType
from mtpcore.runtime.runner import GraphRunner

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["find_rows", "read_vocabulary", "shared_tokens"]

I32 = NDArray[np.int32]
_FIX = "convert the drafter again, or give the file that was made for this target"


def read_vocabulary(runner: GraphRunner) -> I32 | None:
    """Return the target's id of each of a drafter's logits, int32[n_logits]; None: their own.

    Raises
    ------
    LinkError
        As ``find_rows``.
    """
    assert runner.drafter is not None
    ids, rows = _declared(runner.model, runner.drafter), runner.logit_rows
    if rows is None:
        return ids
    return rows if ids is None else ids[rows]


def find_rows(model: Model, spec: DrafterSpec, tokens: I32) -> I32:
    """Return which of a drafter's logits are of these tokens, int32[n] ascending.

    Raises
    ------
    LinkError
        The drafter can draft none of them, or makes no logits. The map that was declared is not
        there, or no id for each logit, or names a token that the target does not have, or one
        twice.
    """
    ids = _declared(model, spec)
    rows = np.unique(tokens) if ids is None else np.flatnonzero(np.isin(ids, tokens))
    if not len(rows):
        raise LinkError(
            "the drafter drafts none of the draft vocabulary's tokens",
            where=f"{model.path}, drafter {spec.name!r}",
        )
    return rows.astype(np.int32)


def shared_tokens(target: Model, draft_model: Model, tokens: I32 | None) -> I32 | None:
    """Return which of some tokens a draft model can draft; None: all that the target has.

    Both have the same tokens. One may have more, if these are marked as unused: publishers pad
    their tables to different lengths.

    Raises
    ------
    LinkError
        Names the first token that differs.
    """
    where = f"{draft_model.path} as a draft model for {target.path}"
    ours, theirs = (_spellings(model) for model in (target, draft_model))
    sizes = [model.hparams.n_vocab for model in (target, draft_model)]
    if not ours or not theirs:
        ours, theirs = (list(range(n)) for n in sizes)  # no spellings: numbers alone
    n = min(len(ours), len(theirs))
    extra = [*ours[n:], *theirs[n:]]
    first = next((i for i in range(n) if ours[i] != theirs[i]), None)
    if first is None and any(spelling != _PADDING for spelling in extra):
        first = n + next(i for i, spelling in enumerate(extra) if spelling != _PADDING)
    if first is not None:
        raise LinkError(
            "the draft model's vocabulary is another one",
            where=f"{where}: token {first}",
            wanted=_spell(ours, first),
            got=_spell(theirs, first),
            fix="give a smaller model of the same family, whose tokens are those of the target",
        )
    if sizes[0] == sizes[1]:
        return tokens
    return np.arange(min(sizes), dtype=np.int32) if tokens is None else tokens[tokens < min(sizes)]


_PADDING = ""
"""What stands for the spelling of tokens that are marked as unused."""


def _spellings(model: Model) -> list[Any]:
    """Return how the tokens of a file are spelled; an empty list where the file does not say."""
    tokens, kinds = (model.metadata.get(f"tokenizer.ggml.{n}") for n in ("tokens", "token_type"))
    if not isinstance(tokens, list):
        return []
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        return tokens
    unused = set(np.flatnonzero(kinds == UNUSED).tolist())
    return [_PADDING if i in unused else token for i, token in enumerate(tokens)]


def _spell(spellings: list[Any], token: int) -> str:
    there = f", {spellings[token]!r}" if token < len(spellings) else ", none of this number"
    return f"{len(spellings)} tokens{there}"


def _declared(model: Model, spec: DrafterSpec) -> I32 | None:
    """Return the target's id of each logit that the drafter's whole graph makes; None: their own.

    Raises
    ------
    LinkError
        As ``find_rows``.
    """
    program = model.program(GraphType.DRAFT, drafter=spec)
    if "logits" not in program.outputs:
        raise LinkError(
            "the graph makes no logits to draft from",
            where=f"drafter {spec.full_name}",
            wanted="logits",
            got=", ".join(program.outputs),
            fix="return Outputs(logits=..., ...) from its build",
        )
    n_logits, n_vocab = int(program.shape("logits")[1]), model.hparams.n_vocab
    where = f"{model.path}, drafter {spec.name!r}"

    def refuse(what: str, wanted: object, got: object) -> LinkError:
        return LinkError(what, where=where, wanted=wanted, got=got, fix=_FIX)

    tensor = model.tensors.get(spec.vocabulary)
    if tensor is None:
        if n_logits == n_vocab:
            return None
        raise refuse(
            "the drafter's logits are of other tokens than the target's, and no map says of which",
            f"{n_vocab} logits" + f", or the tensor {spec.vocabulary!r}" * bool(spec.vocabulary),
            f"{n_logits} logits",
        )
    where = f"{model.path}, tensor {spec.vocabulary!r}"
    if tuple(tensor.shape) != (n_logits,):
        what = "the draft vocabulary's map has one id for each logit"
        raise refuse(what, (n_logits,), tuple(tensor.shape))
    ids = tensor.array(np.int64)
    unknown = ids[(ids < 0) | (ids >= n_vocab)]
    if len(unknown):
        what = "the draft vocabulary names unknown tokens"
        raise refuse(what, f"0..{n_vocab - 1}", int(unknown[0]))
    first, counts = np.unique(ids, return_counts=True)
    if counts.max(initial=0) > 1:
        what = "the draft vocabulary names a token twice"
        raise refuse(what, "each token once", int(first[counts > 1][0]))
    return ids.astype(np.int32)
