"""What the model wrote, parted: reasoning, what it says, and calls of tools."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from mtpcore.gguf import Tokenizer
from mtpcore.gguf.answer_format import AnswerFormat
from mtpcore.gguf.answer_reader import AnswerPart, AnswerReader, ToolCall
from mtpcore.serving.answers import Desk
from mtpcore.serving.prompts import TemplateInput

__all__ = ["Parting", "find_parting", "parted_message", "read_arguments", "spell_call"]

_TAIL = 64
"""Tokens of the end of a prompt, which may open the reasoning."""


class Parting:
    """How the answers to one conversation are parted.

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
        """Options that texts need to be parted."""

    def reader(self) -> AnswerReader:
        """Return what parts one answer."""
        return AnswerReader(self._form, self._prompt, self._tools, self._most_calls)

    def count(self, text: str) -> int:
        """Return how many tokens a part has."""
        return len(self.tokenizer.encode(text, add_special=False)) if text else 0

    def read(self, text: str) -> list[AnswerPart]:
        """Part a whole answer."""
        reader = self.reader()
        return [*reader.feed(text), *reader.finish()]


async def find_parting(
    desk: Desk,
    conversation: TemplateInput,
    prompt: Sequence[int],
    *,
    is_raw: bool = False,
    most_calls: int | None = None,
) -> Parting:
    """Find how answers to a conversation are to be parted.

    Parameters
    ----------
    desk : Desk
    conversation : TemplateInput
    prompt : sequence of int
        Its tokens.
    is_raw : bool
        All of an answer is content.
    most_calls : int, optional
        As ``Parting`` takes it.
    """
    tokenizer = desk.lm.tokenizer
    if is_raw:
        return Parting(tokenizer, AnswerFormat())
    form = await anyio.to_thread.run_sync(lambda: desk.answer_format)
    tail = tokenizer.decode(prompt[-_TAIL:], special=True)
    marks = [*(form.reasoning or ()), form.content]
    if form.calls is not None and conversation.tools:
        marks += [form.calls.begin, form.calls.open]
    shows_marks = any(text in mark for text in tokenizer.special_texts for mark in marks)
    return Parting(tokenizer, form, tail, conversation.tools, shows_marks, most_calls)


def parted_message(parts: Sequence[AnswerPart]) -> dict[str, Any]:
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
