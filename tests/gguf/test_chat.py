"""Chat templates: what they write, and that they cannot do more."""

from datetime import datetime

import pytest

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


def grow(step):
    return (
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
        f"{{% set ns.s = {step} %}}{{% endfor %}}{{{{ ns.s | tojson | length }}}}"
    )


HOSTILE = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "range": "{{ range(10 ** 9) }}",
    "long range": "{{ range(100000000) | list }}",
    "calls": "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "power": "{{ 2 ** 2 }}",
    "product": "{{ 'a' * 1000000000 }}",
    "product of lists": "{{ 1000000000 * [1] }}",
    "format": "{{ '%1000000000s' % 'a' }}",
    "str.format": "{{ '{:1000000000}'.format(1) }}",
    "padding": "{{ 'a'.ljust(1000000000) }}",
    "centre": "{{ 'a' | center(1000000000) }}",
    "indent": "{{ 'a\nb' | indent(1000000000) }}",
    "batch": "{{ [1] | batch(1000000000, 1) | list }}",
    "sum": grow("ns.s + ns.s"),
    "concatenation": grow("ns.s ~ ns.s"),
    "nested concatenation": grow("'x' ~ ((ns.s ~ ns.s) | upper)"),
    "replace": grow("ns.s | replace('a', 'aaaaaa')"),
    "str.replace": grow("ns.s.replace('a', 'aaaaaa')"),
    "join": grow("[ns.s, ns.s] | join(ns.s)"),
    "str.join": grow("ns.s.join([ns.s, ns.s])"),
    "numbers": grow("(ns.s | length) if i == 0 else ns.s * ns.s"),
    "nested lists": grow("[ns.s, ns.s]"),
    "output": "{% set s = 'a' * 100000 %}{% for i in range(100) %}{{ s }}{% endfor %}",
    "mutation": "{{ messages.append(1) }}",
    "internals": "{{ ''.__class__.__mro__[1] }}",
    "include": "{% include 'x' %}",
    "undefined": "{{ nothing.at.all }}",
    "lipsum": "{{ lipsum(n=99999) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name):
    with pytest.raises(MtpcoreError, match="chat template"):
        ChatTemplate(HOSTILE[name]).render(TALK)


def test_only_plain_data_reaches_a_template():
    with pytest.raises(MtpcoreError, match="not JSON serializable"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": object()}])
