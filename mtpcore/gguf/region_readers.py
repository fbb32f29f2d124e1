"""Readers of what a model writes between marks, by the names that response templates have.

Each is a struct of the reader's options; options that it does not know are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from mtpcore.gguf.answer_format import ValueText
from mtpcore.gguf.call_list import LARGEST, read_call_list
from mtpcore.gguf.patterns import compile_pattern, find_all

if TYPE_CHECKING:
    import regex

__all__ = ["READERS", "RegionReader", "TextReader"]

_OPEN, _CLOSE = "\x01", "\x02"  # around the number of a text that stands aside
_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,])(\s*)(\w+)(\s*):')
_Separator = Annotated[str, msgspec.Meta(min_length=1)]


class RegionReader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What reads a region's text."""

    @property
    def written(self) -> ValueText | None:
        """How values are to be written that it reads; None: that is not known."""
        return None

    @property
    def written_calls(self) -> tuple[str, str, str, str, ValueText] | None:
        """How calls are to be written that it reads a list of; None: it reads none.

        What stands before the first name, between a name and its arguments, between these and the
        next name, and after the last arguments; and values.
        """
        return None

    def read(self, text: str) -> Any:
        """Return the value of a text; ValueError: it has none."""
        raise NotImplementedError


class TextReader(RegionReader, frozen=True):
    """``text``: as it is, without the space around it if ``strip``."""

    strip: bool = True

    def read(self, text: str) -> Any:
        """Return the text."""
        return self.trim(text)

    def trim(self, text: str) -> str:
        """Return a text without the space around it, unless that is to stay."""
        return text.strip() if self.strip else text


class _IntReader(TextReader, frozen=True):
    """``int``."""

    def read(self, text: str) -> int:
        return int(self.trim(text))


class _FloatReader(TextReader, frozen=True):
    """``float``."""

    def read(self, text: str) -> float:
        return float(self.trim(text))


class _BoolReader(TextReader, frozen=True):
    """``bool``: ``true`` and ``1`` are true, all else is not."""

    def read(self, text: str) -> bool:
        return self.trim(text).lower() in ("true", "1")


class _JsonReader(TextReader, frozen=True):
    """``json``, as models write it.

    Texts may stand between marks of their own (``string_delims``), and keys without quotes
    (``unquoted_keys``); with ``allow_non_json`` what is no JSON is a text.
    """

    unquoted_keys: bool = False
    string_delims: tuple[tuple[_Separator, _Separator], ...] = ()
    allow_non_json: bool = False

    @property
    def written(self) -> ValueText:
        """JSON, with the first marks of texts."""
        quotes = self.string_delims[0] if self.string_delims else None
        return ValueText(quotes=quotes, bare_keys=self.unquoted_keys)

    def read(self, text: str) -> Any:
        if self.string_delims and (_OPEN in text or _CLOSE in text):
            raise ValueError("control characters 1 and 2 in what is to be JSON")
        aside: list[str] = []

        def put_aside(found: re.Match[str]) -> str:
            aside.append(found[1])
            return f"{_OPEN}{len(aside) - 1}{_CLOSE}"

        plain = text
        for opened, closed in self.string_delims:
            between = rf"{re.escape(opened)}(.*?){re.escape(closed)}"
            plain = re.sub(between, put_aside, plain, flags=re.DOTALL)
        if self.unquoted_keys:
            plain = _BARE_KEY.sub(_quote_key, plain)
        plain = re.sub(
            f"{_OPEN}(\\d+){_CLOSE}", lambda found: json.dumps(aside[int(found[1])]), plain
        )
        try:
            return json.loads(plain)
        except (ValueError, RecursionError) as error:
            if self.allow_non_json:
                return self.trim(text)
            raise ValueError(f"no JSON: {error}") from error


def _quote_key(found: re.Match[str]) -> str:
    return found[0] if found[2] is None else f'{found[1]}"{found[2]}"{found[3]}:'


class _Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The reader of a value that is inside another one."""

    name: str = "text"
    args: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.reader is not None

    @cached_property
    def reader(self) -> RegionReader:
        if self.name not in READERS:
            raise ValueError(f"no reader {self.name!r}: there are {', '.join(READERS)}")
        return msgspec.convert(self.args, READERS[self.name])


class _TagsReader(RegionReader, frozen=True):
    """``xml-inline``: keys and values by a pattern with groups of these names.

    With ``merge_duplicates`` the values of a key that comes again are a list.
    """

    tag_pattern: str
    value_parser: _Inner | None = None
    merge_duplicates: bool = False

    def __post_init__(self) -> None:
        if "key" not in self.pattern.groupindex:
            raise ValueError("tag_pattern has no group 'key'")

    @cached_property
    def pattern(self) -> regex.Pattern[str]:
        return compile_pattern(self.tag_pattern)

    def read(self, text: str) -> dict[str, Any]:
        values: dict[str, list[Any]] = {}
        for found in find_all(self.pattern, text):
            groups = found.groupdict(default="")
            value = groups.get("value", "")
            read = value if self.value_parser is None else self.value_parser.reader.read(value)
            values.setdefault(groups["key"], []).append(read)
        return {
            key: several if self.merge_duplicates and len(several) > 1 else several[-1]
            for key, several in values.items()
        }


class _LinesReader(TextReader, frozen=True):
    """``kv-lines``: a key and a value on each line; lines without both are passed over."""

    line_sep: _Separator = "\n"
    kv_sep: _Separator = ":"
    value_parser: _Inner | None = None

    def read(self, text: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for line in map(self.trim, text.split(self.line_sep)):
            key, found, value = line.partition(self.kv_sep)
            if found:
                key, value = self.trim(key), self.trim(value)
                inner = self.value_parser
                values[key] = value if inner is None else inner.reader.read(value)
        return values


class _CallsReader(RegionReader, frozen=True):
    """``python-call-list``."""

    @property
    def written_calls(self) -> tuple[str, str, str, str, ValueText]:
        """Calls as Python writes them; words of JSON are read as well."""
        values = ValueText(
            plain_quote="'",
            comma=", ",
            colon=": ",
            words=(("True", "true"), ("False", "false"), ("None", "null")),
            assign="=",
            largest=LARGEST,
        )
        return "[", "(", "), ", ")]", values

    def read(self, text: str) -> list[dict[str, Any]]:
        return read_call_list(text)


READERS: Mapping[str, type[RegionReader]] = {
    "text": TextReader,
    "int": _IntReader,
    "float": _FloatReader,
    "bool": _BoolReader,
    "json": _JsonReader,
    "xml-inline": _TagsReader,
    "kv-lines": _LinesReader,
    "python-call-list": _CallsReader,
}
"""All readers by the names that response templates have."""
