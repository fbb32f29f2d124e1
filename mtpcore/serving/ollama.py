"""Texts over Ollama's API: ``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf.answer_parser import AnswerPart
from mtpcore.lm import Completion, thinking_options
from mtpcore.lm.answer_parsing import AnswerParsing
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.fields import (
    HARMLESS,
    SamplingFields,
    Speculative,
    check_needless,
    options_of,
)
from mtpcore.serving.forms import form_of_answer, form_of_text
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.parsing import find_parsing, read_arguments
from mtpcore.serving.prompts import (
    TemplateInput,
    encode_conversation,
    encode_infill,
    encode_texts,
)
from mtpcore.serving.refusals import Refusal, as_ollama
from mtpcore.serving.replies import reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_line, until_gone

__all__ = ["answer_ollama_chat", "answer_ollama_generate"]

_HARMLESS = frozenset(
    (
        *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all"),
        *("vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread"),
        *("num_ctx", "num_keep", "penalize_newline"),
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
    suffix: str = ""
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


Show = Callable[[Sequence[AnswerPart]], dict[str, Any]]
T = TypeVar("T", bound=TextFields)


async def answer_ollama_chat(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    fields = await _read(service, request, OllamaChatFields, ())

    def show(parts: Sequence[AnswerPart]) -> dict[str, Any]:
        calls = [
            {"function": {"name": part.call.name, "arguments": read_arguments(part.call)}}
            for part in parts
            if part.call is not None
        ]
        message = {"role": "assistant", "content": _join(parts, "content")}
        message |= _thoughts(parts) | ({"tool_calls": calls} if calls else {})
        return {"message": message}

    if not fields.messages:
        return _say_loaded(service, fields, show)
    conversation = TemplateInput(
        messages=[_message(i, one) for i, one in enumerate(fields.messages)],
        tools=fields.tools,
        template_options=_thinking(fields),
        continues=fields.messages[-1].get("role") == "assistant"
        and not fields.messages[-1].get("tool_calls"),
    )
    prompt = await encode_conversation(service, conversation)
    parsing = await find_parsing(service, conversation, prompt)
    given = _given_options(fields)
    options = _options(service, fields, given) | parsing.options
    options |= await form_of_answer(service, conversation, prompt, given, _form(fields), "format")
    return await _answer(service, request, fields, prompt, options, parsing, show)


async def answer_ollama_generate(service: Service, request: Request) -> Response:
    """Answer a text, or continue it as it is."""
    fields = await _read(
        service,
        request,
        GenerateFields,
        ("template", "context", "images", "width", "height", "steps"),
    )

    def show(parts: Sequence[AnswerPart]) -> dict[str, Any]:
        return {"response": _join(parts, "content")} | _thoughts(parts)

    if not fields.prompt:
        return _say_loaded(service, fields, show)
    has_template = service.lm.model.chat_template is not None
    if fields.suffix and fields.system:
        raise Refusal(400, "between two texts there is no system prompt", param="system")
    is_raw = fields.raw or bool(fields.suffix) or not (has_template or fields.system)
    messages = [{"role": "system", "content": fields.system}] if fields.system else []
    messages.append({"role": "user", "content": fields.prompt})
    conversation = TemplateInput(messages=messages, template_options=_thinking(fields))
    if fields.suffix:
        prompt = await encode_infill(service, fields.prompt, fields.suffix)
    elif is_raw:
        (prompt,) = await encode_texts(service, [fields.prompt])
    else:
        prompt = await encode_conversation(service, conversation)
    parsing = await find_parsing(service, conversation, prompt, is_raw=is_raw)
    given = _given_options(fields)
    options = _options(service, fields, given) | parsing.options
    asked = given, _form(fields), "format"
    if is_raw:
        options |= await form_of_text(service, *asked)
    else:
        options |= await form_of_answer(service, conversation, prompt, *asked)
    return await _answer(service, request, fields, prompt, options, parsing, show)


def _join(parts: Sequence[AnswerPart], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def _thoughts(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    thoughts = _join(parts, "reasoning")
    return {"thinking": thoughts} if thoughts else {}


async def _read(service: Service, request: Request, kind: type[T], refused: Sequence[str]) -> T:
    """Return the fields of a request; those ``refused`` may be empty."""
    given = await read_body(request, service.settings.max_body)
    for name in refused:
        if given.get(name):
            raise Refusal(400, f"{name} is not supported; leave it out", param=name)
    fields = read_fields(given, kind, HARMLESS | frozenset(refused))
    return fields


def _form(fields: TextFields) -> dict[str, Any] | None:
    """Return the form of a text as OpenAI's API asks for it."""
    if not fields.format:
        return None
    if isinstance(fields.format, dict):
        return {"type": "json_schema", "json_schema": {"schema": fields.format}}
    if fields.format != "json":
        raise Refusal(400, "format is 'json' or a JSON schema", param="format", got=fields.format)
    return {"type": "json_object"}


def _thinking(fields: TextFields) -> dict[str, Any]:
    if isinstance(fields.think, str):
        return thinking_options(effort=fields.think)
    return thinking_options(is_on=fields.think)


def _message(index: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a conversation as chat templates read it.

    Calls without an id get one that follows from their place: it may stand in the prompt, and the
    same conversation is the same prompt.
    """
    message = read_fields(given, OllamaMessage)
    if message.images:
        raise Refusal(400, "images are not supported; leave them out", param="images")
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        made["reasoning_content"] = message.thinking
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id or f"call_{index:03}{i:02}",
                "type": "function",
                "function": msgspec.to_builtins(call.function),
            }
            for i, call in enumerate(message.tool_calls)
        ]
    if message.tool_name is not None:
        made["name"] = message.tool_name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    return made


def _given_options(fields: TextFields) -> Options:
    """Return the options of a request."""
    check_needless(fields.options)
    return read_fields(fields.options, Options, _HARMLESS)


def _options(service: Service, fields: TextFields, given: Options) -> dict[str, Any]:
    """Return the options of ``LM.generate`` that a request means."""
    given.max_tokens = given.num_predict
    if given.draft_num_predict is not None:
        given.speculative = Speculative(draft=given.draft_num_predict)
    options = options_of(service.lm, given)
    if fields.logprobs:
        options["logprobs"] = fields.top_logprobs
    return options


def _head(service: Service, fields: TextFields) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": fields.model or service.name, "created_at": now}


def _say_loaded(service: Service, fields: TextFields, show: Show) -> Response:
    """Answer a request without a text, by which clients have a model loaded."""
    return reply(_head(service, fields) | show(()) | {"done": True, "done_reason": "load"})


async def _answer(
    service: Service,
    request: Request,
    fields: TextFields,
    prompt: Sequence[int],
    options: Mapping[str, Any],
    parsing: AnswerParsing,
    show: Show,
) -> Response:
    """Write a text; ``show`` returns parts of it as the route has them."""
    answer = await service.begin([prompt], options)
    if fields.stream:
        pieces = _stream(answer, service, fields, parsing, show)
        return EventStream(
            answer,
            pieces,
            lambda one: encode_line(as_ollama(one)),
            service.keep_alive,
            "application/x-ndjson",
        )
    async with answer:
        (completion,) = await until_gone(request, answer.finish())
    return reply(
        _head(service, fields)
        | show(parsing.read(completion.text))
        | _logprobs(service, completion.logprobs or (), fields)
        | _ending(answer, completion)
    )


async def _stream(
    answer: Answer, service: Service, fields: TextFields, parsing: AnswerParsing, show: Show
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer."""
    parser = parsing.parser()

    def line(parts: Sequence[AnswerPart], more: Mapping[str, Any]) -> bytes:
        return encode_line(_head(service, fields) | show(parts) | {"done": False, **more})

    async with answer:
        async for one in answer.events():
            if one.piece is not None:
                parts = parser.feed(str(one.piece))
                logprobs = _logprobs(service, one.piece.logprobs, fields)
                if parts or logprobs:  # else the parser holds it back
                    yield line(parts, logprobs)
            elif one.completion is not None:
                if parts := parser.finish():
                    yield line(parts, {})
                yield line((), _ending(answer, one.completion))


def _logprobs(
    service: Service, tokens: Sequence[TokenLogprobs], fields: TextFields
) -> dict[str, Any]:
    if not fields.logprobs:
        return {}
    return {"logprobs": chat_logprobs(tokens, service.lm.tokenizer)["content"]}


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
