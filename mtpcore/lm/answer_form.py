"""The form of an answer in a chat: reasoning, then what was asked for, or calls of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mtpcore.errors import SamplingError, spell
from mtpcore.gguf.answer_format import A_NUMBER, A_WORD, AN_ID, AnswerFormat, CallText
from mtpcore.gguf.elements import ElementMarks
from mtpcore.gguf.response_template import ResponseTemplate
from mtpcore.gguf.template_parser import TemplateAnswerParser
from mtpcore.gguf.tokenizer import Tokenizer
from mtpcore.gguf.vocabulary import SPECIAL
from mtpcore.gguf.written_calls import written_format
from mtpcore.lm.call_arguments import ArgumentRules
from mtpcore.runtime.model import Model
from mtpcore.sampling import Grammar, Sampling

__all__ = ["answering", "find_form", "form_answer", "read_choice", "read_response_format"]

_TAIL = 64
"""Tokens of the end of a prompt, which may open the reasoning."""
_BREAKS = r"/[ \n]{1,4}/?"
"""Between reasoning and what follows it."""
_ANY_TEXT = "/(?s:.*)/"
_EMPTY = '""'
_SIGNS = {AN_ID: "/[a-zA-Z0-9]{9}/", A_NUMBER: "/[0-9]{1,3}/", A_WORD: "/[a-zA-Z]{1,8}/"}


def read_response_format(given: object) -> Grammar | None:
    """Return the form that ``response_format`` asks for, as OpenAI's API has it, or a type.

    Parameters
    ----------
    given : mapping, type or None
        ``{"type": "text"}``, ``{"type": "json_object"}``, ``{"type": "json_schema",
        "json_schema": {"schema": ...}}``; or what ``Grammar.of_schema`` takes.

    Raises
    ------
    SamplingError
        Something else.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return Grammar.of_schema(given)
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.of_schema(given.get("schema") or {"type": "object"})
    if kind == "json_schema":
        inner = given.get("json_schema", given)
        if not isinstance(inner, Mapping) or "schema" not in inner:
            raise SamplingError(
                "a response_format of the type json_schema has a schema",
                where="response_format",
                wanted='{"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}',
                got=spell(given),
            )
        return Grammar.of_schema(inner["schema"])
    raise SamplingError(
        "no response_format",
        where="response_format",
        wanted="text, json_object or json_schema as its type, or a type of Python",
        got=spell(given),
    )


class CallChoice(NamedTuple):
    """Which tools may be called in an answer.

    Attributes
    ----------
    must_call : bool
        Whether one is called in place of an answer.
    names : tuple of str, optional
        Those that may be called; None: all of them.
    calls_several : bool
        Whether there may be several calls.
    """

    must_call: bool = False
    names: tuple[str, ...] | None = None
    calls_several: bool = True


_CHOICES = {
    "auto": CallChoice(),
    "none": CallChoice(names=()),
    "required": CallChoice(must_call=True),
}


def read_choice(choice: object) -> CallChoice:
    """Return which tools may be called.

    Parameters
    ----------
    choice : str or mapping
        ``auto``, ``none`` or ``required``; or as OpenAI's APIs name a function, which is then
        called once: ``{"type": "function", "function": {"name": ...}}``; or some, of which one may
        or must be called: ``{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or
        "required", "tools": [...]}}``. What these hold may stand at their top, too.

    Raises
    ------
    SamplingError
        None of these.
    """
    if isinstance(choice, str) and choice in _CHOICES:
        return _CHOICES[choice]
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
        tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
        names = [*map(_function_name, tools)] if isinstance(tools, Sequence) else []
        named = tuple(name for name in names if name is not None)
        if mode in ("auto", "required") and named and len(named) == len(names):
            return CallChoice(must_call=mode == "required", names=named)
    elif (name := _function_name(choice)) is not None:
        return CallChoice(must_call=True, names=(name,), calls_several=False)
    raise SamplingError(
        "no tool_choice",
        where="tool_choice",
        wanted="'auto', 'none', 'required', a function, as "
        '{"type": "function", "function": {"name": ...}}, or some, as {"type": "allowed_tools", '
        '"allowed_tools": {"mode": "auto" or "required", "tools": [a function, ...]}}',
        got=spell(choice),
    )


def _function_name(named: object) -> str | None:
    """Return the name of the function that is named as OpenAI's APIs do; None: none is."""
    if not isinstance(named, Mapping) or named.get("type") != "function":
        return None
    function = named.get("function", named)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def answering(
    model: Model,
    prompt: Sequence[int],
    sampling: Sampling,
    tools: Sequence[Mapping[str, Any]] = (),
    choice: object = "auto",
) -> Sampling:
    """Return settings whose grammar, if one is needed, is that of ``find_form``."""
    form = find_form(model, prompt, sampling.grammar, tools=tools, choice=choice)
    return sampling if form is None else msgspec.structs.replace(sampling, grammar=form)


def find_form(
    model: Model,
    prompt: Sequence[int],
    answer: Grammar | None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    choice: object = "auto",
    calls_several: bool = True,
) -> Grammar | None:
    """Return the form of an answer, as ``form_answer`` makes it, where it needs one; else None.

    Calls of tools have one where a tool must be called, where only some may be, where one of them
    is ``strict``, and where what is said has one.

    Parameters
    ----------
    model, prompt, answer, tools, calls_several
        As ``form_answer`` takes them; of tools, those without a name cannot be called.
    choice : str or mapping
        As ``read_choice`` takes it.

    Raises
    ------
    SamplingError
        As ``read_choice`` and ``form_answer``, or a tool that there is not.
    """
    asked, functions = read_choice(choice), [*_functions(tools)]
    known = [tool["name"] for tool in functions]
    if not {*(asked.names or ())} <= {*known} or (asked.must_call and not known):
        raise SamplingError(
            "there is no such tool",
            where="tool_choice",
            got=spell(choice),
            wanted=f"one of {', '.join(known) or 'no tools'}",
        )
    if asked.names is not None:
        functions = [tool for tool in functions if tool["name"] in asked.names]
    is_strict = bool(asked.names) or any(tool.get("strict") is True for tool in functions)
    may_call = answer is not None and _format_of(model).calls is not None
    if answer is None and not asked.must_call and not is_strict:
        return None
    return form_answer(
        model,
        prompt,
        answer,
        tools=functions if asked.must_call or is_strict or may_call else (),
        must_call=asked.must_call,
        calls_several=calls_several and asked.calls_several,
    )


def _functions(tools: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the functions among tools; what has no name cannot be called."""
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            yield function


def form_answer(
    model: Model,
    prompt: Sequence[int],
    answer: Grammar | None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    must_call: bool = False,
    calls_several: bool = True,
) -> Grammar:
    """Return the form of an answer to a conversation, in the marks of the model's chat template.

    Reasoning is free up to its end mark. It may be left out where the prompt does not open it, and
    is not there where the prompt has closed it, or the template shows no marks.

    Parameters
    ----------
    model : Model
    prompt : sequence of int
        The tokens that the answer follows.
    answer : Grammar or None
        The form of what is said; None: any.
    tools : sequence of mappings
        Tools that may be called, as OpenAI's API has them: their arguments follow their schemas.
    must_call : bool
        Whether a tool is called in place of an answer.
    calls_several : bool
        Whether several tools may be called.

    Raises
    ------
    SamplingError
        Tools, and it is not known how the model writes calls.
    """
    marks, form = _Marks(model.tokenizer), _format_of(model)
    rules: list[str] = []
    parts: dict[str, Grammar] = {}
    tail = marks.tokenizer.decode(prompt[-_TAIL:], special=True)
    given = form.opened if form.opened and tail.rstrip().endswith(form.opened) else ""
    before = _before(form, marks, tail, given, rules)
    ways = []
    if not must_call and answer is not None:
        parts["answer"] = answer
        ways.append(f"{before.answer} @answer")
    if tools:
        text = None if form.calls is None else form.calls.text
        if form.calls is None or text is None:
            raise SamplingError(
                "it is not known how the model writes calls of tools",
                where=str(model.path),
                fix="let the model decide: tool_choice 'auto', without strict",
            )
        if text.values is not None:
            _check_names(model, text, tools)
        begin = form.calls.begin
        rules += _calls(marks, text, tools, parts, several=calls_several)
        rest = f"{marks.spell(text.before.removeprefix(begin))} calls"
        if must_call or answer is not None or given:
            ways.append(f"{before.call} {marks.spell(begin.removeprefix(given))} {rest}")
        if not must_call and answer is None:
            rules += [*marks.until("said", begin), *marks.free("anything", begin)]
            ways.append(f"{before.text} (said {rest} | anything)")
    return Grammar("\n".join([f"start: {' | '.join(ways)}", *rules]), parts)


def _format_of(model: Model) -> AnswerFormat:
    """Return the form of answers: as the chat template shows it, or a response template reads it.

    The first says how a model was taught to write, where it shows all of a call, and the second
    reads that.
    """
    shown, template = model.answer_format, model.response_template
    if template is None or _reads(template, shown):
        return shown
    return written_format(template) or msgspec.structs.replace(shown, calls=None)


def _reads(template: ResponseTemplate, form: AnswerFormat) -> bool:
    """Say whether a template reads calls of a form, letter by letter."""
    text = None if form.calls is None else form.calls.text
    if text is None:
        return False
    is_json = text.argument is None and text.elements is None
    call = f"{text.before}f{text.middle}{'{}' if is_json else ''}{text.after}"
    for sign, sample in ((AN_ID, "a" * 9), (A_NUMBER, "0"), (A_WORD, "a")):
        call = call.replace(sign, sample)
    parser = TemplateAnswerParser(template, "", [{"function": {"name": "f"}}])
    parts = [*parser.feed(call), *parser.finish()]
    return [part.call.name if part.call else None for part in parts] == ["f"]


class _Before(NamedTuple):
    """The rules of what stands before a call, before what has a form, and before any text."""

    call: str
    answer: str
    text: str


def _before(form: AnswerFormat, marks: _Marks, tail: str, given: str, rules: list[str]) -> _Before:
    """Return what stands before the parts of an answer, and add its rules.

    ``tail`` is the end of the prompt, and ``given`` what it has of the mark of the first part.
    """
    content = marks.spell(form.content.removeprefix(given))
    may_say = content if given else content and f"({content})?"
    written = None if form.calls is None else form.calls.text
    has_space = given or tail[-1:].isspace()
    lead = "" if written is None or has_space else marks.spell(written.lead)
    tail = tail.rstrip()
    if form.reasoning is None or tail.endswith(form.reasoning[1]):
        return _Before(lead, may_say, may_say if given else "")
    opened, closed = form.reasoning
    rules += marks.until("thought", closed)
    thought = f"thought {_BREAKS}"
    if tail.endswith(opened):
        said = f"{thought} {may_say}"
        return _Before(thought, said, said if given else thought)
    thought = f"{marks.spell(opened)} {thought}"
    said = f"({thought} {may_say} | {content})" if content else f"({thought})?"
    may_think = f"({thought})?"
    return _Before(
        f"({thought} | {lead})" if lead else may_think, said, said if given else may_think
    )


def _check_names(model: Model, text: CallText, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise SamplingError for names with which a call would not be read as one."""
    assert model.response_template is not None
    assert text.values is not None
    for tool in tools:
        function = tool.get("function", tool)
        keys = [*((function.get("parameters") or {}).get("properties") or {})]
        said = text.values.comma.join(f"{key}{text.values.assign}0" for key in keys)
        said = said if text.values.assign else "{}"
        parser = TemplateAnswerParser(model.response_template, "", [{"function": {**function}}])
        call = f"{text.before}{function['name']}{text.middle}{said}{text.after}"
        parts = [*parser.feed(call), *parser.finish()]
        if [part.call.name if part.call else None for part in parts] != [function["name"]]:
            raise SamplingError(
                "the model has no way to write a call with these names",
                where=f"tool {function['name']!r}",
                got=", ".join(keys),
                wanted="words of letters, digits and _",
            )


def _calls(
    marks: _Marks,
    text: CallText,
    tools: Sequence[Mapping[str, Any]],
    parts: dict[str, Grammar],
    *,
    several: bool,
) -> list[str]:
    """Return the rules of calls, after what stands before the first one."""
    rules: list[str] = []
    ways = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        schema = function.get("parameters") or {"type": "object"}
        name = arguments = f"arguments{i}"
        if text.values is not None:
            rules += ArgumentRules(name, schema, text.values, marks.spell, parts).rules
        elif text.elements is not None:
            rules += _elements(marks, text.elements, name, schema, parts)
        elif text.argument is not None:
            rules += _tagged(marks, text.argument, name, schema, parts)
        else:
            parts[name] = Grammar.of_schema(schema)
            arguments = f"@{name}"
        ways.append(f"{json.dumps(function['name'])} {marks.spell(text.middle)} {arguments}")
    is_alone = not several or text.between is None
    more = "" if is_alone else f"({marks.spell(text.between or '')} call)*"
    return [*rules, f"call: {' | '.join(ways)}", f"calls: call {more} {marks.spell(text.after)}"]


def _tagged(
    marks: _Marks,
    argument: tuple[str, str, str],
    name: str,
    schema: Mapping[str, Any],
    parts: dict[str, Grammar],
) -> list[str]:
    """Return the rules of arguments that stand between marks."""
    opened, between, closed = argument
    rules, values = [], {}
    for j, (key, one) in enumerate((schema.get("properties") or {}).items()):
        value = f"{name}_{j}"
        rules += _value(marks, value, _with_definitions(one, schema), closed, parts)
        values[key] = f"{marks.spell(opened)} {json.dumps(key)} {marks.spell(between)} {value}"
    return [*rules, _members(name, values, schema)]


def _elements(
    marks: _Marks,
    elements: ElementMarks,
    name: str,
    schema: Mapping[str, Any],
    parts: dict[str, Grammar],
) -> list[str]:
    """Return the rules of the elements that are an object's members."""
    rules, values = [], {}
    for j, (key, one) in enumerate((schema.get("properties") or {}).items()):
        values[key] = f"{name}_{j}"
        rules += _element(marks, elements, values[key], key, _with_definitions(one, schema), parts)
    return [*rules, _members(name, values, schema)]


def _element(
    marks: _Marks,
    elements: ElementMarks,
    name: str,
    key: str,
    schema: Any,
    parts: dict[str, Grammar],
) -> list[str]:
    """Return the rules of an element: of others where its value is an object or a list."""
    opened, closed, held = elements.open(key), elements.close(key), f"{name}_held"
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "object" and schema.get("properties"):
        rules = _elements(marks, elements, held, schema, parts)
    elif kind == "array" and elements.item and "items" in schema:
        item, few, most = f"{name}_item", schema.get("minItems", 0), schema.get("maxItems", "")
        items = _with_definitions(schema["items"], schema)
        rules = _element(marks, elements, item, elements.item, items, parts)
        rules.append(f"{held}: {item}{{{few},{most}}}")
    else:
        rules = _value(marks, held, schema, closed, parts)
        return [*rules, f"{name}: {marks.spell(opened)} {held}"]
    return [*rules, f"{name}: {marks.spell(opened)} {held} {marks.spell(closed)}"]


def _members(name: str, values: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """Return the rule of an object's members, some of which may be left out."""
    required = schema.get("required") or ()
    items = [f"({value})" if key in required else f"({value})?" for key, value in values.items()]
    return f"{name}: {' '.join(items) or _EMPTY}"


def _with_definitions(schema: Any, outer: Mapping[str, Any]) -> Any:
    """Return a schema with what it may refer to."""
    definitions = {"$defs": outer["$defs"]} if "$defs" in outer else {}
    return {**schema, **definitions} if isinstance(schema, Mapping) else schema


def _value(
    marks: _Marks, name: str, schema: Any, closed: str, parts: dict[str, Grammar]
) -> list[str]:
    """Return the rule of a value and the mark after it: texts are as they are, others JSON."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        words = schema.get("enum")
        if words and all(isinstance(word, str) for word in words):
            return [f"{name}: ({' | '.join(map(json.dumps, words))}) {marks.spell(closed)}"]
        return marks.until(name, closed)
    parts[name] = Grammar.of_schema(schema)
    return [f"{name}: @{name} {marks.spell(closed)}"]


class _Marks:
    """Marks of a template in the notation of grammars: control tokens by number, others as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.vocabulary
        self._ids = {
            text: token
            for token, (text, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if kind in SPECIAL and text
        }
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, [*_SIGNS, *longest_first])))

    def spell(self, text: str) -> str:
        """Return the rule of a text with control tokens in it."""
        return " ".join(self._items(text))

    def until(self, name: str, mark: str) -> list[str]:
        """Return rules of any text up to the first place of a mark, with the mark."""
        first, *rest = self._items(mark)
        if first.startswith("<"):
            before = f"{name}_before"
            return [*self.free(before, mark), f"{name}: {before} {first} {' '.join(rest)}"]
        terminal = name.upper()
        return [
            f"{name}: {terminal} {' '.join(rest)}",
            f"{terminal}: ({_ANY_TEXT} & ~({_ANY_TEXT} {first} {_ANY_TEXT})) {first}",
        ]

    def free(self, name: str, mark: str) -> list[str]:
        """Return rules of any text without a mark."""
        first = self._items(mark)[0]
        if first.startswith("<"):
            kept = sorted({int(first[2:-2]), *self.tokenizer.end_tokens})
            return [f"{name}: <[^{','.join(map(str, kept))}]>*"]
        terminal = name.upper()
        return [
            f"{name}: {terminal}",
            f"{terminal}: {_ANY_TEXT} & ~({_ANY_TEXT} {first} {_ANY_TEXT})",
        ]

    def _items(self, text: str) -> list[str]:
        items, end = [], 0
        for found in self._control.finditer(text):
            if found.start() > end:
                items.append(json.dumps(text[end : found.start()], ensure_ascii=False))
            sign = _SIGNS.get(found[0])
            items.append(sign or f"<[{self._ids[found[0]]}]>")
            end = found.end()
        if end < len(text):
            items.append(json.dumps(text[end:], ensure_ascii=False))
        return items
