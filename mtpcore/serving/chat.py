"""Chat: OpenAI's ``/v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.lm import Completion, Piece
from mtpcore.serving.answers import Answer, Desk
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.conversations import (
    TemplateInput,
    check_tool_choice,
    encode_conversation,
    thinking_options,
)
from mtpcore.serving.fields import HARMLESS, TextsFields, check_needless, options_of
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.refusals import Refusal, as_openai
from mtpcore.serving.replies import DONE, reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["ChatFields", "answer_chat", "conversation_of"]


class ChatFields(TextsFields, kw_only=True):
    """The fields of a request that are read."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


async def answer_chat(desk: Desk, request: Request) -> Response:
    """Answer a conversation."""
    given = await read_body(request, desk.settings.max_body)
    check_needless(given)
    fields = read_fields(given, ChatFields, HARMLESS)
    _check(fields)
    prompt = await encode_conversation(desk, conversation_of(fields))
    options = options_of(desk.lm, fields)
    if fields.max_completion_tokens is not None:
        options["max_tokens"] = fields.max_completion_tokens
    if fields.logprobs:
        options["logprobs"] = fields.top_logprobs
    answer = await desk.begin([prompt], options, fields.n)
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": fields.model or desk.name,
        "system_fingerprint": desk.fingerprint,
    }
    if fields.stream:
        pieces = _stream(answer, head, fields)
        return EventStream(pieces, lambda one: encode_event(as_openai(one)), desk.keep_alive)
    async with answer:
        completions = await until_gone(request, answer.finish())
    return reply(
        head
        | {
            "object": "chat.completion",
            "choices": [_choice(i, one, fields) for i, one in enumerate(completions)],
            "usage": answer.usage(completions),
        }
        | answer.figures(completions)
    )


def _check(fields: ChatFields) -> None:
    """Refuse what cannot be answered as it is asked."""
    if fields.top_logprobs and not fields.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs", param="top_logprobs")
    kind = (fields.response_format or {}).get("type", "text")
    if kind != "text":
        raise Refusal(
            400,
            f"response_format {kind!r} is not supported; leave it out",
            param="response_format",
            code="unsupported_parameter",
        )
    if fields.tools:
        choice = fields.tool_choice
        check_tool_choice(choice if isinstance(choice, str) else "named")


def conversation_of(fields: ChatFields) -> TemplateInput:
    """Return the conversation of a request."""
    last = fields.messages[-1] if fields.messages else {}
    return TemplateInput(
        messages=[_without(message, "prefix") for message in fields.messages],
        tools=(fields.tools or []) if fields.tool_choice != "none" else [],
        template_options=thinking_options(effort=fields.reasoning_effort)
        | (fields.chat_template_kwargs or {}),
        continues=fields.continue_final_message or last.get("prefix") is True,
    )


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}


def _choice(index: int, completion: Completion, fields: ChatFields) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": completion.text},
        "finish_reason": spell_finish(completion),
        "logprobs": chat_logprobs(completion.logprobs or ()) if fields.logprobs else None,
    }


async def _stream(
    answer: Answer, head: Mapping[str, Any], fields: ChatFields
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a chat."""
    head = {**head, "object": "chat.completion.chunk"}
    has_usage = fields.stream_options is not None and fields.stream_options.include_usage

    def chunk(index: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        facts = {name: more.pop(name) for name in ("mtpcore",) if name in more}
        return encode_event({**head, "choices": [choice | more], **facts})

    async with answer:
        begun: set[int] = set()
        found: dict[int, Completion] = {}
        async for event in answer.events():
            if event.text not in begun:
                begun.add(event.text)
                yield chunk(event.text, {"role": "assistant", "content": ""})
            if event.piece is not None:
                yield chunk(
                    event.text, {"content": str(event.piece)}, **_facts(event.piece, fields)
                )
            elif event.completion is not None:
                found[event.text] = event.completion
                reason = spell_finish(event.completion)
                yield chunk(event.text, {}, finish_reason=reason)
        completions = [found[i] for i in sorted(found)]
        last: dict[str, Any] = {**head, "choices": []} | answer.figures(completions)
        if has_usage:
            last["usage"] = answer.usage(completions)
        yield encode_event(last)
        yield DONE


def _facts(piece: Piece, fields: ChatFields) -> dict[str, Any]:
    """Return what goes with a piece: whether it was drafted, and its log-probabilities."""
    facts: dict[str, Any] = {"mtpcore": {"drafted": piece.drafted, "tokens": len(piece.tokens)}}
    if fields.logprobs:
        facts["logprobs"] = chat_logprobs(piece.logprobs)
    return facts
