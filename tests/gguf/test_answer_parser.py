"""Answers are read back as they were written, whatever pieces they come in."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.answer_format import AnswerFormat, derive_format
from mtpcore.gguf.answer_parser import AnswerParser
from mtpcore.gguf.elements import ElementMarks, read_elements

TURNS = """{% for m in messages %}{% if m.role != "assistant" %}<|start|>{{ m.role }}
{{ m.content }}<|end|>
{% else %}<|start|>assistant
%s{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""
THINK = """{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}"""
CALL = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
FORMS = {
    "json": THINK
    + "{{ m.content }}"
    + CALL
    + """
<tool_call>
{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
""",
    "list": "{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    '{{ c.function | tojson }}{{ ", " if not loop.last }}{% endfor %}]{% endif %}<|end|>\n',
    "named": THINK
    + "{{ m.content }}{% if m.tool_calls %}<|calls|>"
    + CALL
    + "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|arguments|>{{ f.arguments | tojson }}"
    "<|/call|>{% endfor %}<|/calls|>{% endif %}<|end|>\n",
    "tagged": THINK
    + "{{ m.content }}"
    + CALL
    + """
<tool_call>
<function={{ f.name }}>
{% for k, v in f.arguments.items() %}<parameter={{ k }}>
{{ v if v is string else v | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|end|>
""",
    "pairs": THINK
    + "{{ m.content }}"
    + CALL
    + """
<tool_call>{{ f.name }}
{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}<|end|>
""",
    "ids": "{{ m.content }}{% if m.tool_calls %}<|calls|>"
    + CALL
    + "<|call|>{{ c.id }}<|name|>{{ f.name }}<|arguments|>{{ f.arguments | tojson }}<|/call|>"
    "{% endfor %}{% endif %}<|end|>\n",
    "parts": "{% if m.reasoning_content %}<|think|>{{ m.reasoning_content }}<|/think|>{% endif %}"
    "{% if m.content %}<|say|>{{ m.content }}{% endif %}{% if m.tool_calls %}<|do|>["
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]"
    "{% endif %}<|end|>\n",
    "brackets": THINK
    + "{{ m.content }}"
    + CALL
    + """[CALL]
{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
[/CALL]{% endfor %}<|end|>
""",
    "attributes": "{{ m.content }}{% if m.tool_calls %}<calls>\n"
    + CALL
    + """<invoke name="{{ f.name }}">
{% for k, v in f.arguments.items() %}<parameter name="{{ k }}" string="{{ v is string }}">"""
    """{{ v if v is string else v | tojson }}</parameter>
{% endfor %}</invoke>
{% endfor %}</calls>{% endif %}<|end|>
""",
    "no spaces": "{{ m.content }}{% if m.tool_calls %}<|open|>tools<|sep|>"
    + CALL
    + """<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>"""
    "{% for k, v in f.arguments.items() %}"
    """<|open|>argument key="{{ k }}"<|sep|>{{ v if v is string else v | tojson }}"""
    "<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>{% endfor %}<|close|>tools<|sep|>"
    "{% endif %}<|end|>\n",
    "literals": "{{ m.content }}" + CALL + """
<function name="{{ f.name }}">{% for k, v in f.arguments.items() %}<param name="{{ k }}">"""
    """{{ v }}</param>{% endfor %}</function>{% endfor %}<|end|>
""",
    "elements": """{% macro write(value) %}{% if value is mapping %}
{% for k, v in value.items() %}]~[<{{ k }}>{{ write(v) }}]~[</{{ k }}>{% endfor %}
{% elif value is iterable and value is not string %}
{% for v in value %}]~[<item>{{ write(v) }}]~[</item>{% endfor %}
{% else %}{{ value if value is string else value | tojson }}{% endif %}{% endmacro %}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}
{%- if m.tool_calls %}]~[<calls>
"""
    + CALL
    + """]~[<invoke name="{{ f.name }}">{{ write(f.arguments) }}]~[</invoke>
{% endfor %}]~[</calls>{% endif %}<|end|>
""",
    "lines": "{{ m.content }}{% if m.tool_calls %}<calls>\n"
    + CALL
    + """{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
{% endfor %}</calls>{% endif %}<|end|>
""",
    "a word": "{{ m.content }}{% if m.tool_calls %}\nAction:\n```json\n["
    "{% for c in m.tool_calls %}"
    """{"tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}"""
    "{{ ', ' if not loop.last }}{% endfor %}\n]```{% endif %}<|end|>\n",
    "keys": "{{ m.content }}{% if m.tool_calls %}<|calls|>[{% for c in m.tool_calls %}"
    """{"{{ c.function.name }}": {{ c.function.arguments | tojson }}}"""
    "{{ ', ' if not loop.last }}{% endfor %}]<|/calls|>{% endif %}<|end|>\n",
    "alone": "{{ m.content }}{% if m.tool_calls %}{% if m.content or m.tool_calls[1:] %}"
    "{{ raise_exception('one call') }}{% endif %}{% set f = m.tool_calls[0].function %}"
    """{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endif %}<|end|>\n""",
    "first alone": "{{ m.content }}{% if m.tool_calls %}<|call|>"
    "{{ m.tool_calls[0].function | tojson }}{% endif %}<|end|>\n",
    "opened": "{% if m.content %}>>>all\n{{ m.content }}{% endif %}"
    + CALL
    + ">>>{{ f.name }}\n{{ f.arguments | tojson }}{% endfor %}<|end|>\n",
    "announced": "{% if m.reasoning_content %}{{ m.reasoning_content }}\n[ANSWER]\n{% endif %}"
    "{{ m.content }}{% if m.tool_calls %}<calls>[{% for c in m.tool_calls %}"
    "{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]</calls>{% endif %}<|end|>\n",
}
PROMPTS = {"opened": ">>>", "announced": "My thoughts:\n"}
"""What else prompts end with."""
FEWER = {"alone": 1, "first alone": 1}
"""Forms of which a template writes so many calls."""
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "sure": {"type": "boolean"},
    "places": {"type": "array", "items": {"type": "string"}},
    "more": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"anyOf": [{"type": "string"}]}},
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a tool",
            "parameters": {"type": "object", "properties": PROPERTIES},
        },
    }
    for name in ("get_weather", "get-time")
]
QUESTION = {"role": "user", "content": "hello"}
END = "<|end|>"
WORDS = st.text("abc é{}\"'\n.,", max_size=12).map(str.strip)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": WORDS,
        "days": st.integers(-9, 999),
        "sure": st.booleans(),
        "places": st.lists(WORDS, max_size=3),
        "more": st.fixed_dictionaries({}, optional={"n": st.integers(0, 9), "s": WORDS}),
    },
)


@pytest.fixture(scope="session", params=FORMS)
def form(request):
    """A template and what was found of it."""
    source = TURNS.replace("%s", FORMS[request.param])
    ending = "{% endif %}"
    source = source.removesuffix(ending) + PROMPTS.get(request.param, "") + ending
    template = ChatTemplate(source)
    return request.param, template, derive_format(template)


def written_by(template, message, tools=None):
    """Return the end of a prompt, and the answer that a message is, as a model writes it."""
    prompt = template.render([QUESTION], tools=tools)
    whole = template.render([QUESTION, message], tools=tools, add_generation_prompt=False)
    begin = next(n for n in range(len(prompt), -1, -1) if whole.startswith(prompt[:n]))
    assert prompt[begin:] in ("", *PROMPTS.values())
    if prompt.endswith(PROMPTS["announced"]) and not message.get("reasoning_content"):
        prompt = prompt[:begin]  # as where a model is not to think
    return prompt, whole[begin:].rstrip().removesuffix(END)


def read(form, prompt, text, cuts=(), tools=TOOLS):
    parser = AnswerParser(form, prompt, tools)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [part for begin, end in pairwise(places) for part in parser.feed(text[begin:end])]
    parts += parser.finish()
    said = {
        kind: "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "content")
    }
    calls = [(p.call.name, json.loads(p.call.arguments)) for p in parts if p.call is not None]
    return said["reasoning"], said["content"], calls


@given(
    reasoning=WORDS,
    content=WORDS,
    calls=st.lists(st.tuples(st.sampled_from(["get_weather", "get-time"]), ARGUMENTS), max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_a_message_is_read_back(form, reasoning, content, calls, cuts):
    name, template, found = form
    reasoning = reasoning if found.reasoning else ""
    calls = calls[: FEWER.get(name)]
    content = "" if name == "alone" and calls else content
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [
            {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ],
    }
    assert ("reasoning_content" in FORMS[name]) == (found.reasoning is not None)
    prompt, text = written_by(template, message, TOOLS)
    got = read(found, prompt, text, cuts)
    assert got[0] == reasoning
    assert got[1].strip() == content
    assert got[2] == calls, text


@given(
    words=st.lists(
        st.sampled_from(
            (
                *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", ">", "<th"),
                *('{"name": "get_weather", "arguments": {}}', "[TOOL_CALLS]", "[", "{", " ", "\n"),
                *("<|calls|>", "<|call|>functions.", ":0<|arguments|>", "a", "get_weather", "</"),
            )
        ),
        max_size=14,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    opens=st.booleans(),
)
def test_pieces_make_no_difference_and_no_word_is_lost(form, words, cuts, opens):
    _, _, found = form
    text, prompt = "".join(words), "<think>\n" if opens else ""
    whole = read(found, prompt, text)
    assert read(found, prompt, text, cuts) == whole
    if not whole[2]:
        assert (whole[0] + whole[1]).count("a") == text.count("a")


@given(text=st.text("ab <>\n{}[]", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=8))
def test_a_text_without_marks_is_content_letter_by_letter(text, cuts):
    assert read(AnswerFormat(), "", text, cuts) == ("", text, [])


def test_a_prompt_may_open_the_reasoning():
    source = (
        TURNS.replace("%s", "{{ m.content }}<|end|>\n")[:-11]
        + "<think>\n{% endif %}{# </think> ends it #}"
    )
    found = derive_format(ChatTemplate(source))
    assert found.reasoning == ("<think>", "</think>")
    assert read(found, "<|start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.") == (
        *("Hm.", "Yes."),
        [],
    )


def test_a_prompt_may_open_and_close_the_reasoning():
    """As where a model thinks only if it is told to: its answers have no marks then."""
    answer = FORMS["attributes"].replace("{{ m.content }}", "</think>{{ m.content }}", 1)
    opening = "<think>{% if not thinking %}</think>{% endif %}{% endif %}"
    template = ChatTemplate(TURNS.replace("%s", answer)[:-11] + opening)
    found = derive_format(template)
    assert found.reasoning == ("<think>", "</think>")
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {"role": "assistant", "content": "Yes.", "tool_calls": [{"function": call}]}
    whole = template.render([QUESTION, message], tools=TOOLS, add_generation_prompt=False)
    text = whole.partition("</think>")[2].rstrip().removesuffix(END)
    for thinking, thought in ((False, ""), (True, "Hm.")):
        prompt = template.render([QUESTION], tools=TOOLS, thinking=thinking)
        got = read(found, prompt, f"{thought}</think>{text}" if thinking else text)
        assert got == (thought, "Yes.", [("get_weather", {"city": "Rome"})])


def test_a_prompt_may_say_more_than_the_conversation_with_the_answer():
    """As what is to be done with the tools, after all messages."""
    answer = FORMS["a word"].replace("{% endif %}<|end|>", "<|do|>{% else %}<|end|>{% endif %}")
    source = TURNS.replace("%s", answer).replace(
        "{% if add_generation", "<|start|>system\nCall a tool.<|end|>\n{% if add_generation"
    )
    found = derive_format(ChatTemplate(source))
    assert found.calls.begin == "Action:"
    call = 'Action:\n```json\n[{"tool_name": "get_weather", "parameters": {"city": "Rome"}}\n]```'
    assert read(found, "", f"Hm.\n{call}") == ("", "Hm.", [("get_weather", {"city": "Rome"})])
    assert found.calls.text.after == "}]```<|do|>"


def test_thoughts_may_stand_before_calls_alone():
    answer = (
        "{% if m.reasoning_content and m.tool_calls %}<|think|>{{ m.reasoning_content }}<|/think|>"
        "{% endif %}" + FORMS["list"]
    )
    opening = "<|think|><|/think|>{% endif %}"
    found = derive_format(ChatTemplate(TURNS.replace("%s", answer)[:-11] + opening))
    assert found.reasoning == ("<|think|>", "<|/think|>")


def test_reasoning_ends_with_what_texts_and_calls_have_in_common():
    """Whole words of it: "to=" is the beginning of both here."""
    form = """{% if m.reasoning_content %} to=self<|say|>{{ m.reasoning_content }}<|end|><|start|>
assistant{% endif %}{% if m.tool_calls %} to=tools<|say|>[{{ m.tool_calls[0].function | tojson }}]
{%- else %} to=user<|say|>{{ m.content }}{% endif %}<|end|>
"""
    found = derive_format(ChatTemplate(TURNS.replace("%s", form)))
    assert found.reasoning == ("to=self<|say|>", "<|end|><|start|>\nassistant")
    assert found.content == "to=user<|say|>"
    text = f" to=self<|say|>Hm.{found.reasoning[1]}"
    assert read(found, "", f"{text} to=user<|say|>Yes.") == ("Hm.", "Yes.", [])
    call = '[{"name": "get_weather", "arguments": {}}]'
    assert read(found, "", f"{text} to=tools<|say|>{call}") == ("Hm.", "", [("get_weather", {})])


XML = ElementMarks("<", "</", ">", "item")
ANY = {"type": "object"}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("<a>a < b <c> d</a>", {"type": "string"}, "a < b <c> d"),
        ("<a>a < b <c> d</a>", {}, "a < b <c> d"),
        ("<a>5</a>", {}, 5),
        ("<a>5</a>", {"type": "string"}, "5"),
        ("<a>5</a>", {"anyOf": [{"type": "null"}, {"type": "integer"}]}, 5),
        ("<a></a>", {"type": "array"}, []),
        ("<a></a>", ANY, {}),
        ("<a></a>", {"type": ["integer", "null"]}, None),
        ("<a></a>", {}, ""),
        ("<a><a>1</a></a>", ANY, {"a": 1}),
        ("<a>\n <b>1</b>\n <b>2</b>\n</a>", ANY, {"b": [1, 2]}),
        ("<a><item>x</item></a>", {}, ["x"]),
        ("<a><item>1</item></a>", ANY, {"item": 1}),
        ("<a><item>1</item><b>2</b></a>", {}, {"item": 1, "b": 2}),
        ("<a><x>1</x></a>", ANY | {"additionalProperties": {"type": "string"}}, {"x": "1"}),
        ('<a>{"b": [1]}</a>', ANY, {"b": [1]}),
        ("<a>" * 300 + "</a>" * 300, {}, None),
    ],
)
def test_elements(text, schema, value):
    """The last one is deeper than what is read as elements: what is inside stays a text."""
    found, end = read_elements(f"{text}</f>", 0, XML, {"properties": {"a": schema}})
    assert end <= len(text)
    assert text.count("<") > 100 or found == {"a": value}


@pytest.mark.parametrize("text", ["", "<a>", "<a>1", "<a>1</b>", "</a>", "a", "<>1</>"])
def test_no_whole_element(text):
    assert read_elements(text, 0, XML, {}) == ({}, 0)


def test_without_tools_nothing_is_a_call(form):
    _, template, found = form
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    prompt, text = written_by(template, message)
    assert read(found, prompt, text, tools=())[2] == []


def test_a_mark_that_is_spoken_of_is_content(form):
    name, template, found = form
    call = {"name": "get_weather", "arguments": {"city": found.calls.begin}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    prompt, text = written_by(template, message, TOOLS)
    said = f"The mark is {found.calls.begin} here."
    before = ">>>all\n" if name == "opened" else found.content
    text = text.removeprefix("</think>").lstrip()
    text = f"{before.removeprefix('>>>')}{said}{'>>>' if name == 'opened' else ''}{text}"
    for cuts in ((), range(400)):
        reasoning, content, calls = read(found, prompt, text, cuts)
        assert (reasoning, content) == ("", said)
        assert [one[0] for one in calls] == ["get_weather"]


def test_a_call_that_is_cut_off_is_content(form):
    _, template, found = form
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    prompt, text = written_by(template, message, TOOLS)
    text = text[: text.index("Rome")]
    assert read(found, prompt, text) == ("", text.removeprefix("</think>").lstrip(), [])


def test_a_template_without_reasoning_and_tools_has_no_marks():
    found = derive_format(ChatTemplate(TURNS.replace("%s", "{{ m.content }}<|end|>\n")))
    assert found == AnswerFormat()
