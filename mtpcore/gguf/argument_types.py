"""Arguments of calls that are texts, read as the types that a tool declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtpcore.gguf.call_list import read_literal

__all__ = ["properties_of", "read_untyped", "type_arguments", "type_text", "types_of"]


def properties_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters."""
    parameters = function.get("parameters") or function.get("input_schema") or {}
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def type_arguments(arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of the types that a tool declares, where a text can be read as one.

    Items of a list are, too, where the type is no list: the values of a tag that came again.
    """
    typed = dict(arguments)
    for key, value in arguments.items():
        types = types_of(properties.get(key))
        if isinstance(value, str):
            typed[key] = type_text(value, types)
        elif isinstance(value, list) and types and "array" not in types:
            typed[key] = [
                type_text(item, types) if isinstance(item, str) else item for item in value
            ]
    return typed


def read_untyped(text: str, schema: object) -> Any:
    """Return a text as a type that a schema names; as JSON where it names none that it can be."""
    types = types_of(schema)
    value = type_text(text, types)
    if value is not text or "string" in types:
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def types_of(schema: object) -> list[str]:
    """Return the types that a schema names, of its alternatives, too."""
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    types = [one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)]
    for key in ("anyOf", "oneOf"):
        for one in schema.get(key) or ():
            types += types_of(one)
    return [*types, "null"] if schema.get("nullable") and "null" not in types else types


def type_text(text: str, types: Sequence[str]) -> Any:
    """Return a text as the first type that it can be read as; else as it is."""
    for kind in types:
        try:
            return _READ[kind](text)
        except (KeyError, ValueError, RecursionError):
            continue
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError("no number of JSON's")
    return int(number) if number.is_integer() and "." not in text else number


def _one_of(words: Mapping[str, Any], text: str) -> Any:
    if text not in words:
        raise ValueError("another word")
    return words[text]


def _collection(kind: type, text: str) -> Any:
    """Return an object or a list, in JSON or as Python writes it, as some templates do."""
    try:
        value = json.loads(text)
    except ValueError:
        value = read_literal(text)
    if not isinstance(value, kind):
        raise ValueError("of another type")
    return value


_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_NOTHING = {"null": None, "None": None}
_READ: Mapping[str, Callable[[str], Any]] = {
    "integer": _whole,
    "number": _number,
    "boolean": lambda text: _one_of(_TRUTH, text.strip().lower()),
    "null": lambda text: _one_of(_NOTHING, text.strip()),
    "object": lambda text: _collection(dict, text),
    "array": lambda text: _collection(list, text),
}
