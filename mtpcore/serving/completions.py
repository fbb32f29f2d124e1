"""Completions: OpenAI's ``/v1/completions``, which continues texts as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.lm import Completion
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.draws import draw_name, request_time
from mtpcore.serving.fields import HARMLESS, TextsFields, check_needless, options_of
from mtpcore.serving.forms import form_of_text
from mtpcore.serving.logprobs import LegacyLogprobs
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
        if fields.echo:
            options["prompt_logprobs"] = fields.logprobs
    texts = [_Continuation(service, fields, prompt) for prompt in prompts for _ in range(fields.n)]
    answer = await service.begin(prompts, options, fields.n)
    head = {
        "id": draw_name("cmpl-"),
        "object": "text_completion",
        "created": request_time(),
        "model": fields.model or service.name,
        "system_fingerprint": service.fingerprint,
    }
    if fields.stream:
        pieces = _stream(answer, head, fields, texts)
        return EventStream(
            answer, pieces, lambda one: encode_event(as_openai(one)), service.keep_alive
        )
    async with answer:
        completions = await until_gone(request, answer.finish())
    choices = [
        text.choice(i, one) for i, (text, one) in enumerate(zip(texts, completions, strict=True))
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


class _Continuation:
    """A text of a request, with what is known of its tokens; ``begin`` is its prompt, if echoed.

    Parameters
    ----------
    service : Service
    fields : CompletionFields
    prompt : sequence of int
    """

    def __init__(self, service: Service, fields: CompletionFields, prompt: Sequence[int]) -> None:
        self._fields, self._prompt = fields, prompt
        self.begin = service.lm.tokenizer.decode(prompt) if fields.echo else ""
        tokenizer = service.lm.tokenizer if service.lm.model.has_tokenizer else None
        self._of_prompt = LegacyLogprobs(tokenizer)
        self._of_text = LegacyLogprobs(tokenizer, len(self.begin))

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return the whole text as a choice of an answer."""
        parts = [
            self.prompt_logprobs(completion.prompt_logprobs or ()),
            self.logprobs(completion.logprobs or ()),
            self.end_logprobs(completion),
        ]
        known = [part for part in parts if part is not None]
        return {
            "index": index,
            "text": self.begin + completion.text,
            "finish_reason": spell_finish(completion),
            "logprobs": {
                name: [value for part in known for value in part[name]] for name in known[0]
            }
            if known
            else None,
        }

    def prompt_logprobs(self, found: Sequence[TokenLogprobs]) -> dict[str, list[Any]] | None:
        """Return those of an echoed prompt, where they are asked for."""
        if self._fields.logprobs is None or not self._fields.echo:
            return None
        return self._of_prompt.spell(found, unknown=self._prompt[:1])

    def logprobs(self, found: Sequence[TokenLogprobs]) -> dict[str, list[Any]] | None:
        """Return those of the next tokens, where they are asked for."""
        return None if self._fields.logprobs is None else self._of_text.spell(found)

    def end_logprobs(self, completion: Completion) -> dict[str, list[Any]] | None:
        """Return those of the token that ended a text after an echoed prompt.

        Who evaluates prompts asks for one token more and leaves the last one out, whichever it is.
        """
        end = completion.end_logprobs
        return None if end is None or not self._fields.echo else self._of_text.spell([end])


async def _stream(
    answer: Answer,
    head: Mapping[str, Any],
    fields: CompletionFields,
    texts: Sequence[_Continuation],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of completions."""
    has_usage = fields.stream_options is not None and fields.stream_options.include_usage
    waits = fields.logprobs is not None  # until the prompt was read
    echoed: set[int] = set()

    def chunk(index: int, text: str, facts: Mapping[str, Any] = {}, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        return encode_event({**head, "choices": [choice | more], **facts})

    def echo(i: int) -> bytes:
        echoed.add(i)
        found = texts[i].prompt_logprobs(answer.prompt_logprobs(i))
        return chunk(i, texts[i].begin, logprobs=found)

    async with answer:
        for i in range(len(texts)):
            if fields.echo and not waits:
                yield echo(i)
        found: dict[int, Completion] = {}
        async for event in answer.events():
            i = event.text
            if fields.echo and i not in echoed:
                yield echo(i)
            if (piece := event.piece) is not None:
                figures = answer.figures_of_tokens(
                    len(piece.tokens), drafted=piece.drafted, timed=fields.timings_per_token
                )
                yield chunk(i, str(piece), figures, logprobs=texts[i].logprobs(piece.logprobs))
            elif event.completion is not None:
                found[i] = event.completion
                facts = {} if has_usage else answer.figures_at_end(found)
                yield chunk(
                    i,
                    "",
                    facts,
                    finish_reason=spell_finish(event.completion),
                    logprobs=texts[i].end_logprobs(event.completion),
                )
        if has_usage:
            completions = [found[i] for i in sorted(found)]
            usage = {"usage": answer.usage(completions)} | answer.figures(completions)
            yield encode_event({**head, "choices": []} | usage)
        yield DONE
