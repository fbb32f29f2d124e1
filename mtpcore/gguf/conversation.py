"""Conversations in the form that a chat template reads, whichever form the caller's have.

One conversation can be written in several ways: arguments of a call as an object or as JSON text,
content as a text or as a list of parts, nothing said as ``null`` or as an empty text, instructions
by a system or a developer. Clients of the OpenAI API send all of them, and most templates read some
alone: of the others they write Python's notation, or nothing, or fail. What a template reads is
found out by rendering short conversations with it, as llama.cpp does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtpcore.errors import MtpcoreError, spell
from mtpcore.gguf.renderer import RefusalError

__all__ = ["Reading"]

Message = dict[str, Any]
Render = Callable[[list[Message], list[Message] | None], str]

_MARK = "probemark"
_PARTS = [{"type": "text", "text": _MARK}]
_OBJECT = {_MARK: "value"}
_QUESTION = {"role": "user", "content": "question"}
_ID = "call00001"  # nine characters, as some templates want it
_THOUGHT = "reasoning_content"
"""What templates call the thoughts of an answer; of some servers they are ``reasoning``."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_FUNCTION = {
    "name": "probe",
    "description": "a tool",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "a place"}},
        "required": ["place"],
    },
}
_TOOLS = [{"type": "function", "function": _FUNCTION}]


class Reading:
    """How a template reads messages; each question is asked when it first matters, and once.

    Parameters
    ----------
    render : callable
        Renders messages and tools with the template; raises RefusalError where it refuses them.
    source : str
        The template.
    """

    def __init__(self, render: Render, source: str) -> None:
        self._render, self._source = render, source
        self._texts: dict[str, str | None] = {}

    def adapt(self, messages: Sequence[Any], *, tools: bool) -> list[Any]:
        """Return messages in the form that the template reads; what is no message stays.

        Parameters
        ----------
        messages : sequence
        tools : bool
            Whether the conversation has tools: some templates write calls otherwise then.

        Raises
        ------
        MtpcoreError
            Content has other parts than texts, and the template writes texts alone; or a limit
            ended the template.
        """
        return [
            self._adapt({**message}, tools) if isinstance(message, Mapping) else message
            for message in messages
        ]

    def _adapt(self, message: Message, tools: bool) -> Message:
        if message.get("role") == "developer" and not self._knows_developers(tools):
            message["role"] = "system"
        calls = message.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            message["tool_calls"] = [self._adapt_call(call, tools) for call in calls]
        role, content = message.get("role"), message.get("content")
        thought = message.get("reasoning")
        if role == "assistant" and isinstance(thought, str) and not message.get(_THOUGHT):
            message[_THOUGHT] = thought
        role = role if role in _ROLES else "user"
        if content is None and role == "assistant":
            if not self._reads_null(bool(calls), tools):
                message["content"] = ""
        elif isinstance(content, str):
            if not self._shows(role, _MARK, tools) and self._shows(role, _PARTS, tools):
                message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, (list, tuple)) and not self._reads_parts(role, tools):
            message["content"] = _join(content, role)
        return message

    def _adapt_call(self, call: Any, tools: bool) -> Any:
        if not isinstance(call, Mapping):
            return call
        function = call.get("function")
        if isinstance(function, Mapping):
            return {**call, "function": self._adapt_arguments(function, tools)}
        return self._adapt_arguments(call, tools)

    def _adapt_arguments(self, function: Mapping[str, Any], tools: bool) -> Message:
        adapted = dict(function)
        given = adapted.get("arguments")
        arguments = _parse(given)
        if isinstance(arguments, Mapping):
            if self._reads_objects(tools):
                adapted["arguments"] = arguments
            elif not isinstance(given, str) or not given.strip():
                adapted["arguments"] = json.dumps(arguments, ensure_ascii=False)
        return adapted

    def _knows_developers(self, tools: bool) -> bool:
        return "developer" in self._source and self._shows("developer", _MARK, tools)

    def _reads_parts(self, role: str, tools: bool) -> bool:
        """Say whether a list of one text is read as that text; and where neither is."""
        text = self._say(role, _MARK, tools)
        return text == self._say(role, _PARTS, tools) or _MARK not in (text or "")

    def _reads_null(self, has_calls: bool, tools: bool) -> bool:
        """Say whether an answer without content is written without Python's word for it."""
        role = "call" if has_calls else "assistant"
        null, empty = self._say(role, None, tools), self._say(role, "", tools)
        if null is None or empty is None:
            return empty is None
        return null.count("None") <= empty.count("None")

    def _reads_objects(self, tools: bool) -> bool:
        """Say whether arguments are to be objects, as transformers has them; else JSON text is."""
        as_object, as_text = (
            self._say("call", "", tools, arguments) or ""
            for arguments in (_OBJECT, json.dumps(_OBJECT))
        )
        in_python, twice = f"'{_MARK}'", f'\\"{_MARK}\\"'
        return (_MARK in as_object and in_python not in as_object) or (
            _MARK not in as_text or twice in as_text
        )

    def _shows(self, role: str, content: Any, tools: bool) -> bool:
        return _MARK in (self._say(role, content, tools) or "")

    def _say(self, role: str, content: Any, tools: bool, arguments: object = _OBJECT) -> str | None:
        """Render a short conversation in which a role says something, or calls a tool.

        Returns
        -------
        str or None
            The text; None where the template refuses it.
        """
        key = json.dumps([role, content, tools, arguments])
        if key not in self._texts:
            messages = self._write(role, content, tools, arguments)
            try:
                self._texts[key] = self._render(messages, _TOOLS if tools else None)
            except RefusalError:
                self._texts[key] = None
        return self._texts[key]

    def _write(self, role: str, content: Any, tools: bool, arguments: object) -> list[Message]:
        function = {"name": "probe", "arguments": arguments}
        calls = [{"id": _ID, "type": "function", "function": function}]
        call = {"role": "assistant", "content": "", "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": _ID, "name": "probe", "content": "found"}
        said = {"role": role, "content": content}
        if role == "call":
            return [_QUESTION, call | {"content": content}, result]
        if role == "tool":
            if not self._reads_objects(tools):
                function["arguments"] = json.dumps(arguments)
            return [_QUESTION, call, result | said]
        if role == "assistant":
            return [_QUESTION, said, _QUESTION]
        return [said] if role == "user" else [said, _QUESTION]


def _parse(arguments: object) -> object:
    """Return arguments that are given as JSON text; no text, and nothing, are none."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):  # no JSON, which a model may well write
        return arguments


def _join(parts: Sequence[Any], role: str) -> str:
    """Return parts as one text."""
    texts = []
    for part in parts:
        text = (
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        )
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise MtpcoreError(
                "the chat template reads texts alone",
                where=f"a message of the {role}",
                wanted="a text, or parts of type text",
                got=spell(kind),
            )
        texts.append(text)
    return "\n".join(texts)
