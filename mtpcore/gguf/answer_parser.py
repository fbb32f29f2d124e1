"""Parsing answers: reasoning, what is said, and calls of tools, of a text as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mtpcore.errors import MtpcoreError, spell
from mtpcore.gguf.answer_format import AnswerFormat, CallFormat
from mtpcore.gguf.argument_types import properties_of, read_untyped
from mtpcore.gguf.elements import ElementMarks, read_elements

__all__ = ["AnswerParser", "AnswerPart", "ToolCall", "functions_of", "join_parts"]

_Found = tuple[list["ToolCall"], int, int]
"""Calls, and where they begin, after their mark, and end."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool.

    Attributes
    ----------
    name : str
    arguments : str
        JSON text, as the model wrote it.
    id : str
        What a message with the call's result names; empty of a call that is in no message.
    """

    name: str
    arguments: str
    id: str = ""

    def read_arguments(self) -> dict[str, object]:
        """Return the arguments by name.

        Raises
        ------
        MtpcoreError
            They are no JSON object.
        """
        try:
            return msgspec.json.decode(self.arguments, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise MtpcoreError(
                "the arguments of a call are no JSON object",
                where=spell(self.name, str),
                got=spell(self.arguments),
                fix="tell the model so, as the call's result",
            ) from error


class AnswerPart(NamedTuple):
    """A piece of an answer.

    Attributes
    ----------
    kind : {"reasoning", "content", "call"}
    text : str
        Of reasoning and content.
    call : ToolCall, optional
        Of a call, which comes whole.
    """

    kind: Literal["reasoning", "content", "call"]
    text: str = ""
    call: ToolCall | None = None


def functions_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the functions of tools by name."""
    return {
        function["name"]: function
        for tool in tools
        if isinstance(function := tool.get("function", tool), Mapping) and "name" in function
    }


class AnswerParser:
    """Parses one answer; what may still become a mark is held back.

    Nothing is lost that comes before a call: what looks like one and is none is content. What
    follows calls and is none is left out. All of an answer without marks is content, letter by
    letter.

    Parameters
    ----------
    form : AnswerFormat
    prompt : str
        What the answer follows, or its end: it may have opened the reasoning.
    tools : sequence of mappings
        Those that may be called, as OpenAI's API has them; none: nothing is a call.
    most_calls : int, optional
        Calls that are read; what follows them is left out.
    """

    def __init__(
        self,
        form: AnswerFormat,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        most_calls: int | None = None,
    ) -> None:
        self._most_calls = most_calls
        self._reasoning = form.reasoning
        self._calls = form.calls if tools else None
        functions = functions_of(tools)
        self._properties = {name: properties_of(one) for name, one in functions.items()}
        self._content = form.content
        self._state: Literal["reasoning", "content", "calls"] = "content"
        if self._reasoning is not None and prompt.rstrip().endswith(self._reasoning[0]):
            self._state = "reasoning"
        ends_so = form.opened and prompt.rstrip().endswith(form.opened)
        self._held = self._opened = form.opened if ends_so else ""  # of this the prompt has it
        self._is_first = True  # nothing but space was read in this part
        self._has_said = False
        self.n_calls = 0

    def feed(self, text: str) -> list[AnswerPart]:
        """Take what follows, and return what is certain of it."""
        self._held += text
        parts: list[AnswerPart] = []
        while self._step(parts, is_end=False):
            pass
        return join_parts(parts)

    def finish(self) -> list[AnswerPart]:
        """Return what was held back: no text follows."""
        parts: list[AnswerPart] = []
        while self._step(parts, is_end=True):
            pass
        return join_parts(parts)

    def _step(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        """Go on to the next mark; return whether there was one."""
        if self._state == "calls":
            return self._read_calls(parts, is_end=is_end)
        held = self._held
        marks, first = self._marks(), self._first_marks()
        lead = held.lstrip()
        found = [(at, -len(mark), mark) for mark in marks if (at := held.find(mark)) >= 0]
        found += [
            (len(held) - len(lead), -len(mark), mark) for mark in first if lead.startswith(mark)
        ]
        may_grow = bool(lead) and any(mark.startswith(lead) for mark in first)
        if not found or (may_grow and not is_end):
            keep = 0 if is_end else len(held) if may_grow else _n_open(held, marks)
            self._say(parts, len(held) - keep, is_last=is_end)
            return False
        at, _, mark = min(found)
        self._say(parts, at, is_last=False)
        if self._calls is not None and self._state == "content" and mark == self._calls.begin:
            self._held = self._held if self._has_said else self._held.lstrip()
            self._state = "calls"
            return True
        self._held = self._held.lstrip()
        opens = self._reasoning is not None and mark == self._reasoning[0]
        self._state = "reasoning" if opens else "content"
        self._held = self._held.removeprefix(mark)
        self._opened, self._is_first = "", True
        return True

    def _marks(self) -> list[str]:
        """Return what ends the part that is being read, wherever it stands."""
        if self._state == "reasoning":
            assert self._reasoning is not None
            return [self._reasoning[1]]
        return [] if self._calls is None else [self._calls.begin]

    def _first_marks(self) -> list[str]:
        """Return what may stand before all that is said."""
        if self._state == "reasoning" or self._has_said:
            return []
        return [mark for mark in (*(self._reasoning or ()), self._content) if mark]

    def _say(self, parts: list[AnswerPart], n: int, *, is_last: bool) -> None:
        """Give the first ``n`` characters that are held; space around reasoning is none of it."""
        text, rest = self._held[:n], self._held[n:]
        if self._opened and n:
            text, self._opened = text.removeprefix(self._opened), ""
        if self._is_first and (self._reasoning is not None or self._content):
            text = text.lstrip()
        is_content = self._state == "content"
        said = text if is_content and is_last else text.rstrip()
        if said:
            self._is_first = False
            self._has_said = self._has_said or is_content
            parts.append(AnswerPart("content" if is_content else "reasoning", said))
        self._held = text[len(said) :] + rest

    def _read_calls(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        """Read the next call; return whether there was one."""
        assert self._calls is not None
        found = _find_call(self._calls, self._held, self._properties)
        if found is not None:
            calls, begin, end = found
            spoken_of = max(0, self._held[:begin].rfind(self._calls.begin))
            said = self._held[:spoken_of].removeprefix(self._opened).rstrip()
            if said and not self.n_calls:  # an earlier mark began nothing
                parts.append(AnswerPart("content", said))
            self._held, self._opened = self._held[end:], ""
            if self._most_calls is not None:
                calls = calls[: self._most_calls - self.n_calls]
            self.n_calls += len(calls)
            parts += [AnswerPart("call", call=call) for call in calls]
            return True
        if is_end:
            if not self.n_calls:  # it looked like one
                parts.append(AnswerPart("content", self._held.removeprefix(self._opened)))
            self._held = ""
        return False


def join_parts(parts: list[AnswerPart]) -> list[AnswerPart]:
    """Return parts, those of one kind that follow each other as one."""
    joined: list[AnswerPart] = []
    for part in parts:
        if joined and part.kind == joined[-1].kind != "call":
            joined[-1] = AnswerPart(part.kind, joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


def _n_open(text: str, marks: Sequence[str]) -> int:
    """Return how many of the last characters may be the beginning of a mark."""
    longest = max((len(mark) - 1 for mark in marks), default=0)
    for n in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-n:]) for mark in marks):
            return n
    return 0


def _find_call(
    form: CallFormat, text: str, properties: Mapping[str, Mapping[str, Any]]
) -> _Found | None:
    """Return the first calls of a text; None: there is no whole one."""
    if form.kind == "json":
        return _find_json_calls(form, text)
    if form.kind == "named":
        found = re.search(rf"{form.open}(?P<name>[\w.\-]+?){form.middle}(?={{)", text)
        value = None if found is None else _decode(text, found.end())
        if found is None or value is None:  # an object in it might look like a call
            return None
        return [ToolCall(found["name"], _spell(value[0]))], found.start("name"), value[1]
    if form.elements is not None:
        return _find_elements_call(form, form.elements, text, properties)
    argument = form.argument.replace("(?P<key>", "(?:").replace("(?P<value>", "(?:")
    pattern = rf"{form.open}(?P<name>[^\s<>\"]+?){form.middle}(?P<all>(?:{argument})*){form.close}"
    found_one = re.search(pattern, text, re.DOTALL)
    if found_one is None:
        return None
    schemas = properties.get(found_one["name"], {})
    arguments = {
        one["key"]: read_untyped(one["value"], schemas.get(one["key"]))
        for one in re.finditer(form.argument, found_one["all"], re.DOTALL)
    }
    call = ToolCall(found_one["name"], _spell(arguments))
    return [call], found_one.start("name"), found_one.end()


def _find_elements_call(
    form: CallFormat, marks: ElementMarks, text: str, properties: Mapping[str, Mapping[str, Any]]
) -> _Found | None:
    begun = re.search(rf"{form.open}(?P<name>[^\s<>\"]+?){form.middle}", text)
    close = re.compile(form.close)
    if begun is None or close.search(text, begun.end()) is None:
        return None
    schema = {"properties": properties.get(begun["name"], {})}
    arguments, end = read_elements(text, begun.end(), marks, schema)
    closed = close.match(text, end)
    if closed is None:
        return None
    return [ToolCall(begun["name"], _spell(arguments))], begun.start("name"), closed.end()


def _find_json_calls(form: CallFormat, text: str) -> _Found | None:
    begin = re.search(r"\[\s*\{|\{", text)  # a bracket alone may be a mark's
    value = None if begin is None else _decode(text, begin.start())
    if begin is None or value is None:
        return None
    several = value[0] if isinstance(value[0], list) else [value[0]]
    calls = []
    for one in several:
        said = one.get("function", one) if isinstance(one, Mapping) else None
        said = said if isinstance(said, Mapping) else one
        if not isinstance(said, Mapping) or not isinstance(said.get(form.name), str):
            return None
        calls.append(ToolCall(said[form.name], _spell(said.get(form.arguments) or {})))
    return calls, begin.start(), value[1]


def _decode(text: str, begin: int) -> tuple[Any, int] | None:
    """Return the JSON that begins somewhere, and where it ends; None: it does not end."""
    try:
        return json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None


def _spell(arguments: object) -> str:
    """Return arguments as JSON text; a model may have written them as one."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
