"""Completions: OpenAI's ``/v1/completions``, which continues texts as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.lm import Completion, Piece
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.draws import draw_name, request_time
from mtpcore.serving.fields import HARMLESS, TextsFields, check_needless, options_of
from mtpcore.serving.forms import form_of_text
from mtpcore.serving.logprobs import legacy_logprobs
from mtpcore.serving.prompts import PromptField, encode_infill, encode_prompts
from mtpcore.serving.refusals import Refusal, as_openai
from mtpcore.serving.replies import DONE, reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["answer_completions"]

_DEFAULT = 16
"""Tokens of a text where a request does not say (OpenAI's)."""


class CompletionFields(TextsFields, kw_only=True):
    """The fields of a request that are read."""

    prompt: PromptField
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None


async def answer_completions(service: Service, request: Request) -> Response:
    """Continue texts."""
    given = await read_body(request, service.settings.max_body)
    check_needless(given)
    fields = read_fields(given, CompletionFields, HARMLESS)
    if fields.best_of is not None and fields.best_of != fields.n:
        raise Refusal(400, "best_of is not supported, other than n", param="best_of")
    prompts = await _encode(service, fields)
    options = {"max_tokens": _DEFAULT} | options_of(service.lm, fields)
    options |= await form_of_text(service, fields, fields.response_format, "response_format")
    if fields.logprobs is not None:
        options["logprobs"] = fields.logprobs
    begins = [service.lm.tokenizer.decode(one) if fields.echo else "" for one in prompts]
    answer = await service.begin(prompts, options, fields.n)
    head = {
        "id": draw_name("cmpl-"),
        "object": "text_completion",
        "created": request_time(),
        "model": fields.model or service.name,
        "system_fingerprint": service.fingerprint,
    }
    of_texts = [begin for begin in begins for _ in range(fields.n)]
    if fields.stream:
        pieces = _stream(answer, head, fields, of_texts)
        return EventStream(
            answer, pieces, lambda one: encode_event(as_openai(one)), service.keep_alive
        )
    async with answer:
        completions = await until_gone(request, answer.finish())
    choices = [
        _choice(i, of_texts[i] + one.text, fields, one, len(of_texts[i]))
        for i, one in enumerate(completions)
    ]
    content = head | {"choices": choices, "usage": answer.usage(completions)}
    return reply(content | answer.figures(completions))


async def _encode(service: Service, fields: CompletionFields) -> list[list[int]]:
    """Return prompts as tokens; with a suffix, those of the text before it."""
    if not fields.suffix:
        return await encode_prompts(service, fields.prompt, "prompt")
    if not isinstance(fields.prompt, str):
        raise Refusal(400, "before a suffix stands one text", param="prompt")
    if fields.echo:
        raise Refusal(400, "echo is of prompts without a suffix", param="echo")
    return [await encode_infill(service, fields.prompt, fields.suffix)]


def _choice(
    index: int, text: str, fields: CompletionFields, completion: Completion, begin: int = 0
) -> dict[str, Any]:
    has_logprobs = fields.logprobs is not None
    return {
        "index": index,
        "text": text,
        "finish_reason": spell_finish(completion),
        "logprobs": legacy_logprobs(completion.logprobs or (), begin) if has_logprobs else None,
    }


async def _stream(
    answer: Answer, head: Mapping[str, Any], fields: CompletionFields, begins: list[str]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of completions."""
    has_usage = fields.stream_options is not None and fields.stream_options.include_usage
    lengths = [len(begin) for begin in begins]

    def chunk(index: int, text: str, facts: Mapping[str, Any] = {}, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        return encode_event({**head, "choices": [choice | more], **facts})

    async with answer:
        for i, begin in enumerate(begins):
            if begin:
                yield chunk(i, begin)
        found: dict[int, Completion] = {}
        async for event in answer.events():
            i = event.text
            if (piece := event.piece) is not None:
                figures = answer.figures_of_tokens(
                    len(piece.tokens), drafted=piece.drafted, timed=fields.timings_per_token
                )
                logprobs = _logprobs(piece, fields, lengths[i])
                yield chunk(i, str(piece), figures, logprobs=logprobs)
                lengths[i] += len(piece)
            elif event.completion is not None:
                found[i] = event.completion
                facts = {} if has_usage else answer.figures_at_end(found)
                yield chunk(i, "", facts, finish_reason=spell_finish(event.completion))
        if has_usage:
            completions = [found[i] for i in sorted(found)]
            usage = {"usage": answer.usage(completions)} | answer.figures(completions)
            yield encode_event({**head, "choices": []} | usage)
        yield DONE


def _logprobs(piece: Piece, fields: CompletionFields, begin: int) -> dict[str, Any] | None:
    return None if fields.logprobs is None else legacy_logprobs(piece.logprobs, begin)
