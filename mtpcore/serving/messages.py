"""Messages: Anthropic's ``/v1/messages``, and the count of their tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.gguf.answer_parser import AnswerPart, ToolCall
from mtpcore.lm import Completion, thinking_options
from mtpcore.lm.answer_parsing import AnswerParsing
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import note_once, read_body, read_fields
from mtpcore.serving.draws import draw_name
from mtpcore.serving.fields import HARMLESS, SamplingFields, check_needless, options_of
from mtpcore.serving.forms import form_of_answer
from mtpcore.serving.parsing import find_parsing, read_arguments
from mtpcore.serving.prompts import TemplateInput, encode_conversation
from mtpcore.serving.refusals import Refusal, as_anthropic
from mtpcore.serving.replies import reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["answer_messages", "count_tokens"]

_HARMLESS = HARMLESS | {
    *("cache_control", "diagnostics", "inference_geo", "speed", "context_management"),
    *("user_profile_id", "workspace_id"),
}
"""Where and how fast a service computes; what it keeps, and drops of conversations by itself."""
_BILLING = "x-anthropic-billing-header:"
"""How the instructions begin that are for a service and no model: they differ in each request, so
that nothing after them could be shared."""


class Thinking(msgspec.Struct):
    """Whether the model is to think first.

    ``budget_tokens`` is no bound here: ``max_tokens`` bounds all of a text.
    """

    type: str
    budget_tokens: int | None = None


class OutputConfig(msgspec.Struct):
    """How the answer is to be."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """Which tools may be called."""

    type: str = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessageFields(SamplingFields, kw_only=True):
    """The fields of a request that are read; options of sampling are those of all APIs."""

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] = ""
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = msgspec.field(default_factory=ToolChoice)
    thinking: Thinking | None = None
    output_config: OutputConfig = msgspec.field(default_factory=OutputConfig)
    output_format: dict[str, Any] | None = None
    container: str | dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None


async def answer_messages(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    fields = await _read(service, request)
    conversation = _conversation(fields)
    prompt = await encode_conversation(service, conversation)
    most_calls = 1 if fields.tool_choice.disable_parallel_tool_use else None
    parsing = await find_parsing(service, conversation, prompt, most_calls=most_calls)
    fields.stop = fields.stop_sequences
    asked = fields.output_config.format or fields.output_format
    form = await form_of_answer(
        *(service, conversation, prompt, fields, asked, "output_config.format"),
        choice=_choice(fields.tool_choice),
        most_calls=most_calls,
    )
    options = options_of(service.lm, fields) | parsing.options | form
    answer = await service.begin([prompt], options)
    head = {
        "id": draw_name("msg_"),
        "type": "message",
        "role": "assistant",
        "model": fields.model or service.name,
    }
    if fields.stream:
        pieces = _stream(answer, head, len(prompt), parsing)
        return EventStream(
            answer, pieces, lambda one: encode_event(as_anthropic(one), "error"), service.keep_alive
        )
    async with answer:
        (completion,) = await until_gone(request, answer.finish())
    parts = parsing.read(completion.text)
    ending = _ending(completion, any(part.call for part in parts))
    return reply(
        head
        | {"content": [*_blocks_of(parts)], **ending, "usage": _usage(completion)}
        | answer.figures([completion])
    )


async def count_tokens(service: Service, request: Request) -> Response:
    """Say how many tokens a conversation has as the model reads it."""
    fields = await _read(service, request)
    return reply({"input_tokens": len(await encode_conversation(service, _conversation(fields)))})


async def _read(service: Service, request: Request) -> MessageFields:
    given = await read_body(request, service.settings.max_body)
    check_needless(given)
    fields = read_fields(given, MessageFields, _HARMLESS)
    for name, value in (
        ("container", fields.container),
        ("mcp_servers", fields.mcp_servers),
    ):
        if value:
            raise Refusal(400, f"{name} is not supported; leave it out", param=name)
    return fields


def _choice(given: ToolChoice) -> str | dict[str, Any]:
    """Return which tools may be called, as OpenAI's API says it."""
    if given.type == "tool":
        return {"type": "function", "name": given.name}
    return "required" if given.type == "any" else given.type


def _conversation(fields: MessageFields) -> TemplateInput:
    """Return the conversation of a request, as chat templates read it."""
    messages = [*_instructions(fields.system)]
    names: dict[str, str] = {}  # of the tools that were called, by the calls' ids
    for i, message in enumerate(fields.messages):
        role = message.get("role")
        content = _blocks(message.get("content"), f"messages[{i}].content")
        if role == "assistant":
            messages.append(_said(content, f"messages[{i}].content", names))
        elif role == "user":
            messages += _heard(content, f"messages[{i}].content", names)
        else:
            messages.append({"role": role, "content": _texts(content, f"messages[{i}].content")})
    is_on = None
    if fields.thinking is not None:
        is_on = fields.thinking.type != "disabled"
    last = messages[-1] if messages else {}
    return TemplateInput(
        messages=messages,
        tools=[*_tools(fields)],
        template_options=thinking_options(is_on=is_on, effort=fields.output_config.effort),
        continues=last.get("role") == "assistant" and "tool_calls" not in last,
    )


def _instructions(system: str | Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    parts = _texts(_blocks(system, "system"), "system")
    parts = [part for part in parts if not part["text"].startswith(_BILLING)]
    if any(part["text"] for part in parts):
        yield {"role": "system", "content": parts}


def _blocks(content: Any, where: str) -> list[Mapping[str, Any]]:
    """Return content as a list of blocks, which each have a type."""
    if isinstance(content, str):
        return [_text_block(content)]
    if content is None:
        return []
    if not isinstance(content, Sequence) or not all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    ):
        raise Refusal(400, f"{where}: content is a text or a list of blocks", param=where)
    return list(content)


def _texts(blocks: Iterable[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return blocks of texts as parts of a message; what else a block says is dropped.

    That is where caches may begin, and quotations.
    """
    parts = []
    for block in blocks:
        if block["type"] != "text":
            raise Refusal(
                400, f"{where}: blocks of type {block['type']!r} are not supported", param=where
            )
        parts.append(_text_block(_word(block, "text", where)))
    return parts


def _word(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise Refusal(400, f"{where}: {name} of a {block['type']!r} block is a text", param=where)
    return value


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _said(blocks: Sequence[Mapping[str, Any]], where: str, names: dict[str, str]) -> dict[str, Any]:
    """Return what the model said as one message: its thoughts, texts and calls."""
    thoughts, texts, calls = list[str](), list[Mapping[str, Any]](), list[dict[str, Any]]()
    for block in blocks:
        if block["type"] == "thinking":
            thoughts.append(_word(block, "thinking", where))
        elif block["type"] == "tool_use":
            name = names[_word(block, "id", where)] = _word(block, "name", where)
            call = {"name": name, "arguments": block.get("input") or {}}
            calls.append({"id": block["id"], "type": "function", "function": call})
        elif block["type"] != "redacted_thinking":  # encrypted: nobody but its service reads it
            texts.append(block)
    text = "".join(part["text"] for part in _texts(texts, where))
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _heard(
    blocks: Sequence[Mapping[str, Any]], where: str, names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield what the model was told: results of tools are messages of their own, in order.

    Whether a result is an error is for services; the result says it to the model.
    """
    texts: list[Mapping[str, Any]] = []
    for block in blocks:
        if block["type"] != "tool_result":
            texts.append(block)
            continue
        if texts:
            yield {"role": "user", "content": _texts(texts, where)}
            texts = []
        id = _word(block, "tool_use_id", where)
        result = {"role": "tool", "tool_call_id": id, "content": _result(block, where)}
        yield result | ({"name": names[id]} if id in names else {})
    if texts or not blocks:
        yield {"role": "user", "content": _texts(texts, where)}


def _result(block: Mapping[str, Any], where: str) -> str:
    parts = _texts(_blocks(block.get("content"), where), where)
    return "\n".join(part["text"] for part in parts)


def _tools(fields: MessageFields) -> Iterator[dict[str, Any]]:
    """Yield tools as templates read them; a service's own tools are left out."""
    for i, tool in enumerate(fields.tools):
        kind = tool.get("type") or "custom"
        if kind != "custom":
            note_once(f"requests have tools of type {kind!r}, which are not offered to the model")
        elif not isinstance(tool.get("name"), str):
            raise Refusal(400, f"tools[{i}]: a tool has a name", param=f"tools[{i}].name")
        elif fields.tool_choice.type != "none":
            function = {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
            }
            if tool.get("strict") is not None:
                function["strict"] = tool["strict"]
            yield {"type": "function", "function": function}


def _blocks_of(parts: Iterable[AnswerPart]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of an answer."""
    n_calls = 0
    for kind, several in groupby(parts, key=lambda part: part.kind):
        if kind == "call":
            calls = [part.call for part in several if part.call is not None]
            yield from (_call_block(call, n_calls + i) for i, call in enumerate(calls))
            n_calls += len(calls)
            continue
        text = "".join(part.text for part in several)
        yield _text_block(text) if kind == "content" else _empty_block(kind) | {"thinking": text}


def _empty_block(kind: str) -> dict[str, Any]:
    """Return a block to which text is added."""
    if kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return _text_block("")


def _call_block(call: ToolCall, number: int) -> dict[str, Any]:
    """Return a call, of this number in its answer, with a name of its own."""
    id = draw_name("toolu_", number)
    return {"type": "tool_use", "id": id, "name": call.name, "input": read_arguments(call)}


def _ending(completion: Completion, has_calls: bool) -> dict[str, Any]:
    """Return why a text ended."""
    if completion.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop}
    is_cut = spell_finish(completion) == "length"
    reason = "max_tokens" if is_cut else "tool_use" if has_calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(completion: Completion) -> dict[str, Any]:
    stats = completion.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.tokens,
    }


class _StreamedBlocks:
    """The blocks of a stream: one ends before the next begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def take(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        """Yield the events by which a part is said."""
        if part.call is not None:
            block = _call_block(part.call, self._index + 1)
            yield from self._begin("", block | {"input": {}})
            text = msgspec.json.encode(block["input"]).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": text})
            yield self._stop()
            return
        if part.kind != self._open:
            yield from self._begin(part.kind, _empty_block(part.kind))
        if part.kind == "reasoning":
            yield self._delta({"type": "thinking_delta", "thinking": part.text})
        else:
            yield self._delta({"type": "text_delta", "text": part.text})

    def close(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the block that is open."""
        if self._open:
            self._open = ""
            yield self._stop()

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self.close()
        self._index, self._open = self._index + 1, kind
        yield {"name": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"name": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> dict[str, Any]:
        return {"name": "content_block_stop", "index": self._index}


async def _stream(
    answer: Answer, head: Mapping[str, Any], n_prompt: int, parsing: AnswerParsing
) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer.

    How much of the prompt was cached is known when the text has begun, and said at its end.
    """

    def event(name: str, **more: Any) -> bytes:
        return encode_event({"type": name, **more}, name)

    async with answer:
        usage = {
            "input_tokens": n_prompt,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        }
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield event("message_start", message=begun)
        blocks, parser = _StreamedBlocks(), parsing.parser()
        async for one in answer.events():
            parts = parser.feed(str(one.piece)) if one.piece is not None else []
            if one.completion is not None:
                completion, parts = one.completion, parser.finish()
            for part in parts:
                for said in blocks.take(part):
                    yield event(**said)
        for said in blocks.close():
            yield event(**said)
        yield event(
            "message_delta",
            delta=_ending(completion, parser.n_calls > 0),
            usage=_usage(completion),
            **answer.figures([completion]),
        )
        yield event("message_stop")
