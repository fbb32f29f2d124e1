"""Arguments of calls that are not written as JSON: rules of a grammar from their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from mtpcore.errors import SamplingError, spell
from mtpcore.gguf.answer_format import ValueText
from mtpcore.sampling import Grammar

__all__ = ["ArgumentRules"]

_NOTES = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "strict"),
    }
)
"""Keywords that say nothing of values."""
_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"}
    ),
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_ANY = "any_value"
_ANY_TEXT = "/(?s:.*)/"
_EMPTY = '""'
_WORD = re.compile(r"\w+")


class ArgumentRules:
    """Rules of the arguments of one function.

    Parameters
    ----------
    name : str
        With which the names of the rules begin.
    schema : mapping
        Of the object that arguments are.
    values : ValueText
        How they are written.
    spell : callable
        Returns the rule of a text that may have control tokens in it.
    parts : dict of str to Grammar
        Gets the grammars that the rules refer to.

    Attributes
    ----------
    rules : list of str
        The first is that of all arguments.

    Raises
    ------
    SamplingError
        The schema says something of which it is not known how to write it.
    """

    def __init__(
        self,
        name: str,
        schema: Mapping[str, Any],
        values: ValueText,
        spell: Callable[[str], str],
        parts: dict[str, Grammar],
    ) -> None:
        self._name, self._values, self._spell, self._parts = name, values, spell, parts
        self._root, self._rules = schema, dict[str, str]()
        self._references: dict[str, str] = {}
        if values.assign:
            whole = self._members(schema, lambda key: spell(f"{key}{values.assign}"))
        else:
            whole = self._object(schema)
        self.rules = [f"{name}: {whole}", *(f"{one}: {rule}" for one, rule in self._rules.items())]

    def _value(self, schema: Any) -> str:
        """Return the rule of a value."""
        if schema is True or schema == {}:
            return self._any()
        if not isinstance(schema, Mapping):
            self._refuse("schema", schema)
        said = {key: value for key, value in schema.items() if key not in _NOTES}
        if not said:
            return self._any()
        if "$ref" in said:
            self._only(said, "$ref")
            return self._reference(said["$ref"])
        if "const" in said:
            return self._literal(said["const"])
        if "enum" in said:
            self._only(said, "enum", "type")
            return self._either(map(self._literal, said["enum"]))
        if "anyOf" in said:
            self._only(said, "anyOf")
            return self._either(map(self._value, said["anyOf"]))
        if "allOf" in said and len(said["allOf"]) == 1:
            self._only(said, "allOf")
            return self._value(said["allOf"][0])
        kinds = said.pop("type", None)
        if kinds is None:
            kinds = [kind for kind in ("object", "array") if said.keys() & _OF_TYPE[kind]]
            if len(kinds) != 1:
                self._refuse("a schema without a type", schema)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        known = frozenset[str]().union(*(_OF_TYPE.get(kind, ()) for kind in kinds))
        self._only(said, *known)
        return self._either(
            self._typed(kind, {key: said[key] for key in said if key in _OF_TYPE.get(kind, ())})
            for kind in kinds
        )

    def _typed(self, kind: str, said: Mapping[str, Any]) -> str:
        if kind == "object":
            return self._object(said)
        if kind == "array":
            return self._array(said)
        if kind == "string":
            return self._text(said)
        if kind in ("integer", "number"):
            return self._number(kind, said)
        if kind == "boolean":
            return self._either(
                json.dumps(word) for words in self._values.words[:2] for word in words
            )
        if kind == "null":
            return self._either(map(json.dumps, self._values.words[2]))
        self._refuse("type", kind)

    def _object(self, said: Mapping[str, Any]) -> str:
        properties, others = said.get("properties"), said.get("additionalProperties", True)
        if properties or others is False or said.get("required"):
            return f'"{{" {self._members(said, self._key)} "}}"'
        value = self._rule(self._value(others))
        member = f"{self._any_key()} {json.dumps(self._values.colon)} {value}"
        return f'"{{" ({member} ({json.dumps(self._values.comma)} {member})*)? "}}"'

    def _members(self, schema: Mapping[str, Any], key: Callable[[str], str]) -> str:
        """Return the rule of an object's members, which come in the order of its schema."""
        self._only(
            {name: value for name, value in schema.items() if name not in _NOTES},
            *("type", *_OF_TYPE["object"]),
        )
        properties = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        if missing := required - properties.keys():
            self._refuse("required", sorted(missing))
        first, later = _EMPTY, _EMPTY  # what follows: where nothing was written, and after a member
        for name, one in reversed(properties.items()):
            item = f"{key(name)} {self._rule(self._value(one))}"
            rest = self._rule(later)
            comma = json.dumps(self._values.comma)
            if name in required:
                first, later = f"{item} {rest}", f"{comma} {item} {rest}"
            else:
                first = f"{item} {rest} | {self._rule(first)}"
                later = f"{comma} {item} {rest} | {rest}"
        return f"({first})"

    def _array(self, said: Mapping[str, Any]) -> str:
        item = self._rule(self._value(said.get("items", True)))
        least, most = said.get("minItems", 0), said.get("maxItems")
        if most is not None and most < least:
            self._refuse("maxItems", most)
        if most == 0:
            return '"[" "]"'
        more = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        items = f"{item} ({json.dumps(self._values.comma)} {item}){{{more}}}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _text(self, said: Mapping[str, Any]) -> str:
        values = self._values
        if values.quotes is None:
            ways = [self._part({"type": "string", **said})]
            if values.plain_quote and "format" not in said:
                sign = values.plain_quote
                inside = " & ".join([rf"/[^{sign}\\\n\r]*/", *_limits(said)])
                ways.append(self._rule(f'"{sign}" ({inside}) "{sign}"', is_terminal=True))
            return self._either(ways)
        opened, closed = values.quotes
        self._only(said, "pattern", "minLength", "maxLength")
        end = json.dumps(closed, ensure_ascii=False)
        # The reader sets texts aside by these two characters.
        wanted = [r"/[^\x01\x02]*/", f"~({_ANY_TEXT} {end} {_ANY_TEXT})", *_limits(said)]
        inside, mark = f"({' & '.join(wanted)})", self._spell(closed)
        if mark.startswith("<"):  # a control token, which no text has
            return f"{self._spell(opened)} {self._rule(inside, is_terminal=True)} {mark}"
        return f"{self._spell(opened)} {self._rule(f'{inside} {mark}', is_terminal=True)}"

    def _number(self, kind: str, said: Mapping[str, Any]) -> str:
        largest = self._values.largest
        said = {key: one for key, one in said.items() if key != "format"}  # how wide it is stored
        if largest is not None and kind == "integer":
            said = {
                **said,
                "minimum": max(-largest, said.get("minimum", -largest)),
                "maximum": min(largest, said.get("maximum", largest)),
            }
        return self._part({"type": kind, **said})

    def _reference(self, path: str) -> str:
        if path not in self._references:
            self._references[path] = name = f"{self._name}_r{len(self._references)}"
            found: Any = self._root if path.startswith("#") else None
            for key in path.removeprefix("#").strip("/").split("/"):
                if key:
                    found = found.get(key) if isinstance(found, Mapping) else None
            if found is None:
                self._refuse("$ref", path)
            self._rules[name] = _EMPTY  # its place
            self._rules[name] = self._value(found)
        return self._references[path]

    def _any(self) -> str:
        """Return the rule of any value."""
        name = f"{self._name}_{_ANY}"
        if name not in self._rules:
            self._rules[name] = _EMPTY  # its place
            comma, colon = json.dumps(self._values.comma), json.dumps(self._values.colon)
            member = f"{self._any_key()} {colon} {name}"
            leaves = (self._typed(kind, {}) for kind in ("string", "number", "boolean", "null"))
            self._rules[name] = " | ".join(
                [
                    *leaves,
                    f'"[" ({name} ({comma} {name})*)? "]"',
                    f'"{{" ({member} ({comma} {member})*)? "}}"',
                ]
            )
        return name

    def _any_key(self) -> str:
        return "/[A-Za-z_][A-Za-z0-9_]*/" if self._values.bare_keys else self._text({})

    def _part(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of a value of JSON."""
        part = Grammar.of_schema(schema)
        begin = f"{self._name}_j"
        name = next(
            (one for one, known in self._parts.items() if one.startswith(begin) and known == part),
            f"{begin}{len(self._parts)}",
        )
        self._parts[name] = part
        return f"@{name}"

    def _rule(self, body: str, *, is_terminal: bool = False) -> str:
        """Return the name of a rule, which is made where there is none; short ones stay."""
        if re.fullmatch(r'@?\w+|""', body):
            return body
        name = next((name for name, one in self._rules.items() if one == body), None)
        if name is None:
            name = f"{self._name}_{len(self._rules)}"
            name = name.upper() if is_terminal else name
            self._rules[name] = body
        return name

    def _key(self, name: str) -> str:
        """Return the rule of a key and what follows it."""
        is_word = self._values.bare_keys and _WORD.fullmatch(name)
        key = self._spell(name) if is_word else self._literal(name)
        return f"{key} {json.dumps(self._values.colon)}"

    def _literal(self, value: Any) -> str:
        """Return the rule of one value."""
        found, sign = [self._spell(self._write(value))], self._values.plain_quote
        if sign and isinstance(value, str) and not re.search(rf"[{sign}\\\n\r]", value):
            found.append(self._spell(f"{sign}{value}{sign}"))
        return self._either(found)

    def _write(self, value: Any) -> str:
        """Return a value as it is written."""
        values = self._values
        if isinstance(value, str):
            if values.quotes is None:
                return json.dumps(value, ensure_ascii=False)
            if values.quotes[1] in value:
                self._refuse("a text", value)
            return value.join(values.quotes)
        for one, words in zip((True, False, None), values.words, strict=True):
            if value is one:
                return words[0]
        if isinstance(value, Mapping):
            members = (
                f"{self._write_key(key)}{values.colon}{self._write(one)}"
                for key, one in value.items()
            )
            return f"{{{values.comma.join(members)}}}"
        if isinstance(value, list):
            return f"[{values.comma.join(map(self._write, value))}]"
        return json.dumps(value)

    def _write_key(self, name: str) -> str:
        is_word = self._values.bare_keys and _WORD.fullmatch(name)
        return name if is_word else self._write(name)

    def _either(self, ways: Iterable[str]) -> str:
        found = list(dict.fromkeys(ways))
        if not found:
            self._refuse("enum or anyOf", [])
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def _only(self, said: Mapping[str, Any], *known: str) -> None:
        for keyword in said.keys() - {*known}:
            self._refuse(keyword, said[keyword])

    def _refuse(self, keyword: str, got: object) -> NoReturn:
        raise SamplingError(
            "it is not known how the model writes such arguments",
            where=f"a tool's schema: {keyword}",
            got=spell(got),
            fix="leave it out, or let the model decide: tool_choice 'auto', without strict",
        )


def _limits(said: Mapping[str, Any]) -> list[str]:
    """Return what a text is besides, by its pattern and its length."""
    found = []
    if "pattern" in said:
        pattern = said["pattern"].replace("/", r"\/").replace("\n", r"\n")
        begin = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else "(?s:.*)"
        found.append(f"/{begin}({pattern.removeprefix('^').removesuffix('$')}){end}/")
    if "minLength" in said or "maxLength" in said:
        found.append(f"/(?s:.){{{said.get('minLength', 0)},{said.get('maxLength', '')}}}/")
    return found
