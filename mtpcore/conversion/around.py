"""What a published tokenizer does around its model: special tokens, a template, decoding.

A model file says whether texts begin with BOS and end with EOS, and which tokens are special. What
else there may be is said to be missing, or refused where every text would have other tokens.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.conversion.harmless import TOKENIZER
from mtpcore.conversion.published import NO_FILE_HOLDS_IT, read_json, tokenizer_error
from mtpcore.conversion.tokenizer_json import Processor, TokenizerFile, TokenizerStep
from mtpcore.declarations.spec import ModelSpec
from mtpcore.errors import ModelFileError
from mtpcore.gguf import MetadataValue
from mtpcore.gguf.response_template import RESPONSE_TEMPLATE_KEY, ResponseTemplate
from mtpcore.gguf.vocabulary import SPACE

__all__ = [
    "check_around",
    "check_settings",
    "choose_response_template",
    "named_special",
    "response_template_metadata",
    "say_template",
]

log = logging.getLogger("mtpcore")

_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", None}
_TEMPLATES = {"ByteLevel", "TemplateProcessing", "RobertaProcessing", None}
_SETTINGS = "tokenizer_config.json"
_READ = {
    "added_tokens_decoder",
    "additional_special_tokens",
    "chat_template",
    "response_template",
    "tokenizer_class",
}


class _SpecialTokens(msgspec.Struct):
    """Tokens that are special by the word of ``tokenizer_config.json``."""

    added_tokens_decoder: dict[str, dict[str, Any]] | None = None
    additional_special_tokens: list[str | dict[str, Any]] | None = None


class _Templates(msgspec.Struct):
    """The template of answers in ``tokenizer_config.json``."""

    response_template: Any = None


def named_special(folder: Path) -> set[str]:
    """Return the texts that ``tokenizer_config.json`` calls special, as transformers reads it."""
    path = folder / _SETTINGS
    if not os.path.exists(path):
        return set()
    found = read_json(path, _SpecialTokens)
    added = (found.added_tokens_decoder or {}).values()
    listed = found.additional_special_tokens or ()
    return {
        *(str(one.get("content")) for one in added if one.get("special")),
        *(one if isinstance(one, str) else str(one.get("content")) for one in listed),
    }


def response_template_metadata(folder: Path) -> dict[str, MetadataValue]:
    """Return the response template of ``tokenizer_config.json``, where transformers saves it.

    Raises
    ------
    ModelFileError
        It is malformed.
    """
    path = folder / _SETTINGS
    if not os.path.exists(path):
        return {}
    found = read_json(path, _Templates).response_template
    if found is None:
        return {}
    ResponseTemplate(found, f"{path}: response_template")
    return {RESPONSE_TEMPLATE_KEY: msgspec.json.encode(found).decode()}


def choose_response_template(
    metadata: Mapping[str, MetadataValue], given: str, spec: ModelSpec | None, architecture: str
) -> dict[str, MetadataValue]:
    """Return metadata with another response template than the checkpoint's.

    Parameters
    ----------
    metadata : mapping
    given : str
        The template as JSON; ``none``: the file has none; ``family``: that of the declaration.
    spec : ModelSpec, optional
        What declares the architecture.
    architecture : str

    Raises
    ------
    ModelFileError
        It is malformed, or the family declares none.
    """
    rest = {name: value for name, value in metadata.items() if name != RESPONSE_TEMPLATE_KEY}
    if given == "none":
        return rest
    if given == "family":
        given = spec.response_template if spec is not None else ""
        if not given:
            raise ModelFileError(
                "the family declares no response template",
                where=architecture,
                fix="leave it out: how answers are parsed is found in the chat template, too",
            )
    found = ResponseTemplate(given, "response_template")
    return rest | {RESPONSE_TEMPLATE_KEY: msgspec.json.encode(found.source).decode()}


def check_settings(folder: Path) -> None:
    """Say what ``tokenizer_config.json`` asks for and a model file has no place for."""
    path = folder / _SETTINGS
    if not os.path.exists(path):
        return
    given: dict[str, Any] = read_json(path)
    lost = {
        name: value
        for name, value in given.items()
        if value
        and name not in TOKENIZER
        and name not in _READ
        and not name.endswith(("_token", "_token_id"))
    }
    if lost:
        log.warning(
            "%s: a model file has no place for %s",
            path,
            ", ".join(f"{name} = {str(value)[:40]}" for name, value in lost.items()),
        )


def check_around(source: TokenizerFile, path: Path) -> None:
    """Refuse or name what a model file does not hold of added tokens, template and decoder.

    Raises
    ------
    ModelFileError
        Tokens are put around texts, or put together again, in an unknown way.
    """
    _say_flags(source, path)
    _say_prefix(source.pre_tokenizer, path)
    for part in source.post_processor.parts if source.post_processor else ():
        if part.type not in _TEMPLATES:
            raise tokenizer_error(
                path,
                "an unknown way to put tokens around a text (post_processor)",
                "TemplateProcessing, ByteLevel",
                repr(part.type)[:80],
                NO_FILE_HOLDS_IT,
            )
    for step in source.decoder.parts if source.decoder else ():
        if not _is_known(step):
            raise tokenizer_error(
                path,
                "an unknown step of its decoder",
                "ByteLevel, ByteFallback, Fuse, Metaspace and Replace of spaces, Strip of one",
                repr(step.type)[:80],
                NO_FILE_HOLDS_IT,
            )


def _is_known(step: TokenizerStep) -> bool:
    """Say whether a model file's vocabulary implies a step of the decoder."""
    text = step.pattern.text if step.pattern is not None else None
    return (
        step.type in _DECODERS
        or (step.type, step.replacement) == ("Metaspace", SPACE)
        or (step.type, text, step.content) == ("Replace", SPACE, " ")
        or (step.type, step.content, step.start, step.stop) == ("Strip", " ", 1, 0)
    )


def _say_flags(source: TokenizerFile, path: Path) -> None:
    """Name added tokens that take the spaces beside them, or are no part of a word."""
    for flag, what in (
        ("lstrip", "take the spaces before them"),
        ("rstrip", "take the spaces after them"),
        ("single_word", "are found between words alone"),
    ):
        _say_tokens(
            path,
            f"{flag}: that added tokens {what}",
            [token.content for token in source.added_tokens or () if getattr(token, flag)],
        )


def _say_tokens(path: Path, what: str, texts: list[str]) -> None:
    if texts:
        more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
        log.warning(
            "%s: a model file cannot say %s: %s%s",
            path,
            what,
            ", ".join(map(repr, texts[:4])),
            more,
        )


def _say_prefix(step: TokenizerStep | None, path: Path) -> None:
    if any(part.prepend_scheme == "first" for part in (step.parts if step is not None else ())):
        log.warning(
            "%s: a model file cannot say that the first word of a text alone gets a space in front "
            "(prepend_scheme): text after a special token gets one, too",
            path,
        )


def say_template(
    source: TokenizerFile, ids: Mapping[str, int], special: Mapping[str, int], path: Path
) -> None:
    """Name what is put around a text other than BOS before it and EOS after it.

    Parameters
    ----------
    source : TokenizerFile
    ids : mapping of str to int
        Tokens by text.
    special : mapping of str to int
        Special tokens by kind: ``bos``, ``eos``.
    path : Path
        For warnings.
    """
    parts = source.post_processor.parts if source.post_processor else ()
    for part in parts:
        _check_ids(part, ids, path)
        before, after = part.around
        for where, kind, texts in (("before", "bos", before), ("after", "eos", after)):
            if texts and [ids.get(text) for text in texts] != [special.get(kind)]:
                what = f"which tokens are put {where} a text, but {kind.upper()} alone"
                _say_tokens(path, f"{what} (post_processor)", texts)


def _check_ids(part: Processor, ids: Mapping[str, int], path: Path) -> None:
    """Refuse a template whose texts stand for other tokens than the vocabulary's.

    Raises
    ------
    ModelFileError
        Naming the text, and the ids that the template has for it.
    """
    for text in (text for texts in part.around for text in texts):
        told = (part.special_tokens or {}).get(text, {}).get("ids")
        if told is not None and text in ids and told != [ids[text]]:
            raise tokenizer_error(
                path,
                f"other tokens are put around a text (post_processor) than {text!r}",
                [ids[text]],
                told,
                NO_FILE_HOLDS_IT,
            )
