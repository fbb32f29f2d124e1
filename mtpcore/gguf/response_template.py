"""Response templates: where in a model's text the parts of its answer are, declared with the model.

The format is that of transformers (``response_template`` in ``tokenizer_config.json``; its
``utils/chat_parsing``): marks around fields of the message, a reader for what is between them, and
a shape for what was read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from mtpcore.errors import ModelFileError, MtpcoreError, spell
from mtpcore.gguf.chat import ChatTemplate
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.patterns import compile_pattern, find_all, find_first, find_here
from mtpcore.gguf.region_readers import READERS, RegionReader

if TYPE_CHECKING:
    import regex

__all__ = [
    "RESPONSE_TEMPLATE_KEY",
    "Anchor",
    "ResponseField",
    "ResponseTemplate",
    "read_response_template",
]

RESPONSE_TEMPLATE_KEY = "tokenizer.chat_response_template"
"""The key of a model file under which the template is, as JSON."""
_LONGEST = 1 << 18
_KINDS: Mapping[str, Literal["content", "reasoning", "call"]] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "call",
}
_NO_SIGN = "\U0010fffe"
"""A code point that is no character, and in no text."""
_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_MarkTexts = str | list[str] | None


class _FieldText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field as it is written."""

    open: _MarkTexts = None
    open_pattern: str | None = None
    close: _MarkTexts = None
    close_pattern: str | None = None
    content: str = "text"
    content_args: dict[str, Any] = msgspec.field(default_factory=dict)
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


class _TemplateText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template as it is written."""

    fields: dict[str, _FieldText]
    version: Literal[1] = 1
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)
    start_anchor: _MarkTexts = None
    start_anchor_pattern: str | None = None


class Anchor(NamedTuple):
    """What opens or closes a field.

    Attributes
    ----------
    pattern : regex.Pattern
    marks : tuple of str
        The texts that it is one of; none: it is a pattern.
    at_end : regex.Pattern, optional
        Of a pattern one that matches up to the end of a text alone, and there in part.
    """

    pattern: regex.Pattern[str]
    marks: tuple[str, ...] = ()
    at_end: regex.Pattern[str] | None = None

    @classmethod
    def of(cls, marks: _MarkTexts, pattern: str | None, where: str) -> Anchor | None:
        """Make one of what a template says; None: it says nothing. ValueError: it is none."""
        if marks is not None and pattern is not None:
            raise ValueError(f"{where}: marks and a pattern, of which there may be one")
        if pattern is not None:
            found = compile_pattern(pattern)
            return cls(found, at_end=compile_pattern(f"(?:{pattern})(?={_NO_SIGN})"))
        if marks is None:
            return None
        texts = tuple(dict.fromkeys([marks] if isinstance(marks, str) else marks))
        if not all(texts) or not texts:
            raise ValueError(f"{where}: an empty mark, or none")
        longest_first = sorted(texts, key=len, reverse=True)
        return cls(compile_pattern("|".join(map(re.escape, longest_first))), texts)

    def find(self, text: str, begin: int) -> regex.Match[str] | None:
        """Return the first match from a place on."""
        return find_first(self.pattern, text, begin)

    def find_here(self, text: str, begin: int) -> regex.Match[str] | None:
        """Return a match that begins at a place, which costs less than to search."""
        return find_here(self.pattern, text, begin)

    def is_open(self, text: str, begin: int) -> bool:
        """Say whether there may be another match at a place as the text goes on."""
        if self.at_end is not None:
            return find_here(self.at_end, text, begin, partial=True) is not None
        rest = text[begin:]
        return any(len(mark) > len(rest) and mark.startswith(rest) for mark in self.marks if rest)

    def find_open(self, text: str, begin: int) -> int:
        """Return the first place where there may be another match as the text goes on."""
        if self.at_end is not None:
            found = find_first(self.at_end, text, begin, partial=True)
            return len(text) if found is None else found.start()
        longest = max(map(len, self.marks)) - 1
        places = range(max(begin, len(text) - longest), len(text))
        return next((place for place in places if self.is_open(text, place)), len(text))

    def is_final(self, text: str, match: regex.Match[str]) -> bool:
        """Say whether a match is one whatever follows the text, such as ``$`` is not."""
        if self.at_end is None:
            return True
        found = find_here(self.pattern, text + _NO_SIGN, match.start())
        return (
            found is not None
            and found.span() == match.span()
            and found.groupdict() == match.groupdict()
        )


class ResponseField(NamedTuple):
    """A field of the message, which is a region of the text.

    Attributes
    ----------
    name : str
    kind : {"content", "reasoning", "call"}
        What of an answer it is.
    open, close : Anchor, optional
        None: it is what is in no other region; it ends with the text.
    reader : RegionReader
    join : str, optional
        What is between its regions, where there are several.
    transform : object
        The shape of its value; None: as it was read.
    transform_each : bool
        Whether it is the shape of each item.
    """

    name: str
    kind: Literal["content", "reasoning", "call"]
    open: Anchor | None
    close: Anchor | None
    reader: RegionReader
    repeats: bool
    join: str | None
    transform: Any
    transform_each: bool

    def read(self, text: str, groups: Mapping[str, str]) -> Any:
        """Return the value of a region's text and of the groups of its marks.

        Raises
        ------
        ValueError
            The text is not what the reader reads, or has not what the transform names.
        """
        value = self.reader.read(text)
        if self.transform is None:
            return value
        if not self.transform_each:
            return _fill(self.transform, {**groups, "content": value})
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ValueError(f"{self.name}: no list of objects")
        return [_fill(self.transform, {**groups, **item}) for item in value]


class ResponseTemplate:
    """A template that can be used.

    ``defaults`` and ``optional`` are of the message that transformers makes of an answer, of which
    the role is all that is ever given: they change nothing here.

    Parameters
    ----------
    source : object
        As JSON has it, or a text of JSON.
    where : str
        What has it, as errors name it.

    Attributes
    ----------
    source : dict
    fields : tuple of ResponseField
        Those that marks open.
    rest : ResponseField, optional
        What is in none of them.
    start : Anchor
        What the answer's prompt ends with.

    Raises
    ------
    ModelFileError
        It is malformed, or says what is not known here.
    """

    def __init__(self, source: object, where: str = "") -> None:
        try:
            self.source = _decode(source)
            spec = msgspec.convert(self.source, _TemplateText)
            fields = [_read_field(name, field) for name, field in spec.fields.items()]
            rest = [field for field in fields if field.open is None]
            if not fields or len(rest) > 1:
                raise ValueError("no field, or several without 'open' and 'open_pattern'")
            start = Anchor.of(spec.start_anchor, spec.start_anchor_pattern, "start_anchor")
            if start is None:
                raise ValueError("neither start_anchor nor start_anchor_pattern")
        except (ValueError, RecursionError) as error:
            raise ModelFileError(
                "no response template",
                where=where,
                wanted="transformers' response_template, version 1",
                got=spell(error, str),
                fix="correct it, or leave it out: what stands around the parts of an answer is "
                "found in the chat template, too",
            ) from error
        self.fields = tuple(field for field in fields if field.open is not None)
        self.rest = rest[0] if rest else None
        self.start = start

    def after_start(self, prompt: str) -> str | None:
        """Return what follows the last start of an answer in a prompt; None: there is none."""
        *_, last = [None, *find_all(self.start.pattern, prompt)]
        return None if last is None else prompt[last.end() :]

    def without_calls(self) -> ResponseTemplate:
        """Return one for which calls are text like other text, where there is such text."""
        if self.rest is None:
            return self
        other = copy(self)
        other.fields = tuple(field for field in self.fields if field.kind != "call")
        return other

    def begins(self, template: ChatTemplate) -> bool:
        """Say whether a chat template's prompts end with its start."""
        try:
            prompt = template.render([{"role": "user", "content": "hello"}])
        except MtpcoreError:
            return False
        return self.after_start(prompt) is not None

    def has_calls_of(self, template: ChatTemplate, special: Collection[str]) -> bool:
        """Say whether the marks of its calls are in a chat template, or are control tokens."""
        anchors = [
            one
            for field in self.fields
            if field.kind == "call"
            for one in (field.open, field.close)
        ]
        marks = [mark for anchor in anchors if anchor is not None for mark in anchor.marks]
        return all(mark in template.source or mark in special for mark in marks)


def read_response_template(metadata: Metadata, file: str = "") -> ResponseTemplate | None:
    """Read the response template of a model file; None where it has none.

    Raises
    ------
    ModelFileError
        It is malformed.
    """
    source = metadata.get(RESPONSE_TEMPLATE_KEY)
    return None if source is None else ResponseTemplate(source, file)


def _decode(source: object) -> Any:
    if not isinstance(source, str):
        return source
    if len(source) > _LONGEST:
        raise ValueError(f"{len(source)} characters, of which {_LONGEST} are the most")
    return msgspec.json.decode(source)


def _read_field(name: str, spec: _FieldText) -> ResponseField:
    """Check a field; ValueError says what is wrong with it."""
    if name not in _KINDS:
        raise ValueError(f"a field {name!r}, of which no API knows; there are {', '.join(_KINDS)}")
    if spec.content not in READERS:
        raise ValueError(f"{name}: no reader {spec.content!r}; there are {', '.join(READERS)}")
    try:
        reader = msgspec.convert(spec.content_args, READERS[spec.content])
    except ValueError as error:
        raise ValueError(f"{name}: content_args: {error}") from error
    opened = Anchor.of(spec.open, spec.open_pattern, f"{name}: open")
    closed = Anchor.of(spec.close, spec.close_pattern, f"{name}: close")
    if spec.join is not None and not spec.repeats:
        raise ValueError(f"{name}: 'join', and it does not repeat")
    if spec.transform is None:
        groups = [group for one in (opened, closed) if one for group in one.pattern.groupindex]
        if groups or spec.transform_each:
            raise ValueError(f"{name}: groups or 'transform_each', and no 'transform' takes them")
    _check_transform(name, spec.transform)
    return ResponseField(
        name,
        _KINDS[name],
        opened,
        closed,
        reader,
        spec.repeats,
        spec.join,
        spec.transform,
        spec.transform_each,
    )


def _check_transform(name: str, shape: Any) -> None:
    """Raise ValueError for a text of which a place is but a part."""
    if isinstance(shape, dict | list):
        for inner in shape.values() if isinstance(shape, dict) else shape:
            _check_transform(name, inner)
    elif isinstance(shape, str) and _PLACE.search(shape) and not _PLACE.fullmatch(shape):
        raise ValueError(f"{name}: a place is all of a text of 'transform': {shape[:60]!r}")


def _fill(shape: Any, values: Mapping[str, Any]) -> Any:
    """Return a shape with values in its places; ValueError: there is no such value."""
    if isinstance(shape, dict):
        return {key: _fill(inner, values) for key, inner in shape.items()}
    if isinstance(shape, list):
        return [_fill(inner, values) for inner in shape]
    place = _PLACE.fullmatch(shape) if isinstance(shape, str) else None
    if place is None:
        return shape
    value: Any = values
    for key in place[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"nothing for {{{place[1]}}}")
        value = value[key]
    return value
