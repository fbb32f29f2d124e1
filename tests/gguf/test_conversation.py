"""Conversations of any form reach a template in the one that it reads."""

import json

import pytest
from harness.chat_templates import NOW, SHAPES, TEMPLATES, TOKENS, right

from mtpcore.errors import MtpcoreError
from mtpcore.gguf import ChatTemplate, read_chat_template

OBJECT = {"place": "Zürich", "days": 2}
TEXT = json.dumps(OBJECT, ensure_ascii=False)
EACH = "{% for m in messages %}{{ m.role }}:@{{ '\\n' }}{% endfor %}"
CALLS = EACH.replace("@", "{% for c in m.tool_calls or [] %}@{% endfor %}")

ARGUMENTS = {
    "written as JSON": "{{ c.function.arguments | tojson }}",
    "item by item": "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}",
    "item by item, called": "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};"
    "{% endfor %}",
    "of a flat call": "{% set f = c.function or c %}{{ f.arguments | tojson }}",
    "as they are": "{{ c.function.arguments }}",
    "after a text": "{{ 'call ' + c.function.arguments }}",
    "of both kinds": "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
}


def call(arguments, **more):
    function = {"name": "weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
        **more,
    }


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "weather"}}]])
@pytest.mark.parametrize("habit", ARGUMENTS)
def test_arguments_are_written_once_whether_objects_or_json(habit, tools):
    template = ChatTemplate(CALLS.replace("@", ARGUMENTS[habit]))
    texts = {template.render([call(given)], tools=tools) for given in (OBJECT, TEXT)}
    assert len(texts) == 1
    (text,) = texts
    assert "Zürich" in text
    assert "'place'" not in text
    assert '\\"' not in text
    nothing = {template.render([call(given)], tools=tools) for given in ({}, "{}", "", " ", None)}
    assert len(nothing) == 1
    assert "None" not in nothing.pop()


def test_a_flat_call_is_read_too():
    template = ChatTemplate(CALLS.replace("@", ARGUMENTS["of a flat call"]))
    flat = {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": TEXT}]}
    assert template.render([flat]) == template.render([call(OBJECT)])


@pytest.mark.parametrize("arguments", ["[1, 2]", '{"place": ', "Zürich", "1e999", "[" * 99999])
def test_arguments_that_are_no_object_are_written_or_refused(arguments):
    written = ChatTemplate(CALLS.replace("@", ARGUMENTS["after a text"]))
    assert written.render([call(arguments)]) == f"assistant:call {arguments}\n"
    refusing = ChatTemplate(CALLS.replace("@", ARGUMENTS["item by item"]))
    with pytest.raises(MtpcoreError, match="from a mapping"):
        refusing.render([call(arguments)])


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


CONTENT = {
    "as it is": "{{ m.content }}",
    "after a text": "{{ '' + m.content }}",
    "only where it is a text": "{% if m.content is string %}{{ m.content }}{% endif %}",
    "as JSON where it is no text": "{{ m.content if m.content is string else m.content | tojson }}",
    "part by part": "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}",
    "both": "{% if m.content is string %}{{ m.content }}{% else %}"
    "{{ m.content | map(attribute='text') | join('\\n') }}{% endif %}",
}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("habit", CONTENT)
def test_content_is_written_whether_a_text_or_parts(habit, role):
    template = ChatTemplate(EACH.replace("@", CONTENT[habit]))
    assert template.render([{"role": role, "content": "one"}]) == f"{role}:one\n"
    assert template.render([{"role": role, "content": parts("one")}]) == f"{role}:one\n"
    text = template.render([{"role": role, "content": parts("one", "two")}])
    assert text == f"{role}:one\ntwo\n" or habit == "part by part"


@pytest.mark.parametrize("habit", CONTENT)
def test_pictures_reach_templates_that_read_parts_and_no_others(habit):
    template = ChatTemplate(EACH.replace("@", CONTENT[habit]))
    picture = {"type": "image_url", "image_url": {"url": "x.png"}}
    said = [{"role": "user", "content": [*parts("see"), picture]}]
    if habit in ("part by part", "both"):
        assert template.render(said).startswith("user:see")
        return
    with pytest.raises(MtpcoreError, match="reads texts alone") as raised:
        template.render(said)
    assert raised.value.got == "'image_url'"


@pytest.mark.parametrize("more", [{}, {"tool_calls": call(TEXT)["tool_calls"]}])
@pytest.mark.parametrize(
    "habit", [name for name in CONTENT if name != "as JSON where it is no text"]
)
def test_an_answer_without_content_is_empty(habit, more):
    template = ChatTemplate(EACH.replace("@", CONTENT[habit]))
    for answer in ({"role": "assistant", "content": None, **more}, {"role": "assistant", **more}):
        assert template.render([answer]) == "assistant:\n"


def test_a_template_that_asks_for_none_gets_it():
    template = ChatTemplate(EACH.replace("@", "{{ 'calls' if m.content is none else m.content }}"))
    assert template.render([call(TEXT, content=None)]) == "assistant:calls\n"


def test_what_a_developer_says_is_the_systems_unless_the_template_knows_developers():
    said = [{"role": "developer", "content": "Be brief."}]
    assert ChatTemplate(EACH.replace("@", "{{ m.content }}")).render(said) == "system:Be brief.\n"
    knowing = "{% if m.role == 'developer' %}!{% endif %}{{ m.content }}"
    assert ChatTemplate(EACH.replace("@", knowing)).render(said) == "developer:!Be brief.\n"


def test_tools_take_the_template_for_them():
    files = {
        "tokenizer.chat_template": "plain {{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "{{ tools | length }} {{ messages[0].content }}",
        "tokenizer.chat_templates": ["default", "tool_use"],
    }
    template, said = read_chat_template(files), [{"role": "user", "content": "a"}]
    assert template.render(said) == template.render(said, tools=[]) == "plain a"
    assert template.render(said, tools=[{"name": "t"}]) == "1 a"
    broken = read_chat_template(files | {"tokenizer.chat_template.tool_use": "{% for"})
    assert broken.render(said) == "plain a"
    for _ in range(2):
        with pytest.raises(MtpcoreError, match="chat template tool_use"):
            broken.render(said, tools=[{"name": "t"}])


def test_the_last_message_is_continued():
    template = ChatTemplate(
        EACH.replace("@", "{{ m.content | trim }}</s>")
        + "{% if add_generation_prompt %}>{% endif %}"
    )
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": " The sea "}]
    text = template.render(said, continue_final_message=True)
    assert text == "user:a</s>\nassistant:The sea "
    assert template.render(said).endswith("assistant:The sea</s>\n>")
    for refused in ([], [call(TEXT, content=None)], [3]):
        with pytest.raises(MtpcoreError, match="only a text can be continued"):
            template.render(refused, continue_final_message=True)
    with pytest.raises(MtpcoreError, match="leaves the last message out"):
        ChatTemplate("").render(said, continue_final_message=True)


@pytest.mark.parametrize("given", ["hi", {"role": "user"}, 3, b"hi"])
def test_messages_and_tools_are_lists(given):
    template = ChatTemplate("{{ messages }}")
    with pytest.raises(MtpcoreError, match="messages are a list of mappings"):
        template.render(given)
    with pytest.raises(MtpcoreError, match="tools are a list of mappings"):
        template.render([], tools=given)


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_of_all_shapes_are_written_or_refused(name):
    """``python -m harness.chat_templates FOLDER`` does so with published templates."""
    template = ChatTemplate(TEMPLATES[name], **TOKENS)
    for shape, conversation in SHAPES.items():
        texts = right(TEMPLATES[name], conversation)
        try:
            assert template.render(**conversation, now=NOW) in texts, shape
        except MtpcoreError:
            assert not texts or shape == "parts"


def test_messages_of_the_caller_stay_as_they_are():
    said = [call(TEXT, content=None), {"role": "developer", "content": parts("a")}]
    before = json.dumps(said)
    ChatTemplate(CALLS.replace("@", "{{ c.function.arguments.place }}")).render(said)
    assert json.dumps(said) == before


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"reasoning": "Hm."}, "Hm."),
        ({"reasoning": "Hm.", "reasoning_content": None}, "Hm."),
        ({"reasoning": "Hm.", "reasoning_content": "Ah."}, "Ah."),
        ({"reasoning": {"effort": "low"}}, ""),
    ],
)
def test_thoughts_have_either_name(given, read):
    """As answers of servers have them, and as clients send them back."""
    template = ChatTemplate("{% for m in messages %}{{ m.reasoning_content or '' }}{% endfor %}")
    said = {"role": "assistant", "content": "Yes.", **given}
    assert template.render([{"role": "user", "content": "?", "reasoning": "x"}, said]) == read
