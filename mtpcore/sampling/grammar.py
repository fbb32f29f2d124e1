"""Grammars: the form that a text is to have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mtpcore.errors import MtpcoreError, SamplingError, spell

__all__ = ["Grammar", "read_grammar"]

_LONGEST = 1 << 20
"""Characters of a grammar: parsing takes time in proportion."""

_SPACES = r"[ ]|\n[ \t]{0,32}"
"""Between the parts of JSON: a model may not write line breaks without end."""

_REFERENCE = re.compile(r"@(\w+)")


class Grammar(msgspec.Struct, frozen=True):
    """The form of a text, as a context-free grammar; ``Sampling(grammar=...)`` takes one.

    A text ends where the grammar is complete, and nowhere else: there alone end-of-text tokens may
    be chosen. Tokens are the model's own: a grammar speaks of the text's bytes, and of control
    tokens by their number, as ``<[151657]>``.

    Parameters
    ----------
    source : str
        In the Lark notation of llguidance, whose rule ``start`` is the whole text; or in GBNF,
        llama.cpp's notation, whose rules are written with ``::=`` and begin with ``root``.
    parts : mapping of str to Grammar, optional
        Grammars that ``source``, in Lark, refers to as ``@name``.

    Raises
    ------
    SamplingError
        No text, one that is too long, or a part that is missing. What the text says is checked when
        a model's vocabulary is known: by ``Generator.add`` and ``LM.generate``.

    Examples
    --------
    >>> Grammar.of_regex("[0-9]+ (cats|dogs)").source
    'start: /[0-9]+ (cats|dogs)/'
    """

    source: str
    parts: Mapping[str, Grammar] = {}

    def __post_init__(self) -> None:
        """Check what can be checked without a vocabulary."""
        if not isinstance(self.source, str):
            raise _bad("a grammar is a text", got=spell(self.source))
        if len(self.source) > _LONGEST:
            raise _bad(
                "the grammar is too long", wanted=f"{_LONGEST} characters", got=len(self.source)
            )
        parts = self.parts
        if not isinstance(parts, Mapping) or not all(
            isinstance(one, Grammar) for one in parts.values()
        ):
            raise _bad("parts of a grammar are grammars by name", got=spell(parts))
        msgspec.structs.force_setattr(self, "parts", dict(parts))

    def __hash__(self) -> int:
        return hash((self.source, *self.parts.items()))

    @classmethod
    def of_schema(cls, schema: object) -> Grammar:
        """Return the form of JSON that a JSON schema describes.

        Objects may have further members, as the standard says, unless ``additionalProperties`` is
        false; those of a type have none but its own. Between parts there may be a space, or a line
        break with an indentation.

        Parameters
        ----------
        schema : mapping, bool, str or type
            A schema; one as JSON text; or a type of msgspec, pydantic or the standard library
            (a struct, a model, a dataclass, a ``TypedDict``, ``list[int]``).

        Raises
        ------
        SamplingError
            None of these.
        """
        read = _read_schema(schema)
        if isinstance(read, dict):
            read = {"x-guidance": {"whitespace_pattern": _SPACES}} | read
        try:
            return cls(f"start: %json {json.dumps(read)}")
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, MtpcoreError):
                raise
            raise _bad("the schema is no JSON", got=error) from error

    @classmethod
    def of_regex(cls, pattern: str) -> Grammar:
        """Return the form of texts that match a regular expression as a whole.

        Parameters
        ----------
        pattern : str
            In Rust's syntax, without look-around and without references to groups.

        Raises
        ------
        SamplingError
            No text.
        """
        if not isinstance(pattern, str):
            raise _bad("a regular expression is a text", got=spell(pattern))
        escaped = re.sub(r"\\.|/", lambda m: r"\/" if m[0] == "/" else m[0], pattern, flags=re.S)
        return cls(f"start: /{escaped}/".replace("\n", r"\n"))

    @property
    def is_gbnf(self) -> bool:
        """Whether the source is in llama.cpp's notation."""
        return re.search(r"^\s*[\w-]+\s*::=", self.source, re.M) is not None


def read_grammar(grammar: object) -> Grammar | None:
    """Return a grammar, also where its source is given; None for none.

    Raises
    ------
    SamplingError
        Something else.
    """
    if grammar is None or isinstance(grammar, Grammar):
        return grammar
    if isinstance(grammar, str):
        return Grammar(grammar)
    raise _bad(
        "a grammar is a Grammar, or its text",
        got=spell(grammar),
        fix="Grammar.of_schema(schema), Grammar.of_regex(pattern) or Grammar(lark)",
    )


def _read_schema(given: Any) -> Any:
    """Return a schema as JSON has it."""
    try:
        if isinstance(given, str | bytes):
            return json.loads(given)
        if isinstance(given, bool):
            return given
        if isinstance(given, Mapping):
            return dict(given)
        if hasattr(given, "model_json_schema"):
            return _closed(given.model_json_schema())
        return _closed(msgspec.json.schema(given))
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's mapping or type raises
        raise _bad(
            "no JSON schema",
            wanted="a mapping, its JSON text, or a type of msgspec, pydantic or dataclasses",
            got=spell(error, str),
        ) from error


def _closed(schema: Any) -> Any:
    """Return the schema of a type, whose objects have no members but those that it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _closed(one) for name, one in schema.items()}
    return {"additionalProperties": False} | inner if "properties" in schema else inner


def _bad(what: str, *, wanted: object = None, got: object = None, fix: str = "") -> SamplingError:
    return SamplingError(what, where="grammar", wanted=wanted, got=got, fix=fix)
