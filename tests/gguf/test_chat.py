"""Chat templates: what they write, and that they cannot do more."""

from datetime import datetime

import pytest
from harness.chat_templates import (
    CALL,
    CONVERSATIONS,
    TEMPLATES,
    TOKENS,
    WEATHER,
    expected,
    plain,
    rendered,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpcore.errors import MtpcoreError
from mtpcore.gguf import ChatTemplate, read_chat_template

TALK = [{"role": "user", "content": " hä "}, {"role": "assistant", "content": "b"}]
TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{% for message in messages %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
<|{{ message['role'] }}|>
{% generation %}{{ message.content | trim ~ ("." if loop.last else "") }}{% endgeneration %}

{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{%- endif %}
"""


def test_a_conversation_is_written():
    template = ChatTemplate(TEMPLATE, bos="<s>")
    talk = [{"role": "system", "content": "x"}, *TALK]
    assert template.render(talk) == "<s><|user|>\nhä\n<|assistant|>\nb.\n<|assistant|>"
    assert template.render(TALK[:1], add_generation_prompt=False) == "<s><|user|>\nhä.\n"
    assert template.render([], tools=[{"name": "<é>"}]) == '<s>[{"name": "<é>"}]<|assistant|>'


def test_further_variables_and_the_clock():
    template = ChatTemplate("{{ strftime_now('%Y-%m') }} {{ thinking }}")
    assert template.render([], now=datetime(2024, 5, 6), thinking=True) == "2024-05 True"


def test_a_template_may_change_its_lists():
    source = (
        "{% set ns = namespace(of=[]) %}{% set _ = ns.of.append(2) %}{% set _ = messages.pop() %}"
    )
    template = ChatTemplate(source + "{{ ns.of }}{{ messages | length }}")
    assert [template.render(TALK) for _ in range(2)] == ["[2]1"] * 2
    assert len(TALK) == 2


@pytest.mark.parametrize("name", ["strftime_now", "self"])
def test_variables_that_a_template_would_not_see_are_refused(name):
    """Here the clock takes one's place, and Jinja the other's."""
    with pytest.raises(MtpcoreError, match="no options of a template") as raised:
        ChatTemplate("{{ " + name + " }}").render(TALK, **{name: "mine"})
    assert raised.value.got == name


def test_what_is_not_given_is_none():
    """As in transformers: a template that asks ``documents is not none`` would find some."""
    template = ChatTemplate("{{ tools is none }} {{ documents is none }} {{ others is none }}")
    assert template.render([]) == "True True False"
    assert template.render([], documents=[]) == "True False False"


def test_the_template_of_a_file():
    assert read_chat_template({}) is None
    found = read_chat_template({"tokenizer.chat_template": "{{ messages[0].content }}"})
    assert found.render(TALK) == " hä "


def test_a_template_may_refuse():
    with pytest.raises(MtpcoreError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(TALK)


@pytest.mark.parametrize(
    "source", ["{% for", "{{ 1 | no_such_filter }}", "{% import_all %}", "(" * 9]
)
def test_malformed_templates(source):
    if source == "(" * 9:
        assert ChatTemplate(source).render([]) == source
        return
    with pytest.raises(MtpcoreError, match=r"m\.gguf: chat template"):
        ChatTemplate(source, file="m.gguf")


REFUSED = {
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "mutation": "{{ messages[0].clear() }}",
    "mutation of an object": "{{ messages[0].pop('role') }}",
    "mutation of a list's order": "{{ messages.reverse() }}",
    "internals": "{{ ''.__class__.__mro__[1] }}",
    "internals of a function": "{{ strftime_now.__self__.year }}",
    "include": "{% include 'x' %}",
    "undefined": "{{ nothing.at.all }}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_template_must_not_do_is_refused(name):
    with pytest.raises(MtpcoreError, match="chat template"):
        ChatTemplate(REFUSED[name]).render(TALK)


def test_a_template_that_is_too_long_starts_nothing():
    with pytest.raises(MtpcoreError, match="too long"):
        ChatTemplate("a" * ((1 << 20) + 1))


@pytest.fixture(scope="module")
def published():
    """The templates, ready to render."""
    return {name: ChatTemplate(source, **TOKENS) for name, source in TEMPLATES.items()}


def allowed(source, conversation):
    """Return what a template may write: the conversation, or the same one in its plain form."""
    has_images = any(
        part["type"] != "text"
        for message in conversation["messages"]
        for part in (message.get("content") if isinstance(message.get("content"), list) else ())
    )
    refusal = [None] if has_images else []
    return [expected(source, **conversation), expected(source, **plain(**conversation)), *refusal]


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(published, name):
    texts = []
    for conversation in CONVERSATIONS.values():
        texts.append(rendered(published[name], **conversation))
        assert texts[-1] in allowed(TEMPLATES[name], conversation)
    assert sum(text is not None for text in texts) >= 3


CONTENT = st.none() | st.text(st.characters(categories=None), max_size=40) | st.integers()
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENT},
        optional={"tool_calls": st.lists(st.just(CALL), max_size=2)},
    ),
    max_size=4,
)


@given(st.sampled_from(sorted(TEMPLATES)), MESSAGES, st.booleans(), st.none() | st.just([WEATHER]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_conversation_gives_the_text_of_transformers(published, name, messages, more, tools):
    given = {"messages": messages, "add_generation_prompt": more, "tools": tools}
    assert rendered(published[name], **given) in allowed(TEMPLATES[name], given)


FILTERS = {
    "abs": "-3 | abs",
    "escape": "'<a>' | escape ~ ('<b>' | forceescape)",
    "fill": "'one two three' | wordwrap(5) ~ ('a\\nb' | indent) ~ ('ab' | center(9)) ~ ('%s' % 1)",
    "words": "'one, two' | wordcount ~ ('abc' | truncate(2, true, '', 0)) ~ ('a b' | title)",
    "markup": "'<b>a</b> www.x.de' | striptags ~ ('www.x.de' | urlize) ~ ({'a': 1} | xmlattr)",
    "json": "{'a': ['ü', 1.5, none, true]} | tojson(indent=2) ~ ([1] | pprint) ~ ('ä' | urlencode)",
    "groups": "[{'a': 1, 'b': 2}, {'a': 1, 'b': 3}] | groupby('a') | list | string",
    "slices": "range(7) | batch(3, 0) | list ~ (range(7) | slice(3) | list) ~ ([2, 1] | sort)",
    "numbers": "2 ** 10 ~ 7 // 2 ~ 7 % 3 ~ (2.345 | round(1)) ~ ('7' | int) ~ (7 | filesizeformat)",
    "methods": "'a{}'.format(1) ~ 'a'.ljust(3) ~ 'a-b'.partition('-') ~ 'é'.title() ~ 'x'.zfill(3)",
    "escapes": r"'\u00e9\n\x41'",
    "failing": "[] | first | upper ~ undefined.x",
}


@pytest.mark.parametrize("name", FILTERS)
def test_what_jinja_offers_works(name):
    """No file can be opened by then: what Jinja imports late must be there."""
    source = f"{{{{ {FILTERS[name]} }}}}"
    wanted = expected(source, TALK)
    assert rendered(ChatTemplate(source), TALK) == wanted
    assert (wanted is None) == (name == "failing")


def test_only_plain_data_reaches_a_template():
    with pytest.raises(MtpcoreError, match="not JSON serializable"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": object()}])
