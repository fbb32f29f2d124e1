"""Prompts as tokens: texts, and conversations of all APIs in the one form that templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from mtpcore.errors import MtpcoreError
from mtpcore.lm import LM
from mtpcore.serving.answers import Service
from mtpcore.serving.refusals import Refusal, refusal_of

__all__ = [
    "PromptField",
    "TemplateInput",
    "encode_conversation",
    "encode_infill",
    "encode_prompts",
    "encode_texts",
]

_INSTRUCTIONS = ("system", "developer")
TextOrToken = str | int | dict[str, Any]
PromptField = str | dict[str, Any] | list[TextOrToken | list[TextOrToken]]
"""A text, tokens, or several of either; as llama.cpp's server also texts among tokens, and objects
that hold texts."""


class TemplateInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template writes.

    Attributes
    ----------
    messages : list of mappings
        As OpenAI's API has them, which is the form that ``LM.encode_chat`` takes.
    tools : list of mappings
        In its form, too.
    template_options : mapping
        Variables of the template.
    continues : bool
        Whether the text goes on where the last message ends.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    template_options: Mapping[str, Any] = {}
    continues: bool = False


async def encode_conversation(service: Service, conversation: TemplateInput) -> list[int]:
    """Return a conversation as tokens, written by the chat template in a thread of its own.

    Some programs put instructions between messages, which templates refuse that know them at the
    beginning alone. What such a template gets has all of them there, in their order.

    Raises
    ------
    Refusal
        There are no messages; or the template refuses them, or fails; or there is none.
    """
    if not conversation.messages:
        raise Refusal(400, "a conversation has messages", param="messages")
    if service.lm.model.chat_template is None:
        raise Refusal(400, "the model has no chat template; /v1/completions continues a text")

    def encode(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return service.lm.encode_chat(
            messages,
            tools=conversation.tools or None,
            template_options=_with_defaults(
                conversation.template_options, service.settings.template_options
            ),
            continue_final_message=conversation.continues,
        )

    def encode_somehow() -> list[int]:
        messages = conversation.messages
        try:
            return encode(messages)
        except MtpcoreError:
            if not any(_instructs(message) for message in messages[1:]):
                raise
            return encode(_with_instructions_first(messages))

    try:
        return await anyio.to_thread.run_sync(encode_somehow)
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


async def encode_texts(service: Service, texts: Sequence[str]) -> list[list[int]]:
    """Return texts as tokens, control tokens in them included; a thread of its own does it.

    Raises
    ------
    Refusal
        The model has no tokenizer.
    """

    def encode() -> list[list[int]]:
        tokenizer = service.lm.tokenizer
        return [tokenizer.encode(text, parse_special=True) for text in texts]

    try:
        return await anyio.to_thread.run_sync(encode)
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


async def encode_prompts(service: Service, prompt: PromptField, param: str) -> list[list[int]]:
    """Return the prompts of a request as tokens: one, or several.

    Parameters
    ----------
    service : Service
    prompt : PromptField
    param : str
        The field that has them.

    Raises
    ------
    Refusal
        It is none of these forms, or the model has no tokenizer.
    """
    is_one = not isinstance(prompt, list) or any(isinstance(one, int) for one in prompt)
    several: list[Any] = [prompt] if is_one else [*prompt]
    if not several:
        raise Refusal(400, "there is no prompt", param=param)

    def encode() -> list[list[int]]:
        return [_encode_parts(service.lm, one, param) for one in several]

    try:
        return await anyio.to_thread.run_sync(encode)
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


async def encode_infill(
    service: Service,
    prefix: str,
    suffix: str,
    begun: str = "",
    files: Sequence[tuple[str, str]] = (),
) -> list[int]:
    """Return a prompt whose continuation is what stands between two texts.

    Raises
    ------
    Refusal
        The model has no tokens for that, or no tokenizer.
    """

    def encode() -> list[int]:
        return service.lm.tokenizer.encode_infill(prefix, suffix, begun=begun, files=files)

    try:
        return await anyio.to_thread.run_sync(encode)
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


def _encode_parts(lm: LM, prompt: Any, param: str) -> list[int]:
    """Return a prompt as tokens; what is added around a text is added around the first part."""
    tokens: list[int] = []
    for part in prompt if isinstance(prompt, list) else [prompt]:
        if isinstance(part, int):
            tokens.append(part)
        else:
            text = _text_of(part, param)
            tokens += lm.tokenizer.encode(text, add_special=not tokens, parse_special=True)
    return tokens


def _text_of(part: Any, param: str) -> str:
    """Return the text of a part: a text, or in an object of llama.cpp's server."""
    if isinstance(part, str):
        return part
    names = part.keys() if isinstance(part, dict) else ()
    if names == {"prompt_string"} and isinstance(text := part["prompt_string"], str):
        return text
    if names == {"content"} and isinstance(content := part["content"], list):
        texts = [one.get("text") for one in content if _is_text(one)]
        if len(texts) == len(content):
            return "".join(texts)
    raise Refusal(
        400,
        "a prompt is a text, tokens, or several of either; images and sound are not supported",
        param=param,
    )


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _instructs(message: Mapping[str, Any]) -> bool:
    return message.get("role") in _INSTRUCTIONS


def _with_instructions_first(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    parts: list[Any] = []
    for message in filter(_instructs, messages):
        content = message.get("content") or []
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    others = [message for message in messages if not _instructs(message)]
    return [{"role": "system", "content": parts}, *others]


def _with_defaults(
    options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return variables with the server's own; who asks for an effort asks for reasoning."""
    own = dict(defaults)
    if "reasoning_effort" in options:
        own.pop("enable_thinking", None)
    return own | dict(options) or None
