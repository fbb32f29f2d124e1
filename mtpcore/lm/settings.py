"""The options of a text, sampling settings by name among them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from mtpcore.boundary.options import find_unknown
from mtpcore.decoding import REQUEST_DEFAULTS, RequestOptions
from mtpcore.errors import SamplingError, spell
from mtpcore.lm.answer_form import read_response_format
from mtpcore.runtime.model import Model
from mtpcore.sampling import Grammar, Recommended, Sampling, check_sampling, read_recommended

__all__ = [
    "CHAT_DEFAULTS",
    "TEXT_DEFAULTS",
    "ChatOptions",
    "SamplingOptions",
    "TextOptions",
    "read_defaults",
    "read_options",
    "read_sampling",
    "recommend_sampling",
    "split_chat_options",
]

log = logging.getLogger("mtpcore")

SchemaLike = Mapping[str, object] | str | type
"""A JSON schema: as a mapping, as JSON text, or what a type has."""

_NONE = ("logit_bias", "grammar", "seed")
"""Settings of which None is a value."""

_FIX_OF_STREAM = (
    "pieces come from LM.stream(), a stream of noise from sampling=Sampling(stream=...)"
)


class SamplingOptions(TypedDict, total=False):
    """The fields of ``Sampling`` as keywords of a call; not ``stream``, which has two meanings."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_n_sigma: float | None
    typical_p: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    penalty_last_n: int | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str | int] | None
    logit_bias: Mapping[int, float] | None
    grammar: Grammar | str | None
    seed: int | None


class TextOptions(RequestOptions, SamplingOptions, total=False):
    """What the methods of ``LM`` take by name; ``LM.generate`` documents it."""

    schema: SchemaLike | None
    regex: str | None


class TemplateOptions(TypedDict, total=False):
    """How a conversation is written by the model's chat template; ``LM.chat`` documents it."""

    tools: Sequence[Mapping[str, object]] | None
    template_options: Mapping[str, object] | None
    reasoning_effort: str | None
    continue_final_message: bool


class ChatOptions(TemplateOptions, TextOptions, total=False):
    """What ``LM.chat`` and ``LM.achat`` take by name."""

    response_format: SchemaLike | None
    tool_choice: str | Mapping[str, object]


TEXT_DEFAULTS = cast(
    TextOptions,
    {
        **REQUEST_DEFAULTS,
        "max_tokens": None,
        **dict.fromkeys(SamplingOptions.__annotations__),  # as LM.sampling says
        "schema": None,
        "regex": None,
    },
)
"""What an option is where it is left out, in an LM that was made of a model."""

CHAT_DEFAULTS: ChatOptions = {
    "tools": None,
    "template_options": None,
    "reasoning_effort": None,
    "continue_final_message": False,
    "response_format": None,
    "tool_choice": "auto",
    **TEXT_DEFAULTS,
}


def recommend_sampling(model: Model) -> Recommended:
    """Return what the model's file recommends; log lines name what of it is not taken."""
    recommended = read_recommended(model.metadata)
    for key, reason in recommended.left_out.items():
        log.warning("%s: %s is not taken: %s", model.path, key, reason)
    return recommended


def split_chat_options(given: ChatOptions) -> tuple[TemplateOptions, TextOptions, Any]:
    """Return the options of the template, those of the texts, and which tools may be called.

    The form of answers is an option of the texts.

    Raises
    ------
    SamplingError
        There are two forms, or it is none.
    """
    texts: dict[str, Any] = {**given}
    form = read_response_format(texts.pop("response_format", None))
    if form is not None:
        if any(texts.get(name) is not None for name in ("grammar", "schema", "regex")):
            raise SamplingError("an answer has one form", where="response_format")
        texts["grammar"] = form
    names = TemplateOptions.__annotations__
    writing = {name: texts.pop(name) for name in given if name in names}
    choice = texts.pop("tool_choice", CHAT_DEFAULTS["tool_choice"])
    return cast(TemplateOptions, writing), cast(TextOptions, texts), choice


def read_defaults(given: SamplingOptions) -> dict[str, Any]:
    """Return settings that hold where a call gives none, checked.

    Raises
    ------
    SamplingError
        No mapping, a name that is unknown, or a value that is out of range.
    """
    names = SamplingOptions.__annotations__
    try:
        named: dict[str, Any] = {**given}
        unknown = [name for name in named if name not in names]
    except MemoryError:
        raise
    except Exception as error:  # no mapping, and whatever a caller's own raises
        raise SamplingError("settings have names", where="sampling", got=spell(given)) from error
    if unknown:
        raise SamplingError(
            "no such setting", where="sampling", wanted=", ".join(names), got=spell(unknown[0])
        )
    Sampling(**named)
    return named


def read_options(given: TextOptions, default: Sampling | Mapping[str, Any]) -> RequestOptions:
    """Return the options of a request.

    Parameters
    ----------
    given : TextOptions
        Those of a call.
    default : Sampling or mapping
        As in ``read_sampling``.

    Raises
    ------
    SamplingError
        As ``read_sampling``, or a name is unknown.
    """
    unknown = find_unknown(given, TEXT_DEFAULTS)
    if unknown:
        name, nearest = unknown
        raise SamplingError(
            "no such option",
            where=spell(name),
            fix=_FIX_OF_STREAM if name == "stream" else f"the nearest is {nearest}=",
        )
    options: dict[str, Any] = {"max_tokens": TEXT_DEFAULTS["max_tokens"], **given}
    form = read_form(schema=options.pop("schema", None), regex=options.pop("regex", None))
    if form is not None:
        if options.get("grammar") is not None:
            raise SamplingError("a text has one form", where="grammar", got="two of them")
        options["grammar"] = form
    names = SamplingOptions.__annotations__
    named = {name: options.pop(name) for name in [*options] if name in names}
    options["sampling"] = read_sampling(options.get("sampling"), named, default)
    return cast(RequestOptions, options)


def read_form(*, schema: SchemaLike | None, regex: str | None) -> Grammar | None:
    """Return the grammar of a schema or of a regular expression; None where there is neither.

    Raises
    ------
    SamplingError
        There are both, or it is none.
    """
    if schema is not None and regex is not None:
        raise SamplingError("a text has one form", where="schema, regex", got="two of them")
    if regex is not None:
        return Grammar.of_regex(regex)
    return None if schema is None else Grammar.of_schema(schema)


def read_sampling(
    sampling: Sampling | None, named: Mapping[str, Any], default: Sampling | Mapping[str, Any]
) -> Sampling:
    """Return the settings of a call.

    Parameters
    ----------
    sampling : Sampling, optional
        All settings at once.
    named : mapping
        Settings by name; those that are left out, or None, are the default's, but for
        ``logit_bias``, ``grammar`` and ``seed``, of which None means that there is none.
    default : Sampling or mapping
        The settings of a call without any; fields by name draw a seed for each text.

    Raises
    ------
    SamplingError
        Both were given, or a value is out of range.
    """
    given = {name: value for name, value in named.items() if value is not None or name in _NONE}
    if sampling is not None:
        check_sampling(sampling)
        if given:
            raise SamplingError(
                "settings are given twice",
                where="sampling=",
                got=", ".join(given),
                fix=f"put them into it: sampling=Sampling({next(iter(given))}=...)",
            )
        return sampling
    if isinstance(default, Sampling):
        return msgspec.structs.replace(default, **given) if given else default
    return Sampling(**{**default, **given})
