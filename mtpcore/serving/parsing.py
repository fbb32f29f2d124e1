"""What the model wrote, parsed: reasoning, what it says, and calls of tools."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from mtpcore.gguf import Tokenizer
from mtpcore.gguf.answer_format import AnswerFormat
from mtpcore.gguf.answer_parser import AnswerParser, AnswerPart, ToolCall
from mtpcore.serving.answers import Service
from mtpcore.serving.prompts import TemplateInput

__all__ = ["AnswerParsing", "find_parsing", "parsed_message", "read_arguments", "spell_call"]

_TAIL = 64
"""Tokens of the end of a prompt, which may open the reasoning."""


class AnswerParsing:
    """How the answers to one conversation are parsed.

    Parameters
    ----------
    tokenizer : Tokenizer
        The model's.
    form : AnswerFormat
    prompt : str
        The end of the conversation as the model reads it.
    tools : sequence of mappings
        Those that may be called.
    shows_marks : bool
        Whether marks are control tokens, which texts show only if they are asked to.
    most_calls : int, optional
        Calls of one answer that are read; what follows them is left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: AnswerFormat,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        shows_marks: bool = False,
        most_calls: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._form, self._prompt, self._tools = form, prompt, tools
        self._most_calls = most_calls
        self.options: dict[str, Any] = {"special": True} if shows_marks else {}
        """Options that texts need to be parsed."""

    def parser(self) -> AnswerParser:
        """Return what parses one answer."""
        return AnswerParser(self._form, self._prompt, self._tools, self._most_calls)

    def count(self, text: str) -> int:
        """Return how many tokens a part has."""
        return len(self.tokenizer.encode(text, add_special=False)) if text else 0

    def read(self, text: str) -> list[AnswerPart]:
        """Parse a whole answer."""
        parser = self.parser()
        return [*parser.feed(text), *parser.finish()]


async def find_parsing(
    service: Service,
    conversation: TemplateInput,
    prompt: Sequence[int],
    *,
    is_raw: bool = False,
    most_calls: int | None = None,
) -> AnswerParsing:
    """Find how answers to a conversation are to be parsed.

    Parameters
    ----------
    service : Service
    conversation : TemplateInput
    prompt : sequence of int
        Its tokens.
    is_raw : bool
        All of an answer is content.
    most_calls : int, optional
        As ``AnswerParsing`` takes it.
    """
    tokenizer = service.lm.tokenizer
    if is_raw:
        return AnswerParsing(tokenizer, AnswerFormat())
    form = await anyio.to_thread.run_sync(lambda: service.lm.model.answer_format)
    tail = tokenizer.decode(prompt[-_TAIL:], special=True)
    marks = [*(form.reasoning or ()), form.content]
    if form.calls is not None and conversation.tools:
        marks += [form.calls.begin, form.calls.open]
    shows_marks = any(text in mark for text in tokenizer.special_texts for mark in marks)
    return AnswerParsing(tokenizer, form, tail, conversation.tools, shows_marks, most_calls)


def parsed_message(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    """Return an answer as a message of OpenAI's API; reasoning has both names that clients read."""
    said, thought = (
        "".join(part.text for part in parts if part.kind == kind)
        for kind in ("content", "reasoning")
    )
    calls = [spell_call(part.call) for part in parts if part.call is not None]
    message: dict[str, Any] = {"role": "assistant", "content": said if said or not calls else None}
    if thought:
        message |= {"reasoning_content": thought, "reasoning": thought}
    if calls:
        message["tool_calls"] = calls
    return message


def read_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; such as are no JSON object as they are."""
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"arguments": call.arguments}


def spell_call(call: ToolCall) -> dict[str, Any]:
    """Return a call as OpenAI's API has it, with a name of its own."""
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
