"""The form of answers: where a model's text holds reasoning, calls of tools, and what is said.

Files say how a conversation is written, and not how an answer is to be read. So short conversations
are rendered, with reasoning and with calls, and what stands around them are the marks; llama.cpp's
differential parser (``common/chat-diff-analyzer.cpp``) finds them in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from mtpcore.errors import MtpcoreError
from mtpcore.gguf.chat import ChatTemplate
from mtpcore.gguf.elements import ElementMarks

__all__ = [
    "AN_ID",
    "A_NUMBER",
    "A_WORD",
    "AnswerFormat",
    "CallFormat",
    "CallText",
    "ValueText",
    "derive_format",
]

_SAID, _THOUGHT = "probecontent", "probereasoning"
_NAME, _ARGUMENTS = "probetool", {"probeplace": "probevalue", "probetime": "probehour"}
_ID = "call0000"  # and a digit: nine characters, as some templates want it
_QUESTION = {"role": "user", "content": "probequestion"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "a tool",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string", "description": name} for name in _ARGUMENTS},
            "required": [*_ARGUMENTS],
        },
    },
}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TAG = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])\s*\Z")
_NO_THOUGHT = re.compile(r"<([^<>\s/]+)>\s*</\1>\s*\Z")
Probing = Callable[..., str]
AN_ID, A_NUMBER, A_WORD = "\0", "\1", "\2"
"""What stands in the texts of calls for an id of nine letters and digits, a number, and a word."""


class ValueText(msgspec.Struct, frozen=True):
    """How the values of arguments are written, where that is not JSON.

    Attributes
    ----------
    quotes : (str, str), optional
        What stands around texts, which are without escapes then; None: texts are JSON's.
    plain_quote : str
        A sign around texts without it, without backslashes and line breaks; such texts may be
        written so, too.
    bare_keys : bool
        Whether keys that are words stand without quotes.
    comma, colon : str
        Between members, and between a key and its value.
    words : tuple of three tuples of str
        For true, false and null: a model may write any of these, the first of them rather.
    assign : str
        What stands between the name of an argument and its value, where arguments are no object.
    largest : int, optional
        The largest whole number that is read, and the smallest without its sign.
    """

    quotes: tuple[str, str] | None = None
    plain_quote: str = ""
    bare_keys: bool = False
    comma: str = ","
    colon: str = ":"
    words: tuple[tuple[str, ...], ...] = (("true",), ("false",), ("null",))
    assign: str = ""
    largest: int | None = None


class CallText(msgspec.Struct, frozen=True):
    """How calls are written, letter by letter; ids and numbers in it have signs of their own.

    That is ``before``, a name, ``middle`` and arguments; for each further call ``between``, a name,
    ``middle`` and arguments; and ``after``. With ``argument`` each argument is between its three
    marks, around a key and a value, and with ``elements`` it is one; else they are one object of
    JSON, or with ``values`` as these say. Without ``between`` there is one call. ``lead`` is the
    space between the beginning of an answer and ``before``.
    """

    before: str
    middle: str
    between: str | None
    after: str
    argument: tuple[str, str, str] | None = None
    values: ValueText | None = None
    elements: ElementMarks | None = None
    lead: str = ""


class CallFormat(msgspec.Struct, frozen=True):
    """How calls of tools are written.

    Attributes
    ----------
    begin : str
        The mark from which on a text holds calls.
    kind : {"json", "named", "tagged", "elements"}
        JSON with name and arguments; a name, then JSON with the arguments alone; name and
        arguments each between marks; or a name, then arguments as elements.
    name, arguments : str
        Of JSON the keys.
    open, middle : str
        Regular expressions of what stands before a name, and between it and its arguments.
    argument, close : str
        Of tagged ones regular expressions of an argument, with the groups ``key`` and ``value``,
        and of what ends a call.
    elements : ElementMarks, optional
        Of elements their marks.
    text : CallText, optional
        What a model is to write, where that is known.
    """

    begin: str
    kind: Literal["json", "named", "tagged", "elements"]
    name: str = "name"
    arguments: str = "arguments"
    open: str = ""
    middle: str = ""
    argument: str = ""
    close: str = ""
    elements: ElementMarks | None = None
    text: CallText | None = None


class AnswerFormat(msgspec.Struct, frozen=True):
    """The form of answers.

    Attributes
    ----------
    reasoning : (str, str), optional
        The marks around reasoning.
    content : str
        The mark before what is said, where answers without reasoning have one.
    calls : CallFormat, optional
        How calls are written.
    opened : str
        What prompts end with that belongs to the marks of what is said and of calls.
    """

    reasoning: tuple[str, str] | None = None
    content: str = ""
    calls: CallFormat | None = None
    opened: str = ""


def derive_format(template: ChatTemplate) -> AnswerFormat:
    """Find the form of answers of a template; what is not found is None."""

    def render(*messages: Mapping[str, Any], **more: Any) -> str:
        more = {"add_generation_prompt": False} | more
        try:
            return template.render([_QUESTION, *messages], **more)
        except MtpcoreError:  # it refuses such a conversation
            return ""

    reasoning = _find_reasoning(render, template.source)
    calls, opened = _find_calls(render, reasoning or ())
    content = _find_content(render, reasoning or (), opened)
    return AnswerFormat(reasoning, content, calls, opened)


def _find_content(render: Probing, reasoning: Sequence[str], opened: str = "") -> str:
    """Find the mark before what is said, of which a prompt may have the beginning."""
    before = render({"role": "assistant", "content": _SAID}).partition(_SAID)[0]
    found = _after(before, render(add_generation_prompt=True)).lstrip()
    if any(mark in found for mark in reasoning):
        return ""
    return f"{opened}{found}" if found and opened else found.rstrip()


def _find_reasoning(render: Probing, source: str) -> tuple[str, str] | None:
    """Find the marks around reasoning: of an answer that has some, or one that a prompt opens."""
    prompt = render(add_generation_prompt=True)
    with_tools = render(tools=[_TOOL], add_generation_prompt=True)
    plain = render({"role": "assistant", "content": _SAID})
    for key in _REASONING_KEYS:
        text = render({"role": "assistant", "content": _SAID, key: _THOUGHT})
        before, found, after = text.partition(_THOUGHT)
        between, said, _ = after.partition(_SAID)
        before_call, _, called = _say_calls(render, 1, **{key: _THOUGHT}).partition(_THOUGHT)
        if not said and called:  # they are written before calls alone
            opened, closed = _last_tag(before_call), _after(with_tools, before_call).strip()
            if opened and closed and called.lstrip().startswith(closed):
                return opened, closed
        if not found or not said:
            continue
        closed = between.strip()
        # The mark of what is said may follow, which a call has none of.
        shared = _whole_marks(between, called)
        if shared and closed.removeprefix(shared).strip() == _find_content(render, ()):
            closed = shared
        begun = prompt.removeprefix(before) if prompt.startswith(before) else ""
        for opened in (_after(before, prompt).strip() or _last_tag(before), begun.strip()):
            is_empty = re.search(rf"{re.escape(opened)}\s*{re.escape(closed)}", plain)
            is_own = opened not in plain or is_empty or prompt.rstrip().endswith(opened)
            if opened and closed and is_own:
                return opened, closed
    for text in (prompt, plain.partition(_SAID)[0]):  # as where the model is not to think
        if no_thought := _NO_THOUGHT.search(text):
            return f"<{no_thought[1]}>", f"</{no_thought[1]}>"
    opened = _last_tag(prompt)
    closed = f"</{opened[1:]}"
    if opened.startswith("<") and not opened.startswith("</") and closed in source:
        return opened, closed
    return None


def _after(text: str, prompt: str) -> str:
    """Return what follows in a text where it no longer is the prompt; no mark is cut."""
    n = _n_common(text, prompt)
    begin = text.rfind("<", 0, n)
    return text[begin if begin > text.rfind(">", 0, n) else n :]


def _whole_marks(one: str, other: str) -> str:
    """Return the marks with which both texts begin; neither is cut within a mark or a word."""
    n = _n_common(one, other)
    while n and not all(_is_between(text, n) for text in (one, other)):
        n -= 1
    return one[:n].strip()


def _is_between(text: str, n: int) -> bool:
    """Say whether a place in a text is at the end of a mark, or of a word outside of one."""
    if text.rfind("<", 0, n) > text.rfind(">", 0, n):
        return False
    return text[n - 1] in ">]" or text[n - 1].isspace() or text[n : n + 1] in (*"<[ \n", "")


def _n_common(one: str, other: str) -> int:
    """Return with how many equal characters two texts begin."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _last_tag(text: str) -> str:
    found = _TAG.search(text)
    return found[1] if found else ""


def _find_calls(render: Probing, reasoning: Sequence[str]) -> tuple[CallFormat | None, str]:
    """Find what stands around the parts of a call, and what of it prompts end with."""
    prompt = render(tools=[_TOOL], add_generation_prompt=True)
    header = prompt[_n_common(prompt, render(tools=[_TOOL])) :]
    plain = render({"role": "assistant", "content": _SAID}, tools=[_TOOL])
    end = plain.partition(_SAID)[2].strip()

    def read(n: int) -> tuple[str, str]:
        text = _say_calls(render, n)
        body = _after(text, prompt)
        n_shared = _n_common(text, prompt)
        begin = text.find(header, max(0, n_shared - len(header)))
        if header and 0 <= begin < text.find(
            _NAME, n_shared
        ):  # more may stand before it than in the prompt
            body = text[begin + len(header) :]
        lead, body = _split_space(_without_end(body.rstrip(), end).rstrip())
        for mark in reasoning:
            if body.startswith(mark):
                lead, body = _split_space(body.removeprefix(mark))
        return lead, body

    (lead, one), (_, two) = read(1), read(2)
    opened = _find_opened(two, prompt) if one.startswith(_NAME) else ""
    one, two = opened + one, opened + two
    found = _find_form(one, two, render)
    if found is None:
        return None, ""
    written = _find_text(one, two, found)
    if written is not None:
        written = msgspec.structs.replace(written, lead=lead)
    return msgspec.structs.replace(found, text=written), opened


def _split_space(text: str) -> tuple[str, str]:
    """Return the space with which a text begins, and the rest."""
    rest = text.lstrip()
    return text[: len(text) - len(rest)], rest


def _without_end(text: str, end: str) -> str:
    """Return a text without what ends all answers, of which it may have the last marks alone."""
    shared = _common_end(text, end)
    begin = 0 if shared == end else shared.find("<")
    return text[: len(text) - len(shared) + begin] if begin >= 0 else text


def _find_opened(two: str, prompt: str) -> str:
    """Find the mark before each of two calls, if a prompt ends with it."""
    begin = two.find("{")
    if begin < 0 or _decode(two, begin) != _ARGUMENTS:
        return ""
    end = json.JSONDecoder().raw_decode(two, begin)[1]
    mark = two[end:].partition(_NAME)[0].strip()
    return mark if prompt.rstrip().endswith(mark) else ""


def _find_form(one: str, two: str, render: Probing) -> CallFormat | None:
    """Find the form of calls, of the texts of one call and of two."""
    if _NAME not in one:
        return None
    opened = one.partition(_NAME)[0]
    before_second = two.rpartition(_NAME)[0]
    opened = _common_end(before_second, opened)
    opened = re.sub(r"\A[^<\[]*[>\]]", "", opened).strip()  # no part of a mark
    opened = opened or one.partition(_NAME)[0].strip()
    found = (
        _find_json(one)
        or _find_named(one, opened)
        or _find_elements(one, two, opened, render)
        or _find_tagged(one, two, opened)
    )
    probes = (_NAME, _ID, *_ARGUMENTS, *_ARGUMENTS.values())
    parts = [] if found is None else msgspec.structs.astuple(found)
    is_clean = not any(word in part for word in probes for part in parts if isinstance(part, str))
    return found if is_clean else None


def _say_calls(
    render: Probing, n: int, arguments: Mapping[str, Any] = _ARGUMENTS, /, **more: str
) -> str:
    """Return a conversation whose answer is so many calls, and what else a message has."""
    function = {"name": _NAME, "arguments": arguments}
    calls = [{"id": f"{_ID}{i}", "type": "function", "function": function} for i in range(n)]
    said = {"role": "assistant", "content": "", "tool_calls": calls, **more}
    return render(said, tools=[_TOOL])


def _find_text(one: str, two: str, form: CallFormat) -> CallText | None:
    """Find how calls are written letter by letter, of the texts of one call and of two."""
    one, two = (re.sub(rf"{_ID}\d", AN_ID, text) for text in (one, two))
    before, _, rest = one.partition(_NAME)
    (first, second), (value, other) = _ARGUMENTS.keys(), _ARGUMENTS.values()
    argument = None
    if form.elements is not None:
        middle = rest.partition(first)[0].removesuffix(form.elements.opened)
        closed = form.elements.close(second)
        begin, end = len(middle), rest.index(closed) + len(closed)
    elif form.kind == "tagged":
        lead, between, closing, _ = _cut(rest, (first, value, second, other))
        opened = _common_end(lead, closing)
        between = re.sub(r'="\w+"', f'="{A_WORD}"', between)  # it may say of what type a value is
        argument = opened, between, closing.removesuffix(opened)
        middle = lead.removesuffix(opened)
        begin, end = len(middle), rest.index(other) + len(other) + len(argument[2])
    else:
        begin = rest.find("{")
        if begin < 0 or _decode(rest, begin) != _ARGUMENTS:
            return None
        middle, end = rest[:begin], begin + json.JSONDecoder().raw_decode(rest, begin)[1] - begin
    after = rest[end:]
    calls = two.split(_NAME)
    numbered = re.sub(r"\d+", A_NUMBER, middle)
    if not before.startswith(form.begin):
        return None
    if two in ("", one):  # the template writes one call alone
        return CallText(before, numbered, None, after, argument, elements=form.elements)
    is_alike = re.sub(r"\d+", A_NUMBER, calls[-1]) == re.sub(r"\d+", A_NUMBER, rest)
    if len(calls) != 3 or calls[0] != before or not is_alike:
        return None
    return CallText(before, numbered, calls[1][end:], after, argument, elements=form.elements)


def _cut(text: str, words: Sequence[str]) -> list[str]:
    """Return what stands before each word."""
    parts = []
    for word in words:
        part, _, text = text.partition(word)
        parts.append(part)
    return parts


def _common_end(one: str, other: str) -> str:
    return one[len(one) - _n_common(one[::-1], other[::-1]) :]


def _begin(before: str) -> str:
    """Return the first mark of what stands before a call, which has no id in it."""
    words = before.partition(_ID)[0].split()
    return words[0] if words and not words[0].startswith("</") else ""


def _find_json(body: str) -> CallFormat | None:
    """Find JSON that has both name and arguments."""
    for found in re.finditer(r"[\[{]", body[: body.index(_NAME)]):
        value = _decode(body, found.start())
        one = value[0] if isinstance(value, list) and value else value
        if isinstance(one, dict) and isinstance(one.get("function"), dict):
            one = one["function"]
        if not isinstance(one, dict):
            continue
        names = [key for key, said in one.items() if said == _NAME]
        wanted = (_ARGUMENTS, json.dumps(_ARGUMENTS))
        arguments = [key for key, said in one.items() if said in wanted]
        begin = _begin(body[: found.start()])
        if names and arguments and begin:
            return CallFormat(begin, "json", names[0], arguments[0])
    return None


def _find_named(body: str, opened: str) -> CallFormat | None:
    """Find a name that JSON with the arguments follows."""
    before, _, after = body.partition(_NAME)
    brace = after.find("{")
    begin = _begin(before)
    if brace < 0 or not begin or _decode(after, brace) != _ARGUMENTS:
        return None
    middle = _loosely(re.sub(r"\d+", "\0", after[:brace])).replace("\0", r"\d+")
    return CallFormat(begin, "named", open=_loosely(opened), middle=middle)


def _find_elements(body: str, both: str, opened_call: str, render: Probing) -> CallFormat | None:
    """Find a name, then arguments between marks with their names."""
    (first, second), (one, two) = _ARGUMENTS.keys(), _ARGUMENTS.values()
    before, _, rest = body.partition(_NAME)
    found = re.fullmatch(
        "(.*?)".join(["", first, one, first, second, two, f"{second}(.*)"]), rest, re.DOTALL
    )
    begin = _begin(before)
    if found is None or not begin:
        return None
    lead, end, closing, between, end_too, closing_too, after = found.groups()
    is_alike = (end, closing) == (end_too, closing_too) and between.startswith(end)
    opened = _common_end(lead, between[len(end) :])
    if not is_alike or not after.startswith(end) or not (opened.strip() and end and closing):
        return None
    marks = ElementMarks(opened, closing, end)
    listed = _say_calls(render, 1, {first: [one, two]}).rpartition(marks.open(first))[2]
    named = re.match(rf"{re.escape(opened)}(\w+){re.escape(end)}{one}", listed)
    return CallFormat(
        begin,
        "elements",
        open=_loosely(opened_call),
        middle=_loosely(lead.removesuffix(opened)),
        close=_find_close(after[len(end) :], both.partition(marks.close(second))[2], opened_call),
        elements=msgspec.structs.replace(marks, item=named[1]) if named else marks,
    )


def _find_close(one: str, two: str, opened: str) -> str:
    """Find what ends a call, of what follows the arguments of one call and of the first of two."""
    words = _whole_marks(one, two.partition(opened)[0]).split() or one.split()
    n_words = next((i for i, word in enumerate(words, 1) if "<" in word or "[" in word), 1)
    return _loosely(" ".join(words[:n_words]))


def _find_tagged(body: str, both: str, opened_call: str) -> CallFormat | None:
    """Find a name and arguments between marks."""
    (first, second), (one, two) = _ARGUMENTS.keys(), _ARGUMENTS.values()
    parts, rest = [], body
    for word in (_NAME, first, one, second, two):
        part, found, rest = rest.partition(word)
        if not found:
            return None
        parts.append(part)
    before, to_first, between, to_second = parts[:4]
    begin = _begin(before)
    opened = to_first[len(to_first) - _n_common(to_first[::-1], to_second[::-1]) :]
    closed = to_second[: len(to_second) - len(opened)]
    ended = to_first[: len(to_first) - len(opened)]
    if not begin or not (opened.strip() and between.strip() and closed.strip()):
        return None
    if not rest.startswith(closed):
        return None
    close = _find_close(rest[len(closed) :], both.partition(word)[2][len(closed) :], opened_call)
    return CallFormat(
        begin,
        "tagged",
        open=_loosely(opened_call),
        middle=_loosely(ended) if ended.strip() else f"(?={_loosely(opened)}|{close})",
        argument=f"{_loosely(opened)}(?P<key>.+?){_loosely(between)}"
        f"(?P<value>.*?){_loosely(closed)}",
        close=close,
    )


def _decode(text: str, begin: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, begin)[0]
    except ValueError:
        return None


def _loosely(text: str) -> str:
    """Return a regular expression of a text.

    Spaces and line breaks count for nothing in it, and attributes may have any value.
    """
    spelt = r"\s*".join(re.escape(word) for word in re.sub(r'="\w+"', '="\1"', text).split())
    return rf"\s*{spelt}\s*".replace("\1", '[^"]*') if spelt else r"\s*"
