"""Answers are read back as they were written, whatever pieces they come in."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.answer_format import AnswerFormat, derive_format
from mtpcore.gguf.answer_parser import AnswerParser

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
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a tool",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
    for name in ("get_weather", "get-time")
]
QUESTION = {"role": "user", "content": "hello"}
END = "<|end|>"
WORDS = st.text("abc é{}\"'\n.,", max_size=12).map(str.strip)


@pytest.fixture(scope="session", params=FORMS)
def form(request):
    """A template and what was found of it."""
    source = TURNS.replace("%s", FORMS[request.param])
    template = ChatTemplate(source)
    return request.param, template, derive_format(template)


def written_by(template, message, tools=None):
    """Return the end of a prompt, and the answer that a message is, as a model writes it."""
    prompt = template.render([QUESTION], tools=tools)
    whole = template.render([QUESTION, message], tools=tools, add_generation_prompt=False)
    assert whole.startswith(prompt)
    return prompt, whole[len(prompt) :].rstrip().removesuffix(END)


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
    calls=st.lists(
        st.tuples(
            st.sampled_from(["get_weather", "get-time"]),
            st.fixed_dictionaries({}, optional={"city": WORDS, "days": st.integers(-9, 999)}),
        ),
        max_size=3,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_a_message_is_read_back(form, reasoning, content, calls, cuts):
    _, template, found = form
    reasoning = reasoning if found.reasoning else ""
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [
            {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ],
    }
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


def test_without_tools_nothing_is_a_call(form):
    _, template, found = form
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    prompt, text = written_by(template, message)
    assert read(found, prompt, text, tools=())[2] == []


def test_a_call_that_is_cut_off_is_content(form):
    _, template, found = form
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    prompt, text = written_by(template, message, TOOLS)
    text = text[: text.index("Rome")]
    assert read(found, prompt, text) == ("", text.lstrip(), [])


def test_a_template_without_reasoning_and_tools_has_no_marks():
    found = derive_format(ChatTemplate(TURNS.replace("%s", "{{ m.content }}<|end|>\n")))
    assert found == AnswerFormat()
