"""How a published model wants its texts generated: ``generation_config.json`` as metadata."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gguf import GGUFWriter

from mtpcore.conversion.harmless import GENERATION, NEUTRAL_GENERATION
from mtpcore.conversion.published import convert_json, read_json
from mtpcore.conversion.tokenizer_json import TokenId
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.writer import take_values

__all__ = ["generation_metadata"]

log = logging.getLogger("mtpcore")


class _GenerationTokens(msgspec.Struct):
    """Tokens that the file names."""

    suppress_tokens: list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None


class _GenerationSampling(msgspec.Struct):
    """Settings of the sampler, as far as model files hold them."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


_READ = {*_GenerationTokens.__struct_fields__, *_GenerationSampling.__struct_fields__}


def generation_metadata(folder: Path, n_tokens: int, end: object) -> dict[str, MetadataValue]:
    """Return the tokens that end a text, those that it is not to have, and sampling settings.

    What a model file has no place for is said to be missing: it changes which texts come out, but
    not what the model computes. Where there is no such file, ``config.json`` says what ends texts.

    Parameters
    ----------
    folder : Path
    n_tokens : int
    end : int or None
        The token that ends texts by the tokenizer's word; it need not be said again.

    Raises
    ------
    ModelFileError
        The file is malformed, or names a token that is none.
    """
    path = folder / "generation_config.json"
    if not os.path.exists(path):
        path = folder / "config.json"
        given: dict[str, Any] = read_json(path) if os.path.exists(path) else {}
        inner = given.get("text_config")
        ends = given.get("eos_token_id")
        if ends is None and isinstance(inner, dict):
            ends = inner.get("eos_token_id")
        # A number is the end that the tokenizer names, or stands for it.
        return _tokens(
            path, {"eos_token_id": ends if isinstance(ends, list) else end}, n_tokens, end
        )
    given = read_json(path)
    if lost := dict(_lost(given)):
        log.warning(
            "%s: a model file has no place for %s: where it matters, give it with each text",
            path,
            ", ".join(f"{name} = {str(value)[:40]}" for name, value in lost.items()),
        )
    return _tokens(path, given, n_tokens, end) | _sampling(path, given)


def _tokens(
    path: Path, given: Mapping[str, Any], n_tokens: int, end: object
) -> dict[str, MetadataValue]:
    """Return the lists of tokens.

    A tokenizer names one end; models that end their turns, or calls of tools, by others name those.
    """
    found = convert_json(given, _GenerationTokens, str(path))
    ends = found.eos_token_id
    listed = ends if isinstance(ends, list) else [] if ends in (None, end) else [ends]
    metadata: dict[str, MetadataValue] = {}
    for name, key, tokens in (
        ("suppress_tokens", "suppress_tokens", found.suppress_tokens or []),
        ("eos_token_id", "eos_token_ids", listed),
    ):
        if max(tokens, default=0) >= n_tokens:
            raise ModelFileError(
                "no such token",
                where=f"{path}: {name}",
                wanted=f"0..{n_tokens - 1}",
                got=max(tokens),
                fix="take the file from the published model",
            )
        if tokens:
            metadata[f"tokenizer.ggml.{key}"] = np.array(tokens, np.int32)
    return metadata


def _sampling(path: Path, given: Mapping[str, Any]) -> dict[str, MetadataValue]:
    """Return the settings of the sampler: those that are given, each under llama.cpp's name."""
    found, writer = convert_json(given, _GenerationSampling, str(path)), GGUFWriter(None, "none")
    if found.do_sample is False:
        found = _GenerationSampling(temperature=0.0)
    for value, add in (
        (found.temperature, writer.add_sampling_temp),
        (found.top_k, writer.add_sampling_top_k),
        (found.top_p, writer.add_sampling_top_p),
        (found.min_p, writer.add_sampling_min_p),
    ):
        if value is not None:
            add(value)
    if found.repetition_penalty not in (None, 1.0):
        writer.add_sampling_penalty_repeat(found.repetition_penalty)
        writer.add_sampling_penalty_last_n(-1)  # of the whole text, not of its last 64 tokens
    return {k: v for k, v in take_values(writer).items() if k.startswith("general.sampling.")}


def _lost(given: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what would change texts and has no place in a model file."""
    for name, value in given.items():
        is_known = name in _READ or name in GENERATION
        if not is_known and value and value != NEUTRAL_GENERATION.get(name):
            yield name, value
