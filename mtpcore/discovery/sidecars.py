"""Which files beside a model may hold its drafter, or the rest of it, and which is the best.

Published files often keep trunk and drafter apart. A drafter's declaration says how such files are
called (``Fit.sidecars``); tensors, vocabulary and graphs then decide whether one fits.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mtpcore.declarations.draft_model import is_independent
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.upstream import n_heads
from mtpcore.drafting.vocabulary import find_rows, shared_tokens
from mtpcore.errors import ModelFileError, spell
from mtpcore.gguf import ModelFile
from mtpcore.gguf.types import BLOCKS
from mtpcore.graph import GraphType
from mtpcore.runtime.accounting import account
from mtpcore.runtime.model import Model

__all__ = [
    "Candidate",
    "MOST_FILES",
    "check_draft_model",
    "check_drafters",
    "check_tokens",
    "find_candidates",
    "find_named",
    "precision",
    "rank_names",
    "sidecar_patterns",
    "spell_reason",
]

MOST_FILES = 8
"""Files beside a model whose headers are read."""

_PART = re.compile(r"-(\d{5})-of-\d{5}$")
_TYPE = re.compile(r"[-_.](?:ud[-_.])?(?:i?q\d\w*|tq\d\w*|b?f16|f32|mxfp\d\w*|nvfp\d\w*)$")
_WORDS = re.compile(r"[a-z]+|\d+")
_EIGHT_BITS = 8.5
"""Bits of a weight in Q8_0."""


class Candidate(msgspec.Struct, frozen=True):
    """A file whose name is that of a sidecar.

    Attributes
    ----------
    path : Path
    drafters : tuple of str
        Whose declarations name it.
    distance : int
        Words that only its name has or only the model's, types of weights aside; -1 where the
        names are equal.
    """

    path: Path
    drafters: tuple[str, ...]
    distance: int

    @property
    def has_own_name(self) -> bool:
        """Whether it is called as the model is, types of weights aside."""
        return self.distance <= 0


def find_candidates(model: Path, drafters: Iterable[DrafterSpec]) -> list[Candidate]:
    """Return the regular files in a model's own folder that drafters name, the nearest name first.

    Only names are read. A folder that cannot be listed has none.
    """
    return find_named(model, sidecar_patterns(drafters))


def find_named(model: Path, patterns: Iterable[tuple[str, str]]) -> list[Candidate]:
    """Return the regular files beside a model that patterns name, the nearest name first.

    Each pattern comes with the name of the declaration that it is from.
    """
    patterns = [*patterns]
    if not patterns:
        return []
    try:
        names = os.listdir(model.parent)
    except OSError:
        return []
    return [one for one in rank_names(model, names, patterns) if os.path.isfile(one.path)]


def rank_names(
    model: Path, names: Iterable[str], patterns: Iterable[tuple[str, str]]
) -> list[Candidate]:
    """Return those of some names beside a model that patterns name, the nearest first."""
    named = [(pattern.lower(), spec) for pattern, spec in patterns]
    found = []
    for name in names:
        cores = {spec: core for p, spec in named if (core := _core(name.lower(), p)) is not None}
        if cores and name != model.name:
            distance = min(_distance(model, core) for core in cores.values())
            found.append(Candidate(model.with_name(name), tuple(cores), distance))
    return sorted(found, key=lambda one: (one.distance, one.path.name))


def sidecar_patterns(drafters: Iterable[DrafterSpec]) -> list[tuple[str, str]]:
    """Return what drafters' files are called, each with the name of its declaration."""
    return [(p, spec.name) for spec in drafters if not spec.variant_of for p in spec.fit.sidecars]


def _core(name: str, pattern: str) -> str | None:
    """Return what a pattern's ``*`` stands for in a name; None where the name is another one.

    Of a split file the first part is meant.
    """
    stem, suffix = os.path.splitext(name)
    part = _PART.search(stem)
    if part and int(part[1]) != 1:
        return None
    name = _PART.sub("", stem) + suffix
    before, after = pattern.split("*")
    end = len(name) - len(after)
    fits = name.startswith(before) and name.endswith(after) and end > len(before)
    return name[len(before) : end] if fits else None


def _distance(model: Path, core: str) -> int:
    """Return how far the name in a sidecar's name is from the model's."""
    ours = _PART.sub("", model.stem.lower())
    if ours == core:
        return -1
    words, others = (Counter(_WORDS.findall(_TYPE.sub("", name))) for name in (ours, core))
    return ((words - others) + (others - words)).total()


def precision(file: ModelFile) -> float:
    """Return how far a file's matrices are from eight bits a weight; the nearest is preferred."""
    matrices = [t for t in file.tensors.values() if len(t.shape) > 1 and t.type in BLOCKS]
    n_values = sum(math.prod(tensor.shape) for tensor in matrices)
    n_bits = 8 * sum(tensor.n_bytes for tensor in matrices)
    return abs(n_bits / n_values - _EIGHT_BITS) if n_values else 0.0


def spell_reason(error: Exception) -> str:
    """Return why a file is left out, without how to mend it."""
    return spell(error, str).split("\n  fix: ")[0]


def check_tokens(ours: ModelFile, theirs: ModelFile) -> None:
    """Refuse a file whose tokens are not those of the model.

    Raises
    ------
    ModelFileError
    """
    tokens, others = (file.metadata.get("tokenizer.ggml.tokens") for file in (ours, theirs))
    if not isinstance(tokens, list) or not isinstance(others, list) or tokens == others:
        return
    pairs = enumerate(zip(tokens, others, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(others)))
    raise ModelFileError(
        "the file spells tokens otherwise than the model, so it was made for another one",
        where=f"{theirs.path}: token {first}",
        wanted=f"{len(tokens)} tokens, {_spell_token(tokens, first)}",
        got=f"{len(others)} tokens, {_spell_token(others, first)}",
    )


def _spell_token(tokens: list[Any], i: int) -> str:
    return repr(tokens[i]) if i < len(tokens) else "none"


def check_drafters(model: Model) -> None:
    """Build the graphs of the drafters in a model's own files.

    Raises
    ------
    MtpcoreError
        What does not fit.
    """
    for spec in model.drafters:
        if spec.shape != "proposer" and not spec.variant_of:
            for head in range(n_heads(spec)):
                model.program(GraphType.DRAFT, drafter=spec, head=head)


def check_draft_model(target: Model, draft_model: Model) -> None:
    """Check that a draft model's best drafter can draft for a target, as ``link`` does.

    Raises
    ------
    MtpcoreError
        What does not fit.
    """
    if not draft_model.drafters:
        raise ModelFileError("the file holds no drafter", where=str(draft_model.path))
    spec = draft_model.find_drafter()
    draft_model.borrow_from(target)
    try:
        target.program(taps=[t for f in spec.feeds if f.src == "target" for t in f.taps])
        for graph, _ in spec.graphs:
            draft_model.program(graph, drafter=spec)
        account(draft_model)
        every = np.arange(target.hparams.n_vocab, dtype=np.int32)
        tokens = shared_tokens(target, draft_model, None) if is_independent(spec) else None
        find_rows(draft_model, spec, every if tokens is None else tokens)
    finally:
        draft_model.give_back()
