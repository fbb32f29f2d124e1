"""Responses: OpenAI's ``/v1/responses``, which answers items by items; nothing of them is kept."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf.answer_parser import AnswerPart, ToolCall
from mtpcore.lm import Completion, thinking_options
from mtpcore.lm.answer_parsing import AnswerParsing
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import note_once, read_body, read_fields
from mtpcore.serving.draws import draw_name, request_time
from mtpcore.serving.fields import HARMLESS, SamplingFields, check_needless, options_of
from mtpcore.serving.forms import form_of_answer
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.parsing import find_parsing
from mtpcore.serving.prompts import TemplateInput, encode_conversation
from mtpcore.serving.refusals import Refusal, as_openai
from mtpcore.serving.replies import reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["answer_responses", "count_response_tokens"]

_LOGPROBS = "message.output_text.logprobs"
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of content that are texts, and where they have them."""
_THOUGHTS = {"reasoning_text": "text", "summary_text": "text"}
_HARMLESS = HARMLESS | {"truncation", "max_tool_calls", "stream_options", "client_metadata"}
"""Fields that change no text here: a prompt that does not fit is refused, whatever ``truncation``
says."""
_REFUSED = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that need something which is kept between requests."""


class Reasoning(msgspec.Struct):
    """How much the model is to think, and what is shown of it."""

    effort: str | None = None
    summary: str | None = None


class TextConfig(msgspec.Struct):
    """What the text is to be."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseFields(SamplingFields, kw_only=True):
    """The fields of a request that are read; options of sampling are those of all APIs."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning = msgspec.field(default_factory=Reasoning)
    text: TextConfig = msgspec.field(default_factory=TextConfig)
    include: list[str] = msgspec.field(default_factory=list)
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


async def answer_responses(service: Service, request: Request) -> Response:
    """Answer items."""
    fields, conversation = await _read(service, request)
    prompt = await encode_conversation(service, conversation)
    fields.max_tokens = fields.max_output_tokens
    most_calls = None if fields.parallel_tool_calls else 1
    parsing = await find_parsing(service, conversation, prompt, most_calls=most_calls)
    options = options_of(service.lm, fields) | parsing.options
    options |= await form_of_answer(
        *(service, conversation, prompt, fields, fields.text.format, "text.format"),
        choice=fields.tool_choice,
        most_calls=most_calls,
    )
    if _LOGPROBS in fields.include:
        options["logprobs"] = fields.top_logprobs
    answer = await service.begin([prompt], options)
    head = _head(service, fields)
    if fields.stream:
        events = _Events()
        pieces = _stream(answer, head, parsing, events)
        return EventStream(answer, pieces, events.fail, service.keep_alive)
    async with answer:
        (completion,) = await until_gone(request, answer.finish())
    items, logprobs = _Items(_Events()), _logprobs(completion.logprobs or (), parsing)
    for part in parsing.read(completion.text):
        for _ in items.take(part, logprobs):  # events, of which the items remain
            pass
        if part.kind == "content":
            logprobs = []
    for _ in items.finish(completion):
        pass
    return reply(head | _ending(answer, completion, items.output, parsing))


async def count_response_tokens(service: Service, request: Request) -> Response:
    """Say how many tokens items have as the model reads them."""
    _, conversation = await _read(service, request)
    n_tokens = len(await encode_conversation(service, conversation))
    return reply({"object": "response.input_tokens", "input_tokens": n_tokens})


async def _read(service: Service, request: Request) -> tuple[ResponseFields, TemplateInput]:
    """Return the fields of a request, and the conversation that they mean."""
    given = await read_body(request, service.settings.max_body)
    for name in _REFUSED:
        if given.get(name):
            raise Refusal(
                400,
                f"{name} is not supported: no response is kept; leave it out, and send the items",
                param=name,
                code="unsupported_parameter",
            )
    check_needless(given)
    fields = read_fields(given, ResponseFields, _HARMLESS)
    tools = [*_tools(fields.tools)]
    conversation = TemplateInput(
        messages=[*_messages(fields)],
        tools=tools if fields.tool_choice != "none" else [],
        template_options=thinking_options(effort=fields.reasoning.effort),
    )
    return fields, conversation


def _head(service: Service, fields: ResponseFields) -> dict[str, Any]:
    """Return a response that has not begun."""
    return {
        "id": draw_name("resp_"),
        "object": "response",
        "created_at": request_time(),
        "status": "in_progress",
        "model": fields.model or service.name,
        "output": [],
        "instructions": fields.instructions,
        "tools": fields.tools,
        "tool_choice": fields.tool_choice,
        "parallel_tool_calls": fields.parallel_tool_calls,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "max_output_tokens": fields.max_output_tokens,
        "reasoning": {"effort": fields.reasoning.effort, "summary": None},
        "text": {"format": fields.text.format or {"type": "text"}},
        "metadata": fields.metadata,
        "store": False,
        "background": False,
        "previous_response_id": None,
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield functions as templates read them; a service's own tools are left out."""
    for i, tool in enumerate(tools):
        if (kind := tool.get("type")) != "function":
            note_once(f"requests have tools of type {kind!r}, which are not offered to the model")
        elif not isinstance(tool.get("name"), str):
            raise Refusal(400, f"tools[{i}]: a function has a name", param=f"tools[{i}].name")
        else:
            names = ("name", "description", "parameters", "strict")
            function = {name: tool[name] for name in names if tool.get(name) is not None}
            yield {"type": "function", "function": function}


def _messages(fields: ResponseFields) -> Iterator[dict[str, Any]]:
    """Yield the messages that items are; thoughts, texts and calls in a row are of one answer."""
    if fields.instructions:
        yield {"role": "system", "content": fields.instructions}
    if isinstance(fields.input, str):
        yield {"role": "user", "content": fields.input}
        return
    answer: dict[str, Any] = {}  # what was said before the next item of another role
    for i, item in enumerate(fields.input):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if kind == "function_call_output" or (
            kind == "message" and (item.get("role") != "assistant" or "tool_calls" in answer)
        ):
            yield from _finished(answer)
            answer = {}
        if kind == "message" and item.get("role") == "assistant":
            answer["content"] = answer.get("content", "") + _join(item.get("content"), where)
        elif kind == "message":
            yield {"role": item.get("role"), "content": _join(item.get("content"), where)}
        elif kind == "reasoning":
            shown = item.get("content") or item.get("summary") or []
            thoughts = _join(shown, where, _THOUGHTS)
            answer["reasoning_content"] = answer.get("reasoning_content", "") + thoughts
        elif kind == "function_call":
            function = {name: _word(item, name, where) for name in ("name", "arguments")}
            call = {"id": _word(item, "call_id", where), "type": "function", "function": function}
            answer.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            yield {
                "role": "tool",
                "tool_call_id": _word(item, "call_id", where),
                "content": _join(item.get("output"), where),
            }
        else:
            raise Refusal(400, f"{where}: items of type {kind!r} are not supported", param=where)
    yield from _finished(answer)


def _finished(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer:
        yield {"role": "assistant", "content": "", **answer}


def _word(item: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(value := item.get(name), str):
        raise Refusal(400, f"{where}: {name} is a text", param=f"{where}.{name}")
    return value


def _join(content: Any, where: str, kinds: Mapping[str, str] = _TEXTS) -> str:
    """Return content as one text: it is one, or parts of the ``kinds`` given."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise Refusal(400, f"{where}: content is a text or a list of parts", param=where)
    texts = []
    for part in content:
        kind = str(part.get("type") if isinstance(part, Mapping) else part)
        if not isinstance(part, Mapping) or kind not in kinds:
            raise Refusal(400, f"{where}: parts of type {kind!r} are not supported", param=where)
        texts.append(_word(part, kinds[kind], where))
    return "\n".join(texts)


class _Events:
    """The events of a stream, which are numbered from 0."""

    def __init__(self) -> None:
        self._n = 0

    def __call__(self, name: str, **more: Any) -> bytes:
        """Return the next event."""
        event = {"type": name, "sequence_number": self._n, **more}
        self._n += 1
        return encode_event(event, name)

    def fail(self, refusal: Refusal) -> bytes:
        """Return the event of an error; ``error`` is what clients look for in every stream."""
        error = as_openai(refusal)["error"]
        facts = {name: error[name] for name in ("code", "message", "param")}
        return self("error", **facts, error=error)


class _Items:
    """The items of an answer: one ends before the next begins.

    Parameters
    ----------
    event : _Events
        Spells the events by which they are said.

    Attributes
    ----------
    output : list of mappings
        The items that have ended.
    """

    def __init__(self, event: _Events) -> None:
        self.output: list[dict[str, Any]] = []
        self._event = event
        self._open: dict[str, Any] | None = None
        self._kind = ""

    def take(self, part: AnswerPart, logprobs: list[dict[str, Any]]) -> Iterator[bytes]:
        """Say a part; ``logprobs`` are those of its tokens, if it is content."""
        if part.call is not None:
            yield from self._call(part.call)
            return
        if self._open is None or self._kind != part.kind:
            yield from self._close("completed")
            yield from self._begin(part.kind)
        assert self._open is not None
        (shown,) = self._open["content"]
        shown["text"] += part.text
        more: dict[str, Any] = {}
        if part.kind == "content":
            shown["logprobs"] += logprobs
            more["logprobs"] = logprobs
        yield self._say(f"{shown['type']}.delta", **self._place(), delta=part.text, **more)

    def finish(self, completion: Completion) -> Iterator[bytes]:
        """End the last item; an answer of nothing is an empty text."""
        if self._open is None and not self.output:
            yield from self._begin("content")
        yield from self._close(_status(completion))

    def _begin(self, kind: str) -> Iterator[bytes]:
        self._kind = kind
        if kind == "reasoning":
            self._open = {"id": self._name("rs_"), "type": "reasoning", "summary": []}
            shown: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            self._open = {"id": self._name("msg_"), "type": "message", "role": "assistant"}
            shown = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._added(self._open | {"status": "in_progress", "content": []})
        self._open["content"] = [shown]
        yield self._say("content_part.added", **self._place(), part=shown)

    def _close(self, status: str) -> Iterator[bytes]:
        if self._open is None:
            return
        (shown,) = self._open["content"]
        place, more = self._place(), {n: shown[n] for n in ("logprobs",) if n in shown}
        yield self._say(f"{shown['type']}.done", **place, text=shown["text"], **more)
        yield self._say("content_part.done", **place, part=shown)
        yield self._done(self._open | {"status": status})
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield from self._close("completed")
        item = {"id": self._name("fc_"), "type": "function_call", "call_id": self._name("call_")}
        item["name"] = call.name
        place = {"output_index": len(self.output), "item_id": item["id"]}
        yield self._added(item | {"arguments": "", "status": "in_progress"})
        arguments = call.arguments
        yield self._say("function_call_arguments.delta", **place, delta=arguments)
        yield self._say("function_call_arguments.done", **place, arguments=arguments)
        yield self._done(item | {"arguments": arguments, "status": "completed"})

    def _say(self, name: str, **more: Any) -> bytes:
        return self._event(f"response.{name}", **more)

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._say("output_item.added", output_index=len(self.output), item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        said = self._say("output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        return said

    def _name(self, prefix: str) -> str:
        return draw_name(prefix, len(self.output))

    def _place(self) -> dict[str, Any]:
        """Return where the text is that is open."""
        assert self._open is not None
        return {
            "output_index": len(self.output),
            "item_id": self._open["id"],
            "content_index": 0,
        }


async def _stream(
    answer: Answer, head: Mapping[str, Any], parsing: AnswerParsing, event: _Events
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response."""
    items, parser = _Items(event), parsing.parser()
    held: list[dict[str, Any]] = []  # log-probabilities of tokens whose text is held back
    async with answer:
        yield event("response.created", response=head)
        yield event("response.in_progress", response=head)
        async for one in answer.events():
            parts: Sequence[AnswerPart] = ()
            if one.piece is not None:
                parts = parser.feed(str(one.piece))
                held += _logprobs(one.piece.logprobs, parsing)
            elif one.completion is not None:
                completion = one.completion
                parts = parser.finish()
                if held and not parts:
                    parts = [AnswerPart("content")]
            for part in parts:
                for said in items.take(part, held):
                    yield said
                held = []
        for said in items.finish(completion):
            yield said
        last = {**head, **_ending(answer, completion, items.output, parsing)}
        yield event(f"response.{last['status']}", response=last)


def _logprobs(tokens: Sequence[TokenLogprobs], parsing: AnswerParsing) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat_logprobs(tokens, parsing.tokenizer)["content"]
    return found


def _status(completion: Completion) -> str:
    return "incomplete" if spell_finish(completion) == "length" else "completed"


def _ending(
    answer: Answer, completion: Completion, output: list[dict[str, Any]], parsing: AnswerParsing
) -> dict[str, Any]:
    """Return what a response has when it ends."""
    thoughts = (item["content"][0]["text"] for item in output if item["type"] == "reasoning")
    usage = answer.usage([completion], sum(map(parsing.count, thoughts)))
    is_cut = _status(completion) == "incomplete"
    return {
        "status": _status(completion),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "completed_at": None if is_cut else int(time.time()),
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        },
    } | answer.figures([completion])
