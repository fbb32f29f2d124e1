"""Texts over Ollama's API: ``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.lm import Completion
from mtpcore.serving.answers import Answer, Desk
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.fields import (
    HARMLESS,
    SamplingFields,
    Speculative,
    check_needless,
    options_of,
)
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.prompts import (
    TemplateInput,
    encode_conversation,
    encode_texts,
    thinking_options,
)
from mtpcore.serving.refusals import Refusal, as_ollama
from mtpcore.serving.replies import reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_line, until_gone

__all__ = ["answer_ollama_chat", "answer_ollama_generate"]

_HARMLESS = frozenset(
    (
        *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all"),
        *("vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread"),
        *("num_ctx", "num_keep", "repeat_last_n", "penalize_newline"),
        *("mirostat_tau", "mirostat_eta"),
    )
)
"""Options of how a model is loaded, which it is already, and those of others that are refused.

The context is as long as the server's: a prompt that does not fit is refused, and none is cut."""


class Options(SamplingFields, kw_only=True):
    """The options of a text that are read; those of sampling are those of all APIs."""

    num_predict: int | None = None
    draft_num_predict: Annotated[int, Meta(ge=0)] | None = None


class TextFields(msgspec.Struct, kw_only=True):
    """The fields that all requests for a text have; ``keep_alive`` is for servers that unload."""

    model: str | None = None
    stream: bool = True
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    format: str | dict[str, Any] = ""
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0


class OllamaChatFields(TextFields, kw_only=True):
    """The fields of a conversation."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)


class GenerateFields(TextFields, kw_only=True):
    """The fields of a text that is answered, or continued as it is (``raw``)."""

    prompt: str = ""
    system: str = ""
    raw: bool = False


class ToolFunction(msgspec.Struct):
    """What was called."""

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Called(msgspec.Struct):
    """A call of a tool."""

    function: ToolFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct):
    """A message of a conversation."""

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: list[Called] = msgspec.field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: list[Any] = msgspec.field(default_factory=list)


T = TypeVar("T", bound=TextFields)


async def answer_ollama_chat(desk: Desk, request: Request) -> Response:
    """Answer a conversation."""
    fields = await _read(desk, request, OllamaChatFields, ())

    def show(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    if not fields.messages:
        return _say_loaded(desk, fields, show)
    conversation = TemplateInput(
        messages=[_message(one) for one in fields.messages],
        tools=fields.tools,
        template_options=_thinking(fields),
        continues=fields.messages[-1].get("role") == "assistant"
        and not fields.messages[-1].get("tool_calls"),
    )
    prompt = await encode_conversation(desk, conversation)
    return await _answer(desk, request, fields, prompt, show)


async def answer_ollama_generate(desk: Desk, request: Request) -> Response:
    """Answer a text, or continue it as it is."""
    fields = await _read(
        desk,
        request,
        GenerateFields,
        ("suffix", "template", "context", "images", "width", "height", "steps"),
    )

    def show(text: str) -> dict[str, Any]:
        return {"response": text}

    if not fields.prompt:
        return _say_loaded(desk, fields, show)
    has_template = desk.lm.model.chat_template is not None
    if fields.raw or not (has_template or fields.system):
        (prompt,) = await encode_texts(desk, [fields.prompt])
    else:
        messages = [{"role": "system", "content": fields.system}] if fields.system else []
        messages.append({"role": "user", "content": fields.prompt})
        conversation = TemplateInput(messages=messages, template_options=_thinking(fields))
        prompt = await encode_conversation(desk, conversation)
    return await _answer(desk, request, fields, prompt, show)


async def _read(desk: Desk, request: Request, kind: type[T], refused: Sequence[str]) -> T:
    """Return the fields of a request; those ``refused`` may be empty."""
    given = await read_body(request, desk.settings.max_body)
    for name in refused:
        if given.get(name):
            raise Refusal(400, f"{name} is not supported; leave it out", param=name)
    fields = read_fields(given, kind, HARMLESS | frozenset(refused))
    if fields.format:
        raise Refusal(400, "format is not supported; leave it out", param="format")
    return fields


def _thinking(fields: TextFields) -> dict[str, Any]:
    if isinstance(fields.think, str):
        return thinking_options(effort=fields.think)
    return thinking_options(is_on=fields.think)


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates read it."""
    message = read_fields(given, OllamaMessage)
    if message.images:
        raise Refusal(400, "images are not supported; leave them out", param="images")
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        made["reasoning_content"] = message.thinking
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id or f"call_{secrets.token_hex(4)}",
                "type": "function",
                "function": msgspec.to_builtins(call.function),
            }
            for call in message.tool_calls
        ]
    if message.tool_name is not None:
        made["name"] = message.tool_name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    return made


def _options(desk: Desk, fields: TextFields) -> dict[str, Any]:
    """Return the options of ``LM.generate`` that a request means."""
    check_needless(fields.options)
    given = read_fields(fields.options, Options, _HARMLESS)
    window, penalty = fields.options.get("repeat_last_n"), given.repeat_penalty
    if window == 0:
        given.repeat_penalty = None
    elif penalty not in (None, 1) and window not in (None, -1):
        raise Refusal(
            400,
            "repeat_last_n is not supported: repeat_penalty is for all of prompt and text; leave "
            "it out, or give -1",
            param="options.repeat_last_n",
        )
    given.max_tokens = given.num_predict
    if given.draft_num_predict is not None:
        given.speculative = Speculative(draft=given.draft_num_predict)
    options = options_of(desk.lm, given)
    if fields.logprobs:
        options["logprobs"] = fields.top_logprobs
    return options


def _head(desk: Desk, fields: TextFields) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": fields.model or desk.name, "created_at": now}


def _say_loaded(desk: Desk, fields: TextFields, show: Callable[[str], dict[str, Any]]) -> Response:
    """Answer a request without a text, by which clients have a model loaded."""
    return reply(_head(desk, fields) | show("") | {"done": True, "done_reason": "load"})


async def _answer(
    desk: Desk,
    request: Request,
    fields: TextFields,
    prompt: Sequence[int],
    show: Callable[[str], dict[str, Any]],
) -> Response:
    """Write a text; ``show`` returns a part of it as the route has it."""
    answer = await desk.begin([prompt], _options(desk, fields))
    if fields.stream:
        pieces = _stream(answer, desk, fields, show)
        return EventStream(
            pieces,
            lambda one: encode_line(as_ollama(one)),
            desk.keep_alive,
            "application/x-ndjson",
        )
    async with answer:
        (completion,) = await until_gone(request, answer.finish())
    return reply(
        _head(desk, fields)
        | show(completion.text)
        | _logprobs(desk, completion.logprobs or (), fields)
        | _ending(answer, completion)
    )


async def _stream(
    answer: Answer, desk: Desk, fields: TextFields, show: Callable[[str], dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer."""
    async with answer:
        async for one in answer.events():
            line = _head(desk, fields)
            if one.piece is not None:
                line |= show(str(one.piece)) | _logprobs(desk, one.piece.logprobs, fields)
                line |= {"done": False}
            elif one.completion is not None:
                line |= show("") | _ending(answer, one.completion)
            yield encode_line(line)


def _logprobs(desk: Desk, tokens: Sequence[TokenLogprobs], fields: TextFields) -> dict[str, Any]:
    if not fields.logprobs:
        return {}
    return {"logprobs": chat_logprobs(tokens, desk.lm.tokenizer)["content"]}


def _ending(answer: Answer, completion: Completion) -> dict[str, Any]:
    """Return why a text ended and what it took; times are nanoseconds."""
    figures, stats = answer.figures([completion]), completion.stats
    read, wrote = (int(1e6 * figures["timings"][name]) for name in ("prompt_ms", "predicted_ms"))
    return {
        "done": True,
        "done_reason": spell_finish(completion),
        "total_duration": read + wrote,
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": read,
        "eval_count": stats.tokens,
        "eval_duration": wrote,
    } | figures
