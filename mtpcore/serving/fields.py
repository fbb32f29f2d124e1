"""Fields that requests of several APIs share, and the options of a text that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mtpcore.errors import SamplingError
from mtpcore.lm import LM
from mtpcore.lm.settings import SamplingOptions
from mtpcore.sampling import read_sequence
from mtpcore.serving.adapters import AdapterField, choose_adapters
from mtpcore.serving.draws import draw_seed
from mtpcore.serving.refusals import Refusal

__all__ = [
    "HARMLESS",
    "SamplingFields",
    "Speculative",
    "StreamOptions",
    "TextsFields",
    "check_needless",
    "options_of",
]

HARMLESS = frozenset(
    (
        *("user", "store", "metadata", "service_tier", "safety_identifier", "verbosity"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("web_search_options", "prediction", "cache_prompt", "id_slot"),
        *("return_progress", "session_id", "priority", "cache_salt"),
    )
)
"""Fields that change no text: who asks, what else is stored, hints for other servers."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1, 0),
    "adaptive_target": (-1,),
    "min_keep": (0,),
    "guided_json": ({},),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "reasoning_budget_tokens": (-1,),
    "thinking_budget_tokens": (-1,),
    "allowed_token_ids": ([],),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (-1,),
    "modalities": (["text"],),
    "functions": ([],),  # what tools were called before there were other ones
    "function_call": ("auto", "none"),
}
"""Fields that would change a text and are not known here, with the values that change nothing."""


_SYNONYMS = {
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n",
    "typ_p": "typical_p",
    "bad_words": "banned_strings",
}
"""Other names of fields."""


class StreamOptions(msgspec.Struct):
    """What a stream shows; ``include_obfuscation`` pads events, which hides nothing here."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Literal[False] = False


class Speculative(msgspec.Struct, forbid_unknown_fields=True):
    """How a text is drafted; it does not change the text."""

    draft: Annotated[int, Meta(ge=0)] | Literal["auto"] | None = None
    drafter: str | list[str] | None = None
    p_min: Annotated[float, Meta(ge=0, le=1)] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """The form of a text, as vLLM's requests have it: one of these."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that say how tokens are chosen, when a text ends, and how it is drafted."""

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    min_tokens: int | None = None
    banned_strings: list[str] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    samplers: list[str] = []
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    typ_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    penalty_last_n: int | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str | int] | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    lora: list[AdapterField] | None = None
    speculative: Speculative | bool | None = None
    grammar: str = ""
    json_schema: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None


class TextsFields(SamplingFields, kw_only=True):
    """Fields of APIs that write several texts of a prompt."""

    stream_options: StreamOptions | None = None
    timings_per_token: bool = False
    n: Annotated[int, Meta(ge=1)] = 1


def check_needless(fields: Mapping[str, Any]) -> None:
    """Refuse fields that would change the text and that nothing here reads.

    Raises
    ------
    Refusal
        One has a value that would change it.
    """
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and not any(value == one for one in neutral):
            raise Refusal(
                400,
                f"{name} is not supported; leave it out",
                param=name,
                code="unsupported_parameter",
            )


def options_of(lm: LM, fields: SamplingFields) -> dict[str, Any]:
    """Return the options of ``LM.generate`` that a request means.

    Raises
    ------
    Refusal
        A drafter, an adapter or a token that there is not.
    """
    n_vocab = lm.model.hparams.n_vocab
    for token in (*(fields.logit_bias or ()), *fields.stop_token_ids):
        if not 0 <= token < n_vocab:
            raise Refusal(400, f"no such token: {token}; there are {n_vocab}")
    for other, name in _SYNONYMS.items():
        _take_synonym(fields, other, name)
    stop: Sequence[str] = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    names = ("min_tokens", "banned_strings", *SamplingOptions.__annotations__)
    given = {name: getattr(fields, name) for name in names if name != "grammar"}  # read elsewhere
    for name, off in (("top_k", 0), ("top_n_sigma", 0), ("typical_p", 1)):
        if given[name] is not None and given[name] <= 0:  # as other servers spell it
            given[name] = off
    if given["top_p"] == 0:  # the likeliest token alone
        given["top_p"] = 1e-6
    if fields.seed is not None and fields.seed < 0:  # draw one
        given["seed"] = None
    if given["seed"] is None and lm.sampling.get("seed") is None:
        given["seed"] = draw_seed()
    if fields.samplers:
        try:
            given |= read_sequence(fields.samplers)
        except SamplingError as error:
            raise Refusal(400, str(error), param="samplers") from None
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {"stop": [text for text in stop if text], "ignore_eos": fields.ignore_eos}
    if fields.stop_token_ids:
        options["stop_token_ids"] = fields.stop_token_ids
    if fields.max_tokens is not None:
        options["max_tokens"] = None if fields.max_tokens < 0 else fields.max_tokens
    adapters = choose_adapters(lm, fields.model, fields.lora)
    if adapters is not None:
        options["adapters"] = adapters
    return options | _drafting(lm, fields.speculative)


def _take_synonym(fields: SamplingFields, other: str, name: str) -> None:
    """Let a field have what another name of it was given."""
    given, own = getattr(fields, other), getattr(fields, name)
    if given is not None and own not in (None, given):
        raise Refusal(400, f"{name} and {other} differ", param=other)
    if given is not None:
        setattr(fields, name, given)


def _drafting(lm: LM, given: Speculative | bool | None) -> dict[str, Any]:
    if given is False:
        return {"draft": 0}
    if given is None or given is True:
        return {}
    roles = {
        drafter.spec.name if drafter.spec else role: role
        for role, drafter in lm.generator.cross.drafters.items()
    }
    named = [given.drafter] if isinstance(given.drafter, str) else given.drafter
    for name in named or ():
        if name not in roles:
            raise Refusal(
                400,
                f"no such drafter: {name!r}; there are {', '.join(roles) or 'none'}",
                param="speculative.drafter",
            )
    asked = None if named is None else [roles[name] for name in named]
    options = {"draft": given.draft, "drafters": asked, "p_min": given.p_min}
    return {name: value for name, value in options.items() if value is not None}
