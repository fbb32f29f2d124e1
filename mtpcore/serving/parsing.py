"""What the model wrote as APIs have it: messages, and calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio.to_thread

from mtpcore.errors import MtpcoreError
from mtpcore.gguf.answer_parser import AnswerPart, ToolCall
from mtpcore.lm.answer_parsing import AnswerParsing, ParsedAnswer
from mtpcore.serving.answers import Service
from mtpcore.serving.draws import draw_name
from mtpcore.serving.prompts import TemplateInput

__all__ = ["find_parsing", "parsed_message", "read_arguments", "spell_call"]


async def find_parsing(
    service: Service,
    conversation: TemplateInput,
    prompt: Sequence[int],
    *,
    is_raw: bool = False,
    most_calls: int | None = None,
) -> AnswerParsing:
    """Find how answers to a conversation are to be parsed, as ``AnswerParsing.of``, in a thread."""
    model, tools = service.lm.model, conversation.tools
    find = partial(AnswerParsing.of, model, prompt, tools, is_raw=is_raw, most_calls=most_calls)
    return await anyio.to_thread.run_sync(find)


def parsed_message(parts: Sequence[AnswerPart], text: int) -> dict[str, Any]:
    """Return an answer, the request's text of this number, as a message of OpenAI's API.

    Reasoning has both names that clients read.
    """
    said, thought, found = ParsedAnswer.of(parts)
    calls = [spell_call(call, text, i) for i, call in enumerate(found)]
    message: dict[str, Any] = {"role": "assistant", "content": said if said or not calls else None}
    if thought:
        message |= {"reasoning_content": thought, "reasoning": thought}
    if calls:
        message["tool_calls"] = calls
    return message


def read_arguments(call: ToolCall) -> dict[str, object]:
    """Return the arguments of a call as an object; such as are no JSON object as they are."""
    try:
        return call.read_arguments()
    except MtpcoreError:
        return {"arguments": call.arguments}


def spell_call(call: ToolCall, text: int, number: int) -> dict[str, Any]:
    """Return a call, of this number in its text, as OpenAI's API has it, with a name of its own."""
    return {
        "id": draw_name("call_", text, number),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
