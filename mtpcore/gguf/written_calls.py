"""How calls of tools are to be written, so that a response template reads them."""

from __future__ import annotations

import re

from mtpcore.gguf.answer_format import AnswerFormat, CallFormat, CallText, ValueText
from mtpcore.gguf.response_template import Anchor, ResponseField, ResponseTemplate

__all__ = ["written_format"]

_NAMED = re.compile(r"(.*?)\(\?P<name>([^()]|\\.)*\)(.*)", re.DOTALL)
_BY_NAME = {"name": "{name}", "arguments": "{content}"}
_EACH = {"name": "{name}", "arguments": "{arguments}"}
_QUOTED = '{"name": "', '", "arguments": ', "}"


def written_format(template: ResponseTemplate) -> AnswerFormat | None:
    """Return the form of answers that a template reads, with calls letter by letter.

    That is known of calls that are objects with a name before them, objects with name and
    arguments, and lists of calls as Python writes them, where marks stand around each of them or
    the list. None: it is not known, or marks stand before what is said.
    """
    said = [field for field in template.fields if field.kind == "content"]
    calls = [field for field in template.fields if field.kind == "call"]
    text = _find_text(calls[0]) if len(calls) == 1 and not said else None
    if text is None:
        return None
    thoughts = [_marks_of(field) for field in template.fields if field.kind == "reasoning"]
    reasoning = next((marks for marks in thoughts if marks is not None), None)
    begin, written = text
    return AnswerFormat(reasoning, "", CallFormat(begin, "json", text=written))


def _find_text(field: ResponseField) -> tuple[str, CallText] | None:
    """Return the mark of calls, and how they are written."""
    closed, reader = _literal_of(field.close), field.reader
    shape = field.transform
    function = shape.get("function") if isinstance(shape, dict) else None
    if closed is None or field.open is None or not field.repeats:
        return None
    opened: str | None
    if field.transform_each:
        opened, calls = _literal_of(field.open), reader.written_calls
        if opened is None or calls is None or function != _EACH:
            return None
        before, middle, between, after, listed = calls
        return opened, CallText(opened + before, middle, between, after + closed, values=listed)
    if reader.written is None:
        return None
    if function == _BY_NAME:
        found = _NAMED.fullmatch(field.open.pattern.pattern) if not field.open.marks else None
        opened, rest = (_literal(found[i]) if found else None for i in (1, 3))
        if not opened or rest is None:
            return None
        values = None if reader.written == ValueText() else reader.written
        return opened, CallText(opened, rest, closed + opened, closed, values=values)
    if function == "{content}" and reader.written == ValueText():
        opened, (begin, middle, end) = _literal_of(field.open), _QUOTED
        if opened is None:
            return None
        again = f"{end}{closed}{opened}{begin}"
        return opened, CallText(opened + begin, middle, again, end + closed)
    return None


def _marks_of(field: ResponseField) -> tuple[str, str] | None:
    """Return the marks around a field, without space; None: there are none that are texts."""
    opened, closed = _literal_of(field.open), _literal_of(field.close)
    return (opened.strip(), closed.strip()) if opened and closed else None


def _literal_of(anchor: Anchor | None) -> str | None:
    """Return a text that an anchor is; None: there is none that is known."""
    if anchor is None:
        return None
    return anchor.marks[0] if anchor.marks else _literal(anchor.pattern.pattern)


def _literal(pattern: str) -> str | None:
    """Return the one text that matches a pattern, but for space at its end; None: several do."""
    pattern = pattern.removesuffix(r"\s*")
    if re.search(r"(?<!\\)(?:\\\\)*(?:[.^$*+?()\[\]{}|]|\\\w)", pattern):
        return None
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
