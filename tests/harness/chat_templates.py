"""Chat templates as published models write them, and Jinja set up as transformers sets it up.

``python -m harness.chat_templates FOLDER`` renders every ``*.jinja`` file of a folder with
conversations of many kinds, compares the texts with those of transformers' set-up in this process,
and prints for each how many were equal, how many both refused, and how long a rendering takes.
"""

import json
import sys
import time
from datetime import datetime
from pathlib import Path

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mtpcore.errors import MtpcoreError
from mtpcore.gguf import ChatTemplate

NOW = datetime(2026, 2, 3, 4, 5, 6)
TOKENS = {"bos": "<s>", "eos": "</s>"}

CHATML = """\
{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

WITH_HEADERS = """\
{{- bos_token }}
{%- set date_string = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n\\n' }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) + '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception('one call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' + value | string + '"' }}{% if not loop.last %}, {% endif %}
        {%- endfor %}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """\
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
           and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {%- set reasoning = '' %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|' ~ message.role ~ '|>\\n' }}
    {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
        {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {% generation %}{{- content.lstrip('\\n') }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}
        {%- if call.function %}{%- set call = call.function %}{%- endif %}
        {{- '<call>' + {'name': call.name, 'arguments': call.arguments} | tojson + '</call>' }}
    {%- endfor %}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %}{{- '!' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}
"""

IN_TURNS = """\
{{ bos_token }}
{%- macro parts(content) -%}
    {%- if content is string -%}{{ content | trim }}
    {%- elif content is iterable -%}
        {%- for part in content -%}
            {%- if part['type'] == 'text' -%}{{ part['text'] | trim }}
            {%- else -%}<image>
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception('no content') }}
    {%- endif -%}
{%- endmacro -%}
{%- if messages[0].role == 'system' -%}
    {%- set prefix = parts(messages[0].content) + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if message.role == 'assistant' -%}{%- set role = 'model' -%}
    {%- else -%}{%- set role = message.role -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') + parts(message.content) }}
    <end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

INSTRUCTIONS = """\
{%- set user_messages = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {%- if message.role == 'user' %}
        {%- if tools and message == user_messages[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools | map(attribute='function') if tool.name %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {{- '"' + key + '": ' }}
                    {{- val | tojson if val is not string else '"' ~ val ~ '"' }}
                    {{- ', ' if not loop.last else '}}' }}
                {%- endfor %}
                {{- ']' if loop.last else ', ' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] %s[/INST]' | format(message.content) }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] ' ~ message.tool_calls | map(attribute='function.name') | join(', ') }}
        {{- eos_token }}
    {%- else %}
        {{- ' ' + (message.content or '') | replace('\\n', ' ') + eos_token }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "headers and tools": WITH_HEADERS,
    "thinking": THINKING,
    "turns": IN_TURNS,
    "instructions": INSTRUCTIONS,
}
"""What the templates of ChatML, Llama 3, Qwen 3, GLM, Gemma and Mistral make use of, in short."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the weather in <a place> & "more"; it\'s 5° °',
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["place"],
        },
    },
}
CALL = {"id": "call00001", "type": "function"}
CALL["function"] = {"name": "weather", "arguments": {"place": "Zürich", "days": 2}}
USER, ANSWER = {"role": "user", "content": " Hi \n"}, {"role": "assistant", "content": "Hello."}
CONVERSATIONS = {
    "nothing": {"messages": []},
    "a question": {"messages": [USER]},
    "no answer wanted": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "a system": {"messages": [{"role": "system", "content": "Be <b>\n\n"}, USER, ANSWER, USER]},
    "thoughts": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "<think>\nhm\n</think>\n\nYes.",
                "reasoning_content": "hm",
            },
            USER,
        ],
        "enable_thinking": False,
    },
    "tools": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"t": 5}'},
            ANSWER,
            USER,
        ],
        "tools": [WEATHER],
    },
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
            ANSWER,
            {"role": "user", "content": [{"type": "text", "text": "日本語 🎉"}]},
        ]
    },
    "wrong order": {"messages": [ANSWER, USER, USER]},
    "no content": {"messages": [{"role": "user"}, {"role": "assistant", "content": None}]},
}


class _Generation(Extension):
    """The tag of transformers, which notes what the assistant said and writes it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


def expected(source, messages, *, tools=None, add_generation_prompt=True, **more):
    """Return a template's text as transformers gives it; None where it is refused."""

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    try:
        return environment.from_string(source).render(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=TOKENS["bos"],
            eos_token=TOKENS["eos"],
            **more,
        )
    except Exception:
        return None


def rendered(template, messages, **more):
    """Return a template's text; None where it is refused."""
    try:
        return template.render(messages, now=NOW, **more)
    except MtpcoreError:
        return None


def main(folder):
    for path in sorted(Path(folder).glob("*.jinja")):
        source = path.read_text("utf-8")
        template = ChatTemplate(source, **TOKENS)
        equal, different, refused, times = 0, [], 0, []
        for name, conversation in CONVERSATIONS.items():
            wanted = expected(source, **conversation)
            rendered(template, **conversation)
            begin = time.perf_counter()
            found = rendered(template, **conversation)
            times.append(time.perf_counter() - begin)
            equal += found == wanted is not None
            refused += found is None is wanted
            different += [name] if found != wanted else []
        milliseconds = 1e3 * sorted(times)[len(times) // 2]
        print(f"{path.stem}: {equal} equal, {refused} refused, {milliseconds:.2f} ms", *different)


if __name__ == "__main__":
    main(*sys.argv[1:])
