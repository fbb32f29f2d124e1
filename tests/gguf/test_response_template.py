"""Response templates: what regions they find, in any pieces, as transformers' own parser does."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtpcore.errors import ModelFileError, MtpcoreError
from mtpcore.gguf.answer_parser import AnswerPart
from mtpcore.gguf.region_readers import READERS
from mtpcore.gguf.response_parser import RegionParser
from mtpcore.gguf.response_template import (
    RESPONSE_TEMPLATE_KEY,
    ResponseTemplate,
    read_response_template,
)
from mtpcore.gguf.template_parser import TemplateAnswerParser, type_arguments

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
WHOLE_CALL = {"type": "function", "function": "{content}"}
THINK = {"open": "<think>", "close_pattern": r"</think>\s*"}
TEMPLATES = {
    "json": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<s>assistant\n",
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": WHOLE_CALL,
            },
            "content": {"close_pattern": r"</s>\s*"},
        },
    },
    "tags": {
        "start_anchor": ["<s>assistant\n", "<s>assistant"],
        "fields": {
            "thinking": {"open": ["<think>", "<think>\n"], "close": ["</think>", "</think>\n\n"]},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<p=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</p>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                    "merge_duplicates": True,
                },
                "transform": CALL,
            },
            "content": {"repeats": True, "join": "\n", "close_pattern": r"</s>|$"},
        },
    },
    "channels": {
        "start_anchor": "<s>assistant",
        "fields": {
            "thinking": {"open": "<c>analysis<m>", "close_pattern": r"</s>\s*"},
            "content": {"open_pattern": r"<c>final(?: <k>\w+)?<m>", "close": ["</s>", "<r>"]},
            "tool_calls": {
                "open_pattern": r"to=functions\.(?P<name>\S+?)<c>commentary\s+json<m>",
                "close": "<call>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]},
                "transform": CALL,
            },
        },
    },
    "ahead": {
        "start_anchor_pattern": r"<s>assistant\n<think>(?:\n|</think>)?",
        "fields": {
            "reasoning_content": {
                "open_pattern": r"(?=[\s\S]*?</think>)",
                "close_pattern": r"</think>\s*",
                "content_args": {"strip": False},
            },
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "content": "kv-lines",
                "content_args": {"value_parser": {"name": "int"}},
                "transform": {"name": "it", "arguments": "{content}"},
            },
            "content": {},
        },
    },
    "late": {
        "start_anchor": "<s>assistant\n",
        "fields": {
            "thinking": {"open": "<c>analysis", "close": "</think>"},
            "tool_calls": {
                "open_pattern": "(?P<name>x)?<c>(?P<how>an)?",
                "close_pattern": r"<(?P<name>\w+)>",
                "repeats": True,
                "transform": {"name": "{name}", "arguments": {"a": "{content}"}},
            },
            "content": {"close": "</s>"},
        },
    },
    "list": {
        "start_anchor": "<s>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "content": "python-call-list",
                "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}},
                "transform_each": True,
            },
            "content": {"close": "</s>"},
        },
    },
}
PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "</s>", "<r>", "<call>", "<q>"),
    *("<c>analysis<m>", "<c>final<m>", "<c>final <k>json<m>", "<c>commentary json<m>"),
    *("to=functions.f", "<function=f>", "<p=a>", "</p>", '{"name": "f", "arguments": {"a": 1}}'),
    *("{a: <q>x<q>}", "a: 1\nb: 2", '[f(a="x", b=[1, None]), g()]', "<", "\n", " ", "é", "a: x"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
NAMES = st.sampled_from([*TEMPLATES])


def in_pieces(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


def regions(template, pieces):
    """Return each region: its field's name, its marks, its text, and what its marks captured."""
    parser, found = RegionParser(template), []
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in [*events, *parser.finish()]:
        name = event.field and event.field.name
        if event.kind == "open" or (name is None and (not found or found[-1][0] is not None)):
            found.append([name, event.text if name else "", "", "", {}])
        if event.kind == "text":
            found[-1][2] += event.text
        if event.kind == "close":
            found[-1][3:] = [event.text, event.groups]
    return found


def message_of(spec, text):
    """Return the message that transformers would make of an answer; None: it would refuse it."""
    template = ResponseTemplate(spec)
    fields = {field.name: field for field in (*template.fields, template.rest) if field}
    message = dict(spec.get("defaults", {}))
    for name, _, body, _, groups in regions(template, [text]):
        if name is None:
            continue
        try:
            value = fields[name].read(body, groups)
        except ValueError:
            return None
        if fields[name].join is not None and name in message:
            value = message[name] + fields[name].join + value
        elif fields[name].repeats and fields[name].join is None:
            value = [*message.get(name, []), value]
        message[name] = value
    return {
        name: value
        for name, value in message.items()
        if name in spec.get("defaults", {}) or value not in (None, "", [], {})
    }


@example("tags", "a: x\nb", [5])
@given(NAMES, TEXTS, st.lists(st.integers(0, 200), max_size=6))
def test_the_regions_of_a_text_are_those_of_its_pieces(name, text, cuts):
    template = ResponseTemplate(TEMPLATES[name])
    assert regions(template, in_pieces(text, cuts)) == regions(template, [text])


@given(NAMES, TEXTS)
def test_regions_hold_all_of_a_text(name, text):
    found = regions(ResponseTemplate(TEMPLATES[name]), [text])
    held = "".join("".join(one[1:4]) for one in found)
    # The mark that closes the rest is no region's where that is empty; ``$`` is before a last \n.
    one, other = (re.sub(r"</s>|\s+", "", one) for one in (held, text))
    assert one == other


@example("late", "<c>analysis<m>a</think>x<c>1<f>")
@given(NAMES, TEXTS)
def test_messages_are_those_of_transformers(name, text):
    chat_parsing = pytest.importorskip("transformers.utils.chat_parsing")
    try:
        wanted = chat_parsing.parse_response(text, TEMPLATES[name], prefix="")
    except ValueError:
        wanted = None
    assert message_of(TEMPLATES[name], text) == wanted


@given(
    st.sampled_from(["json", "python-call-list", "kv-lines", "int", "float", "bool", "text"]),
    st.text("[]{}()'\"\\,:= ab1.-+eE\nufTrueNone", max_size=24)
    | st.sampled_from(
        [
            r"""[f(a='\u00e9\ud83d\ude00\n', b="it's", c=[1, -2.5e3, {'k': True}])]""",
            "[a.b-c(x=null), d()]",
            f"[f(a={2**53})]",
            "[f(a=1e999)]",
            "[f(a='\\ud83d')]",
            "[f(a=1, a=2)]",
            "[f(a=" + "[" * 101 + "]" * 101 + ")]",
            "[f(1)]",
            "[f(a=1,)]",
        ]
    ),
)
def test_readers_are_those_of_transformers(name, text):
    theirs = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")
    try:
        wanted = theirs.parse_content(text, name, {})
    except (ValueError, RecursionError):
        wanted = ValueError
    try:
        found = READERS[name]().read(text)
    except ValueError:
        found = ValueError
    assert repr(found) == repr(wanted)


@given(
    st.sampled_from(["integer", "number", "boolean", "null", "object", "array", "string"]).map(
        lambda one: {"type": one}
    )
    | st.just({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    | st.just({"type": ["number", "boolean"], "nullable": True}),
    st.sampled_from(["1", "1.0", "-3.5", "1e400", "true", "True", "0", "null", "{}", "[1]", "x"]),
)
def test_arguments_get_the_types_that_transformers_gives_them(schema, text):
    theirs = pytest.importorskip("transformers.utils.chat_parsing.response_parser")
    wanted = theirs._coerce(text, theirs._schema_types(schema))
    for value, expected in ((text, wanted), ([text], [wanted])):
        found = type_arguments({"a": value}, {"a": schema})["a"]
        if isinstance(value, list) and "array" in str(schema):
            expected = value
        assert repr(found) == repr(expected)


CITY = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in "fg"]


def answer(name, text, prompt="", tools=TOOLS, cuts=(), **more):
    parser = TemplateAnswerParser(ResponseTemplate(TEMPLATES[name]), prompt, tools, **more)
    parts = [part for piece in in_pieces(text, cuts) for part in parser.feed(piece)]
    parts += parser.finish()
    said = {
        kind: "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "content")
    }
    calls = [(part.call.name, json.loads(part.call.arguments)) for part in parts if part.call]
    return said["reasoning"], said["content"], calls


@given(NAMES, TEXTS, st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_the_parts_of_an_answer_are_those_of_its_pieces(name, text, cuts, may_call):
    tools = TOOLS if may_call else []
    assert answer(name, text, tools=tools, cuts=cuts) == answer(name, text, tools=tools)


ANSWERS = {
    "json": '<think>\nhm\n</think>\n\nSo:\n<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n'
    '</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call></s>',
    "tags": "<think>\nhm\n</think>\n\nSo:\n<tool_call>\n<function=f>\n<p=a>\nx\n</p>\n</function>\n"
    "</tool_call>\n<tool_call><function=g></tool_call>",
    "channels": "<c>analysis<m>hm</s><s>assistant<c>final<m>So:</s><s>assistant to=functions.f"
    "<c>commentary json<m>{a: <q>x<q>}<call><s>assistant to=functions.g<c>commentary json<m>{}"
    "<call>",
    "list": 'So:\n<tool_call>[f(a="x"), g()]</tool_call>',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_parts_of_an_answer(name):
    thought = "" if name == "list" else "hm"
    calls = [("f", {"a": "x"}), ("g", {})]
    assert answer(name, ANSWERS[name]) == (thought, "So:", calls)
    assert answer(name, ANSWERS[name], most_calls=1) == (thought, "So:", calls[:1])
    _, said, called = answer(name, ANSWERS[name], tools=[])
    assert not called
    assert "f" in said


def test_the_longer_mark_counts_and_a_closing_one_may_name_the_function():
    text = "<c>analysishm</think>So:<c>x<f>"
    assert answer("late", text) == ("hm", "So:", [("f", {"a": "x"})])


@pytest.mark.parametrize("name", ["json", "tags"])
def test_a_prompt_may_open_the_reasoning(name):
    prompt = "<s>user\n<s>assistant\nno</s><s>assistant\n<think>\n"
    after = ResponseTemplate(TEMPLATES[name]).after_start(prompt)
    assert after == "<think>\n"
    assert answer(name, "hm\n</think>\n\nSo", after) == ("hm", "So", [])
    assert ResponseTemplate(TEMPLATES[name]).after_start("<s>user\n") is None


def test_what_a_prompt_has_of_an_answer_is_none_of_it():
    assert answer("json", " 1 apple", "I have") == ("", " 1 apple", [])
    assert answer("json", '"f"}</tool_call>', '<tool_call>{"name": ') == ("", "", [("f", {})])


@pytest.mark.parametrize("text", ["<tool_call>{no}</tool_call>", "<tool_call>[1]</tool_call>"])
def test_what_looks_like_a_call_and_is_none_is_content(text):
    assert answer("json", text) == ("", text, [])


def test_an_answer_in_which_nothing_is_found_is_content():
    assert answer("channels", " hello ") == ("", "hello", [])
    assert answer("channels", "<c>final<m>hello") == ("", "hello", [])


def test_regions_of_one_field_are_joined():
    call = "<tool_call><function=f></tool_call>"
    assert answer("tags", f"one {call} two") == ("", "one\ntwo", [("f", {})])


def test_arguments_in_tags_are_of_the_types_of_the_tool():
    text = "<tool_call><function=f><p=a>1</p><p=n>1</p><p=b>true</p></tool_call>"
    spec = {**TEMPLATES["tags"]}
    del spec["fields"]["tool_calls"]["content_args"]["value_parser"]
    parser = TemplateAnswerParser(ResponseTemplate(spec), "", TOOLS)
    (part,) = [*parser.feed(text), *parser.finish()]
    assert part.call.read_arguments() == {"a": "1", "n": 1, "b": "true"}


def changed(**changes):
    """Return a small template with other fields; None: without them."""
    spec = {"start_anchor": "<s>", "fields": {"content": {}}, **changes}
    return {name: value for name, value in spec.items() if value is not None}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([], "object"),
        ("{", "JSON is malformed|truncated"),
        (changed(version=2), "version"),
        (changed(stop="</s>"), "stop"),
        (changed(start_anchor=None), "start_anchor"),
        (changed(start_anchor=""), "empty"),
        (changed(start_anchor_pattern="x"), "of which there may be one"),
        (changed(start_anchor=None, start_anchor_pattern="("), "regular expression"),
        (changed(fields={}), "no field"),
        (changed(fields={"content": {}, "thinking": {}}), "several"),
        (changed(fields={"citations": {"open": "x"}}), "citations"),
        (changed(fields={"content": {"opens": "x"}}), "opens"),
        (changed(fields={"content": {"content": "yaml"}}), "yaml"),
        (changed(fields={"content": {"content_args": {"trim": True}}}), "trim"),
        (changed(fields={"content": {"content": "xml-inline"}}), "tag_pattern"),
        (
            changed(
                fields={"content": {"content": "xml-inline", "content_args": {"tag_pattern": "x"}}}
            ),
            "group 'key'",
        ),
        (
            changed(
                fields={
                    "content": {
                        "content": "kv-lines",
                        "content_args": {"value_parser": {"name": "yaml"}},
                    }
                }
            ),
            "yaml",
        ),
        (changed(fields={"content": {"join": "x"}}), "join"),
        (changed(fields={"content": {"close_pattern": "(?P<x>y)"}}), "groups"),
        (changed(fields={"content": {"transform_each": True}}), "transform_each"),
        (changed(fields={"content": {"transform": "a {content}"}}), "a place is all"),
    ],
)
def test_a_malformed_template_is_refused(spec, said):
    source = spec if isinstance(spec, str) else json.dumps(spec)
    with pytest.raises(ModelFileError, match=said) as raised:
        read_response_template({RESPONSE_TEMPLATE_KEY: source}, "some.gguf")
    assert raised.value.where == "some.gguf"


def test_a_file_without_the_key_has_none():
    assert read_response_template({}) is None


def test_a_pattern_that_never_ends_is_an_error():
    hostile = changed(fields={"content": {"close_pattern": r"(?:a|aa)+$"}})
    parser = TemplateAnswerParser(ResponseTemplate(hostile))
    with pytest.raises(MtpcoreError, match="too long"):
        parser.feed("a" * 90 + "c")


def test_a_pattern_that_looks_far_ahead_is_tried_at_one_place():
    """A search from each place on would take minutes, and end as too long."""
    spec = changed(fields={"thinking": {"open_pattern": r"(?=[\s\S]*?</t>)", "close": "</t>"}})
    spec["fields"]["content"] = {}
    parser = TemplateAnswerParser(ResponseTemplate(spec))
    assert not [part for _ in range(50) for part in parser.feed("word " * 400)]
    parts = parser.feed("</t>so") + parser.finish()
    text = ("word " * 20_000).strip()
    assert parts == [AnswerPart("reasoning", text), AnswerPart("content", "so")]


def test_marks_without_characters_end():
    spec = changed(
        fields={"content": {"open_pattern": "(?=x)", "close_pattern": "(?=x)"}, "thinking": {}}
    )
    parser = TemplateAnswerParser(ResponseTemplate(spec))
    with pytest.raises(MtpcoreError, match="without end"):
        parser.feed("xy")


def test_text_comes_as_soon_as_it_is_certain():
    parser = TemplateAnswerParser(ResponseTemplate(TEMPLATES["json"]), "", TOOLS)
    assert parser.feed("<think>one ") == [AnswerPart("reasoning", "one")]
    assert parser.feed("two</thi") == [AnswerPart("reasoning", " two")]
    assert parser.feed("nk> ") == []
    assert parser.feed("three<tool") == [AnswerPart("content", "three")]
