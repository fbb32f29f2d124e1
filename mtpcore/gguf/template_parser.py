"""Parsing answers by a response template: reasoning, what is said, and calls, as the text comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mtpcore.gguf.answer_parser import AnswerPart, ToolCall, functions_of, join_parts
from mtpcore.gguf.argument_types import properties_of, type_arguments
from mtpcore.gguf.region_readers import RegionReader, TextReader
from mtpcore.gguf.response_parser import RegionEvent, RegionParser
from mtpcore.gguf.response_template import ResponseField, ResponseTemplate

__all__ = ["TemplateAnswerParser"]


class TemplateAnswerParser:
    """Parses one answer, as ``AnswerParser`` does, by a template.

    A region of calls that is not read as such is content, with its marks, unless calls were read
    before; so is all of an answer in which the template finds nothing.

    Parameters
    ----------
    template : ResponseTemplate
    prompt : str
        What the answer follows, from the answer's start on: it may have opened a region.
    tools : sequence of mappings
        Those that may be called, as OpenAI's API has them; none: nothing is a call.
    most_calls : int, optional
        Calls that are read; what follows them is left out.
    """

    def __init__(
        self,
        template: ResponseTemplate,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        most_calls: int | None = None,
    ) -> None:
        self._regions = RegionParser(template if tools else template.without_calls())
        self._most_calls = most_calls
        functions = functions_of(tools)
        self._properties = {name: properties_of(one) for name, one in functions.items()}
        self._region = _Region()
        self._seen: set[str] = set()  # kinds of which something was given
        self._outside = ""
        self.n_calls = 0
        self._take(self._regions.feed(prompt))
        self._seen.clear()
        self._region.before = self._region.held = self._outside = ""

    def feed(self, text: str) -> list[AnswerPart]:
        """Take what follows, and return what is certain of it.

        Raises
        ------
        MtpcoreError
            As ``RegionParser.feed``.
        """
        return self._take(self._regions.feed(text))

    def finish(self) -> list[AnswerPart]:
        """Return what was held back: no text follows. Raises what ``feed`` raises."""
        parts = self._take(self._regions.finish())
        if not self._seen and not parts and self._outside.strip():
            return [AnswerPart("content", self._outside.strip())]
        return parts

    def _take(self, events: Sequence[RegionEvent]) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for event in events:
            if event.field is None:
                self._outside += event.text
            elif event.kind == "open":
                self._region = _Region(event.text, self._before(event.field, parts))
            elif event.kind == "text":
                self._region.body += event.text
                if _is_plain(event.field):
                    self._say(parts, event.field, self._region.take(event.text, event.field.reader))
            else:
                self._close(parts, event.field, event)
        self._seen.update(part.kind for part in parts)
        return join_parts(parts)

    def _before(self, field: ResponseField, parts: Sequence[AnswerPart]) -> str:
        """Return what stands before a region's text, of which there may be others of its kind."""
        is_first = field.kind not in {*self._seen, *(part.kind for part in parts)}
        between = "\n" if field.join is None else field.join
        return "" if is_first else between

    def _close(self, parts: list[AnswerPart], field: ResponseField, event: RegionEvent) -> None:
        """Give what of a region is known at its end alone."""
        if _is_plain(field):
            return
        try:
            value = field.read(self._region.body, event.groups)
        except ValueError:
            value = None
        if field.kind == "call":
            calls = _read_calls(value, self._properties) if self._properties else None
            if calls is not None:
                if self._most_calls is not None:
                    calls = calls[: self._most_calls - self.n_calls]
                self.n_calls += len(calls)
                parts += [AnswerPart("call", call=call) for call in calls]
            elif not self.n_calls:
                text = f"{self._region.mark}{self._region.body}{event.text}"
                parts.append(AnswerPart("content", text))
        else:
            self._say(parts, field, value if isinstance(value, str) else self._region.body)

    def _say(self, parts: list[AnswerPart], field: ResponseField, text: str) -> None:
        if text:
            parts.append(AnswerPart(field.kind, self._region.before + text))
            self._region.before = ""


class _Region:
    """What is known of the region that is open.

    Attributes
    ----------
    mark : str
        What opened it.
    before : str
        What is still to be given before its first text.
    body, held : str
        All of its text, and the space at its end that may be its last.
    """

    def __init__(self, mark: str = "", before: str = "") -> None:
        self.mark, self.before, self.body = mark, before, ""
        self.held, self._has_begun = "", False

    def take(self, text: str, reader: RegionReader) -> str:
        """Return what of a region's text is certain to be in its value."""
        if not (isinstance(reader, TextReader) and reader.strip):
            return text
        text = self.held + text
        if not self._has_begun:
            text = text.lstrip()
        said = text.rstrip()
        self._has_begun = self._has_begun or bool(said)
        self.held = text[len(said) :]
        return said


def _is_plain(field: ResponseField) -> bool:
    """Say whether a field's value is its text, so that it can be given as it comes."""
    return field.kind != "call" and type(field.reader) is TextReader and field.transform is None


def _read_calls(
    value: object, properties: Mapping[str, Mapping[str, Any]]
) -> list[ToolCall] | None:
    """Return the calls that a value is; None: it is something else."""
    calls = []
    for one in value if isinstance(value, list) else [value]:
        said = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(said, Mapping) or not isinstance(name := said.get("name"), str):
            return None
        arguments = said.get("arguments", said.get("parameters"))
        if isinstance(arguments, str):
            calls.append(ToolCall(name, arguments))
            continue
        if not isinstance(arguments, Mapping | None):
            return None
        typed = type_arguments(arguments or {}, properties.get(name, {}))
        calls.append(ToolCall(name, json.dumps(typed, ensure_ascii=False)))
    return calls or None
