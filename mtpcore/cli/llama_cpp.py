"""What llama.cpp of a certain date would do with a file, as far as tables of names tell.

The tables are in ``llama_cpp.json``, which ``tools/llama_cpp_sources.py`` makes of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.gguf.other_kinds import kind_of

__all__ = ["judge_for_llama_cpp"]

_OPTIONS = {
    "adapter": "--lora",
    "imatrix": "--imatrix, to quantise it",
    "mmproj": "--mmproj",
    "controlvector": "--control-vector",
}
"""What llama.cpp takes beside a model."""
_WITH_PRE_TOKENIZER = {"gpt2", "hybriddna", "whitespace"}


class _Known(msgspec.Struct, frozen=True):
    """The names that llama.cpp knows."""

    date: str
    architectures: frozenset[str]
    heads: frozenset[str]
    skipped_heads: frozenset[str]
    tokenizers: frozenset[str]
    pre_tokenizers: frozenset[str]
    types: frozenset[str]


@cache
def _known() -> _Known:
    data = Path(__file__).with_suffix(".json").read_bytes()
    return msgspec.json.decode(data, type=_Known)


def judge_for_llama_cpp(
    architecture: str | None, metadata: Mapping[str, Any], tensors: Mapping[str, str]
) -> dict[str, Any]:
    """Return what llama.cpp would do with a file.

    Parameters
    ----------
    architecture : str or None
        As the file names it.
    metadata : mapping
        Its metadata.
    tensors : mapping
        The name of each tensor's type, by the tensor's name.

    Returns
    -------
    dict
        ``of``, the date of its sources; ``unknown``, what it does not know, and so refuses the
        file; ``option``, which of its options the file is for, if it is no model; ``head``, whether
        it ``runs`` the NextN head in the file, ``skips`` it, or ``refuses`` a file with one; None
        where there is no head, or it does not know the architecture.
    """
    known = _known()
    if option := _OPTIONS.get(kind_of(metadata) or ""):
        return {"of": known.date, "unknown": [], "option": option, "head": None}
    pre, kind = (_texts(metadata.get(f"tokenizer.ggml.{name}")) for name in ("pre", "model"))
    names = {
        "architecture": {architecture or "(none is named)"} - known.architectures,
        "tokenizer": kind - known.tokenizers,
        "pre-tokenizer": pre - known.pre_tokenizers if kind & _WITH_PRE_TOKENIZER else set(),
        "type": {name.removeprefix("type ") for name in tensors.values()} - known.types,
    }
    head = None
    if architecture in known.architectures and any(".nextn." in name for name in tensors):
        runs, skips = architecture in known.heads, architecture in known.skipped_heads
        head = "runs" if runs else "skips" if skips else "refuses"
    return {
        "of": known.date,
        "unknown": [f"{what} {name}" for what in names for name in sorted(names[what])],
        "option": None,
        "head": head,
    }


def _texts(value: Any) -> set[str]:
    """Return a name; none where the file has none, or something else."""
    return {value} if isinstance(value, str) else set()
