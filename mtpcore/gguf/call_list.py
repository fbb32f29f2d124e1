"""Calls as Python writes them, ``[get_weather(city="Paris", days=3)]``, read without running any.

The grammar is that of transformers' reader ``python-call-list``: keyword arguments alone, whose
values are texts, numbers, lists, dicts, True, False and None, in Python's or JSON's spelling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

__all__ = ["LARGEST", "read_call_list", "read_literal"]

T = TypeVar("T")

_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TEXT = re.compile(r"""'((?:[^'\\\n\r]|\\.)*)'|"((?:[^"\\\n\r]|\\.)*)\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\\'\"/"}
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
LARGEST = 2**53 - 1
"""The largest whole number that is read."""
_MOST_DIGITS = 17
_DEEPEST = 100


def read_call_list(text: str) -> list[dict[str, Any]]:
    """Return calls as dicts of ``name`` and ``arguments``.

    Raises
    ------
    ValueError
        The text is no such list.
    """
    return _CallListReader(text).calls()


def read_literal(text: str) -> Any:
    """Return a value as it stands in such a list.

    Raises
    ------
    ValueError
        The text is none.
    """
    return _CallListReader(text).value()


class _CallListReader:
    """Reads one text from its beginning; ``at`` is where it is."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def calls(self) -> list[dict[str, Any]]:
        self._take("[")
        calls = self._items("]", self._call)
        self._end()
        return calls

    def value(self) -> Any:
        value = self._value(0)
        self._end()
        return value

    def _end(self) -> None:
        if self._next():
            self._fail("nothing after it")

    def _call(self) -> dict[str, Any]:
        name = self._name("the name of a function")
        self._take("(")
        return {"name": name, "arguments": self._unique(self._items(")", self._argument))}

    def _argument(self) -> tuple[str, Any]:
        name = self._name("the name of an argument")
        self._take("=")
        return name, self._value(0)

    def _value(self, depth: int) -> Any:
        """Return a value that is inside ``depth`` lists and dicts."""
        first = self._next()
        if first in ("'", '"'):
            return self._string()
        if first in ("[", "{"):
            if depth >= _DEEPEST:
                self._fail(f"at most {_DEEPEST} lists and dicts in each other")
            self._take(first)
            if first == "[":
                return self._items("]", lambda: self._value(depth + 1))
            return self._unique(self._items("}", lambda: self._pair(depth + 1)))
        if (number := _NUMBER.match(self._text, self._at)) is not None:
            return self._number(number)
        word = _NAME.match(self._text, self._at)
        if word is None or word[0] not in _WORDS:
            self._fail("a text, a number, a list, a dict, True, False or None")
        self._at = word.end()
        return _WORDS[word[0]]

    def _number(self, found: re.Match[str]) -> int | float:
        is_whole = found[1] is None and found[2] is None
        if is_whole and (len(found[0]) > _MOST_DIGITS or abs(int(found[0])) > LARGEST):
            self._fail("a whole number of at most 53 bits")
        if not is_whole and math.isinf(float(found[0])):
            self._fail("a number that a double holds")
        self._at = found.end()
        return int(found[0]) if is_whole else float(found[0])

    def _pair(self, depth: int) -> tuple[str, Any]:
        if self._next() not in ("'", '"'):
            self._fail("a text as key")
        key = self._string()
        self._take(":")
        return key, self._value(depth)

    def _string(self) -> str:
        found = _TEXT.match(self._text, self._at)
        if found is None:
            self._fail("a text that ends on its line")
        body = found[1] if found[1] is not None else found[2]
        if _SURROGATE.search(body):
            self._fail("a text without surrogates")
        said = _PAIR.sub(_join_pair, _ESCAPE.sub(self._letter, body))
        if _SURROGATE.search(said):
            self._fail("surrogates in pairs")
        self._at = found.end()
        return said

    def _letter(self, escape: re.Match[str]) -> str:
        if escape[1] is not None:
            return chr(int(escape[1], 16))
        if escape[2] not in _LETTERS:
            self._fail("escapes as JSON's")
        return _LETTERS[escape[2]]

    def _items(self, close: str, read: Callable[[], T]) -> list[T]:
        """Return what stands between commas up to a bracket."""
        found: list[T] = []
        if self._next() != close:
            found.append(read())
            while self._next() != close:
                self._take(",")
                found.append(read())
        self._take(close)
        return found

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self._fail("each name once")
        return found

    def _name(self, wanted: str) -> str:
        self._next()
        found = _NAME.match(self._text, self._at)
        if found is None:
            self._fail(wanted)
        self._at = found.end()
        return found[0]

    def _take(self, sign: str) -> None:
        if self._next() != sign:
            self._fail(repr(sign))
        self._at += 1

    def _next(self) -> str:
        """Return the next sign that is no space; empty at the end."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _fail(self, wanted: str) -> NoReturn:
        raise ValueError(f"a list of calls: wanted {wanted} at character {self._at}")


def _join_pair(pair: re.Match[str]) -> str:
    high, low = map(ord, pair[0])
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
