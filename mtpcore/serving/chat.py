"""Chat: OpenAI's ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf.answer_parser import AnswerPart
from mtpcore.lm import Completion, Piece, thinking_options
from mtpcore.lm.answer_parsing import AnswerParsing
from mtpcore.serving.answers import Answer, Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.draws import draw_name, request_time
from mtpcore.serving.fields import HARMLESS, TextsFields, check_needless, options_of
from mtpcore.serving.forms import form_of_answer
from mtpcore.serving.logprobs import chat_logprobs
from mtpcore.serving.parsing import find_parsing, parsed_message, spell_call
from mtpcore.serving.prompts import TemplateInput, encode_conversation
from mtpcore.serving.refusals import Refusal, as_openai
from mtpcore.serving.replies import DONE, reply, spell_finish
from mtpcore.serving.streams import EventStream, encode_event, until_gone

__all__ = ["ChatFields", "answer_chat", "conversation_of", "count_chat_tokens"]


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
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


async def answer_chat(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    fields = await _read(service, request)
    conversation = conversation_of(fields)
    prompt = await encode_conversation(service, conversation)
    is_raw = fields.reasoning_format == "none" and not conversation.tools
    most_calls = 1 if fields.parallel_tool_calls is False else None
    parsing = await find_parsing(
        service, conversation, prompt, is_raw=is_raw, most_calls=most_calls
    )
    options = options_of(service.lm, fields) | parsing.options
    options |= await form_of_answer(
        *(service, conversation, prompt, fields, fields.response_format, "response_format"),
        choice=fields.tool_choice,
        most_calls=most_calls,
    )
    if fields.max_completion_tokens is not None:
        options["max_tokens"] = fields.max_completion_tokens
    if fields.logprobs:
        options["logprobs"] = fields.top_logprobs
    answer = await service.begin([prompt], options, fields.n)
    head = {
        "id": draw_name("chatcmpl-"),
        "created": request_time(),
        "model": fields.model or service.name,
        "system_fingerprint": service.fingerprint,
    }
    if fields.stream:
        pieces = _stream(answer, head, fields, parsing)
        return EventStream(
            answer, pieces, lambda one: encode_event(as_openai(one)), service.keep_alive
        )
    async with answer:
        completions = await until_gone(request, answer.finish())
    choices = [_choice(i, one, fields, parsing) for i, one in enumerate(completions)]
    n_reasoning = sum(parsing.count(one["message"].get("reasoning", "")) for one in choices)
    return reply(
        head
        | {
            "object": "chat.completion",
            "choices": choices,
            "usage": answer.usage(completions, n_reasoning),
        }
        | answer.figures(completions)
    )


async def count_chat_tokens(service: Service, request: Request) -> Response:
    """Say how many tokens a conversation has as the model reads it."""
    conversation = conversation_of(await _read(service, request))
    n_tokens = len(await encode_conversation(service, conversation))
    return reply({"object": "response.input_tokens", "input_tokens": n_tokens})


async def _read(service: Service, request: Request) -> ChatFields:
    given = await read_body(request, service.settings.max_body)
    check_needless(given)
    fields = read_fields(given, ChatFields, HARMLESS)
    _check(fields)
    return fields


def _check(fields: ChatFields) -> None:
    """Refuse what cannot be answered as it is asked."""
    if fields.top_logprobs and not fields.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs", param="top_logprobs")
    if fields.add_generation_prompt is False and not fields.continue_final_message:
        raise Refusal(
            400,
            "an answer needs its beginning; leave add_generation_prompt out",
            param="add_generation_prompt",
        )
    if fields.add_generation_prompt and fields.continue_final_message:
        raise Refusal(
            400,
            "an answer begins, or goes on where the last message ends: not both",
            param="add_generation_prompt",
        )


def conversation_of(fields: ChatFields) -> TemplateInput:
    """Return the conversation of a request; raise Refusal where a message is none."""
    for i, message in enumerate(fields.messages):
        if not isinstance(message.get("role"), str):
            raise Refusal(400, "a message has a role", param=f"messages[{i}].role")
        if not isinstance(message.get("content"), str | list | None):
            what = "the content of a message is a text or parts"
            raise Refusal(400, what, param=f"messages[{i}].content")
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


def _choice(
    index: int, completion: Completion, fields: ChatFields, parsing: AnswerParsing
) -> dict[str, Any]:
    message = parsed_message(parsing.read(completion.text), index)
    return {
        "index": index,
        "message": message,
        "finish_reason": _finish(completion, "tool_calls" in message),
        "logprobs": chat_logprobs(completion.logprobs or (), parsing.tokenizer)
        if fields.logprobs
        else None,
    }


def _finish(completion: Completion, has_calls: bool) -> str:
    """Return why an answer ended: a call that is whole waits for its result."""
    reason = spell_finish(completion)
    return "tool_calls" if has_calls and reason == "stop" else reason


class _Choice:
    """One answer of a stream: how far it was parsed, and what was not sent yet."""

    def __init__(self, index: int, parsing: AnswerParsing) -> None:
        self._index = index
        self._parser, self.tokenizer = parsing.parser(), parsing.tokenizer
        self._n_calls = 0
        self.reasoning = ""
        self.n_unsent, self.drafted = 0, False  # tokens whose text is held back; all are drafts
        self.logprobs: list[TokenLogprobs] = []  # of these

    def take(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield what a piece adds to the answer."""
        self.drafted = piece.drafted and (self.drafted or not self.n_unsent)
        self.n_unsent += len(piece.tokens)
        self.logprobs += piece.logprobs
        yield from self._spell(self._parser.feed(str(piece)))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield what was held back."""
        yield from self._spell(self._parser.finish())

    @property
    def has_calls(self) -> bool:
        """Whether tools were called."""
        return self._n_calls > 0

    def _spell(self, parts: Iterable[AnswerPart]) -> Iterator[dict[str, Any]]:
        for part in parts:
            if part.kind == "content":
                yield {"content": part.text}
            elif part.kind == "reasoning":
                self.reasoning += part.text
                yield {"reasoning_content": part.text, "reasoning": part.text}
            elif part.call is not None:
                call = spell_call(part.call, self._index, self._n_calls)
                yield {"tool_calls": [{"index": self._n_calls} | call]}
                self._n_calls += 1


async def _stream(
    answer: Answer, head: Mapping[str, Any], fields: ChatFields, parsing: AnswerParsing
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a chat."""
    head = {**head, "object": "chat.completion.chunk"}
    has_usage = fields.stream_options is not None and fields.stream_options.include_usage

    def chunk(
        index: int, delta: Mapping[str, Any], facts: Mapping[str, Any] = {}, **more: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        return encode_event({**head, "choices": [choice | more], **facts})

    def figures(one: _Choice) -> dict[str, Any]:
        n_tokens, one.n_unsent = one.n_unsent, 0
        return answer.figures_of_tokens(
            n_tokens, drafted=one.drafted, timed=fields.timings_per_token
        )

    async with answer:
        choices: dict[int, _Choice] = {}
        found: dict[int, Completion] = {}
        async for event in answer.events():
            i = event.text
            if i not in choices:
                choices[i] = _Choice(i, parsing)
                yield chunk(i, {"role": "assistant", "content": ""})
            one = choices[i]
            if event.piece is not None:
                for delta in one.take(event.piece):
                    yield chunk(i, delta, figures(one), **_logprobs(one, fields))
            elif event.completion is not None:
                found[i] = event.completion
                for delta in one.finish():
                    yield chunk(i, delta, figures(one), **_logprobs(one, fields))
                facts = figures(one) if one.n_unsent else {}
                facts |= {} if has_usage else answer.figures_at_end(found)
                ended: dict[str, Any] = _logprobs(one, fields) if one.logprobs else {}
                ended["finish_reason"] = _finish(event.completion, one.has_calls)
                yield chunk(i, {}, facts, **ended)
        if has_usage:
            completions = [found[i] for i in sorted(found)]
            n_reasoning = sum(parsing.count(one.reasoning) for one in choices.values())
            usage = {"usage": answer.usage(completions, n_reasoning)}
            usage |= answer.figures(completions)
            yield encode_event({**head, "choices": []} | usage)
        yield DONE


def _logprobs(one: _Choice, fields: ChatFields) -> dict[str, Any]:
    """Return the log-probabilities that were not sent yet."""
    if not fields.logprobs:
        return {}
    tokens, one.logprobs = one.logprobs, []
    return {"logprobs": chat_logprobs(tokens, one.tokenizer)}
