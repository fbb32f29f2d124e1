"""Texts over the own routes of llama.cpp's server: ``/completion`` and ``/infill``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.lm import Completion
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.fields import HARMLESS, TextsFields, check_needless, options_of
from mtpcore.serving.forms import form_of_text
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.prompts import PromptField, encode_infill, encode_prompts
from mtpcore.serving.refusals import Refusal, as_openai
from mtpcore.serving.replies import reply
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["answer_completion", "answer_infill"]

_HARMLESS = HARMLESS | {"n_keep", "sse_ping_interval"}
"""Fields that change no text here: a full context ends it."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "post_sampling_probs": (False,),
    "t_max_predict_ms": (0, -1),
    "n_indent": (0,),
    "n_discard": (0,),
    "n_cmpl": (1,),
}
"""Fields that are not read, with the values that change nothing."""
_STOPS = {"end": "eos", "stop": "word", "length": "limit", "no_token": "none"}


class PlainFields(TextsFields, kw_only=True):
    """The fields that both routes read."""

    n_predict: int | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] = 0
    return_tokens: bool = False
    response_fields: list[str] = msgspec.field(default_factory=list)


class PlainCompletionFields(PlainFields, kw_only=True):
    """The fields of a text that is continued."""

    prompt: PromptField


class OtherFile(msgspec.Struct):
    """A text to know of."""

    text: str
    filename: str = "tmp"


class InfillFields(PlainFields, kw_only=True):
    """The fields of a text between two others."""

    input_prefix: str
    input_suffix: str
    input_extra: list[OtherFile] = msgspec.field(default_factory=list)
    prompt: str = ""


T = TypeVar("T", bound=PlainFields)


async def answer_completion(service: Service, request: Request) -> Response:
    """Continue texts."""
    fields = await _read(service, request, PlainCompletionFields)
    prompts = await encode_prompts(service, fields.prompt, "prompt")
    return await _answer(service, request, fields, prompts)


async def answer_infill(service: Service, request: Request) -> Response:
    """Write what stands between two texts."""
    fields = await _read(service, request, InfillFields)
    files = [(one.filename, one.text) for one in fields.input_extra]
    prompt = await encode_infill(
        service, fields.input_prefix, fields.input_suffix, fields.prompt, files
    )
    return await _answer(service, request, fields, [prompt])


async def _read(service: Service, request: Request, kind: type[T]) -> T:
    given = await read_body(request, service.settings.max_body)
    check_needless(given)
    for name, neutral in _NEUTRAL.items():
        if given.get(name) not in (None, *neutral):
            raise Refusal(
                400,
                f"{name} is not supported; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    return read_fields(given, kind, _HARMLESS | _NEUTRAL.keys())


async def _answer(
    service: Service, request: Request, fields: PlainFields, prompts: Sequence[Sequence[int]]
) -> Response:
    options = options_of(service.lm, fields) | await form_of_text(service, fields)
    n_predict = fields.n_predict if fields.n_predict is not None else fields.max_tokens
    options["max_tokens"] = None if n_predict is None or n_predict < 0 else n_predict
    if fields.n_probs:
        options["logprobs"] = fields.n_probs
    answer = await service.begin(prompts, options, fields.n)
    shown = _Shown(service, fields, answer, options, prompts)
    if fields.stream:
        return EventStream(
            answer, shown.events(), lambda one: encode_event(as_openai(one)), service.keep_alive
        )
    async with answer:
        completions = await until_gone(request, answer.finish())
    found = [await shown.whole(i, one, one.text) for i, one in enumerate(completions)]
    return reply(found if len(found) > 1 else found[0])


class _Shown:
    """The texts of a request as llama.cpp's server shows them."""

    def __init__(
        self,
        service: Service,
        fields: PlainFields,
        answer: Answer,
        options: Mapping[str, Any],
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self._service, self._fields, self._answer = service, fields, answer
        self._options, self._prompts = options, prompts

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; the last one of a text has its facts."""
        answer, fields = self._answer, self._fields
        n_tokens: dict[int, int] = {}
        async with answer:
            async for one in answer.events():
                i = one.text
                if (piece := one.piece) is not None:
                    n_tokens[i] = n_tokens.get(i, 0) + len(piece.tokens)
                    figures = answer.figures_of_tokens(
                        len(piece.tokens), drafted=piece.drafted, timed=fields.timings_per_token
                    )
                    part = {
                        "index": i,
                        "content": str(piece),
                        "tokens": piece.tokens,
                        "stop": False,
                        "tokens_predicted": n_tokens[i],
                        "tokens_evaluated": len(self._prompt(i)),
                        **figures,
                        **self._probabilities(piece.logprobs),
                    }
                    yield encode_event(part)
                elif one.completion is not None:
                    yield encode_event(await self.whole(i, one.completion, ""))

    async def whole(self, index: int, completion: Completion, content: str) -> dict[str, Any]:
        """Return what there is to say of a text that ended; a stream has said its ``content``."""
        fields, service, stats = self._fields, self._service, completion.stats
        n_predict = self._options["max_tokens"]
        facts = {
            "index": index,
            "content": content,
            "tokens": completion.tokens if fields.return_tokens and not fields.stream else [],
            "id_slot": await self._find_slot(index, completion),
            "stop": True,
            "model": fields.model or service.name,
            "tokens_predicted": stats.tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                **msgspec.to_builtins(completion.sampling),
                "n_predict": -1 if n_predict is None else n_predict,
                "stop": self._options["stop"],
                "ignore_eos": fields.ignore_eos,
                "n_probs": fields.n_probs,
                "stream": fields.stream,
            },
            "prompt": service.lm.tokenizer.decode(self._prompt(index), special=True),
            "has_new_line": "\n" in completion.text,
            "truncated": False,
            "stop_type": _STOPS[completion.finish_reason],
            "stopping_word": completion.stop or "",
            "tokens_cached": stats.prompt_tokens + stats.tokens,
            **self._answer.figures([completion]),
        }
        if not fields.stream:
            facts |= self._probabilities(completion.logprobs or ())
        return _select(facts, fields.response_fields) if fields.response_fields else facts

    async def _find_slot(self, text: int, completion: Completion) -> int:
        """Return the slot that holds a text, by which it can be saved; -1: none does any more."""
        tokens, kept = [*self._prompt(text), *completion.tokens], self._service.lm.generator.kept
        seq = await self._service.lm.run_between_rounds(lambda: kept.find(tokens))
        return -1 if seq is None else seq

    def _prompt(self, text: int) -> Sequence[int]:
        return self._prompts[text // self._fields.n]

    def _probabilities(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        if not self._fields.n_probs or not tokens:
            return {}
        content = chat_logprobs(tokens, self._service.lm.tokenizer)["content"]
        for shown, one in zip(content, tokens, strict=True):
            shown["id"] = one.token
            for other, (token, _) in zip(shown["top_logprobs"], one.top, strict=True):
                other["id"] = token
        return {"completion_probabilities": content}


def _select(facts: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return facts by the paths that were asked for, as far as there are any."""
    found = {}
    for path in paths:
        value: Any = facts
        for name in path.split("/"):
            value = value.get(name, facts) if isinstance(value, dict) else facts
        if value is not facts:
            found[path] = value
    return found
