"""Arguments as elements: each between two marks with its name, one in another, as in XML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mtpcore.gguf.argument_types import read_untyped, types_of

__all__ = ["ElementMarks", "read_elements"]

_DEEPEST = 100
_SPACE = re.compile(r"\s*")
_Found = tuple[Any, int]


class ElementMarks(msgspec.Struct, frozen=True):
    """How elements are written.

    Attributes
    ----------
    opened, closing, end : str
        What stands before a name in the first mark and in the last one, and after it in both.
    item : str
        The name of what a list has; empty: lists are written in another way.
    """

    opened: str
    closing: str
    end: str
    item: str = ""

    def open(self, name: str) -> str:
        """Return the first mark of a name."""
        return f"{self.opened}{name}{self.end}"

    def close(self, name: str) -> str:
        """Return the last mark of a name."""
        return f"{self.closing}{name}{self.end}"


def read_elements(
    text: str, begin: int, marks: ElementMarks, schema: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """Return the elements from a place on as a schema types them, and where they end."""
    values, end = _ElementReader(text, marks).members(begin, schema, 0)
    return {name: several[-1] for name, several in values.items()}, end


class _ElementReader:
    """Reads elements of a text; a value is what was read and where it ends."""

    def __init__(self, text: str, marks: ElementMarks) -> None:
        self._text, self._marks = text, marks
        opened, end = re.escape(marks.opened.strip()), re.escape(marks.end)
        self._opening = re.compile(rf"\s*{opened}([^\s<>/][^\s<>]*?){end}")

    def members(self, at: int, schema: object, depth: int) -> tuple[dict[str, list[Any]], int]:
        """Return the values of each name, up to what is no whole element."""
        values: dict[str, list[Any]] = {}
        while (opened := self._opening.match(self._text, at)) is not None:
            name = opened[1]
            found = self._value(opened.end(), name, self._schema_of(name, schema), depth)
            if found is None:
                break
            value, at = found
            values.setdefault(name, []).append(value)
        return values, at

    def _schema_of(self, name: str, schema: object) -> object:
        if name == self._marks.item and (items := _part(schema, "items")) is not None:
            return items
        properties = _part(schema, "properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        return _part(schema, "additionalProperties")

    def _value(self, at: int, name: str, schema: object, depth: int) -> _Found | None:
        """Return what an element holds: elements, or a text; None: it does not end."""
        closed, types = self._marks.close(name), types_of(schema)
        if "string" not in types and depth < _DEEPEST:
            values, end = self.members(at, schema, depth + 1)
            end = _after_space(self._text, end)
            if values and self._text.startswith(closed, end):
                return self._join(values, types), end + len(closed)
        end = self._text.find(closed, at)
        if end < 0:
            return None
        return _read_leaf(self._text[at:end], schema, types), end + len(closed)

    def _join(self, values: Mapping[str, list[Any]], types: list[str]) -> Any:
        """Return a list of items, or an object."""
        if [*values] == [self._marks.item] and ("array" in types or "object" not in types):
            return values[self._marks.item]
        return {name: one[0] if len(one) == 1 else one for name, one in values.items()}


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _part(schema: object, key: str) -> Any:
    """Return a part of a schema, or of the first of its alternatives that has it."""
    if not isinstance(schema, Mapping):
        return None
    if key in schema:
        return schema[key]
    alternatives = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return next((found for one in alternatives if (found := _part(one, key)) is not None), None)


def _read_leaf(text: str, schema: object, types: list[str]) -> Any:
    """Return a text as its schema has it; what holds nothing may be an empty list or object."""
    if not text.strip():
        for kind, value in (("string", text), ("array", []), ("object", {}), ("null", None)):
            if kind in types:
                return value
    return read_untyped(text, schema)
