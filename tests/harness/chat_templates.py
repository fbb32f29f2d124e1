"""Chat templates as published models write them, and Jinja set up as transformers sets it up.

``python -m harness.chat_templates FOLDER`` renders every ``*.jinja`` file of a folder with
conversations of all shapes that the OpenAI API allows, and compares the texts with those that
transformers' set-up gives in this process for the same conversation in its plain form. For each
template it prints how many were right, which of them transformers refuses or writes otherwise as
they are, which ones the template refuses, and which differ, of which there should be none.
"""

import json
import sys
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import SandboxedEnvironment

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


IMAGES = ("parts",)
"""Conversations with pictures, which templates for texts alone are not given."""


def _call(arguments, call_id="call00001", **more):
    function = {"name": "weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def _with_calls(*calls, content="", results=None, **more):
    """Return a conversation with calls and their results, up to the next question."""
    results = [call["id"] for call in calls] if results is None else results
    return {
        "messages": [
            USER,
            {"role": "assistant", "content": content, "tool_calls": list(calls), **more},
            *({"role": "tool", "tool_call_id": one, "content": '{"t": 5}'} for one in results),
            ANSWER,
            USER,
        ],
        "tools": [WEATHER],
    }


def _text(*texts):
    return [{"type": "text", "text": text} for text in texts]


_OBJECT = {"place": "Zürich", "days": 2}
SHAPES = CONVERSATIONS | {
    "a developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "two systems": {"messages": [*[{"role": "system", "content": "Be brief."}] * 2, USER]},
    "a system later": {"messages": [USER, ANSWER, {"role": "system", "content": "Stop."}, USER]},
    "parts of a user": {"messages": [{"role": "user", "content": _text("one", "two")}]},
    "parts of a system": {"messages": [{"role": "system", "content": _text("Be brief.")}, USER]},
    "parts of an answer": {
        "messages": [USER, {"role": "assistant", "content": _text("Hello.")}, USER]
    },
    "null content": _with_calls(_call(_OBJECT), content=None),
    "JSON text": _with_calls(_call(json.dumps(_OBJECT))),
    "JSON text, null content": _with_calls(_call(json.dumps(_OBJECT)), content=None),
    "no arguments": _with_calls(_call("{}")),
    "empty arguments": _with_calls(_call("")),
    "null arguments": _with_calls(_call(None)),
    "nested arguments": _with_calls(_call('{"place": {"a": [1, null, true]}, "days": 1.5}')),
    "a list of arguments": _with_calls(_call("[1, 2]")),
    "broken arguments": _with_calls(_call('{"place": ')),
    "parallel calls": _with_calls(
        _call('{"place": "Rom"}'), _call('{"place": "Oslo"}', "call00002")
    ),
    "results in another order": _with_calls(
        _call(_OBJECT), _call(_OBJECT, "call00002"), results=["call00002", "call00001"]
    ),
    "long ids": _with_calls(_call(_OBJECT, "call_0123456789abcdef")),
    "content with a call": _with_calls(_call(_OBJECT), content="I look."),
    "reasoning with a call": _with_calls(_call(_OBJECT), reasoning_content="I need to look."),
    "a call to be answered": {
        "messages": _with_calls(_call(json.dumps(_OBJECT)), content=None)["messages"][:3],
        "tools": [WEATHER],
    },
    "parts of a result": {
        "messages": [
            *_with_calls(_call(_OBJECT))["messages"][:2],
            {"role": "tool", "tool_call_id": "call00001", "content": _text("cold")},
        ],
        "tools": [WEATHER],
    },
    "calls without tools": {"messages": _with_calls(_call(json.dumps(_OBJECT)))["messages"]},
    "tools and no call": {"messages": [USER], "tools": [WEATHER]},
    "names": {"messages": [USER | {"name": "Ann"}, ANSWER | {"name": "Bot"}, USER]},
    "a refusal": {
        "messages": [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER]
    },
    "an answer last": {"messages": [USER, ANSWER]},
    "two users": {"messages": [USER, USER]},
    "many turns": {"messages": [USER, ANSWER] * 20 + [USER]},
}
"""Conversations of all shapes that the OpenAI API allows."""


class _Generation(Extension):
    """The tag of transformers, which notes what the assistant said and writes it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


@cache
def _compiled(source):
    """Return a template in transformers' set-up, but for lists, which it may change here."""

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

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment.from_string(source)


def expected(source, messages, *, tools=None, add_generation_prompt=True, **more):
    """Return a template's text as transformers gives it; None where it is refused."""
    try:
        return _compiled(source).render(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=TOKENS["bos"],
            eos_token=TOKENS["eos"],
            **more,
        )
    except Exception:
        return None


def plain(messages, **more):
    """Return a conversation in the form that all templates read: texts, objects and a system."""

    def of(message):
        message = dict(message)
        content = message.get("content")
        if content is None and message["role"] == "assistant":
            message["content"] = ""
        elif isinstance(content, list) and all(part["type"] == "text" for part in content):
            message["content"] = "\n".join(part["text"] for part in content)
        if message["role"] == "developer":
            message["role"] = "system"
        if message.get("tool_calls"):
            message["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": _object(call["function"])}}
                for call in message["tool_calls"]
            ]
        return message

    return {"messages": [of(message) for message in messages], **more}


def _object(function):
    given = function.get("arguments")
    try:
        found = json.loads(given or "{}") if isinstance(given, str | None) else given
    except ValueError:
        return given
    return found if isinstance(found, dict) else given


def rendered(template, messages, **more):
    """Return a template's text; None where it is refused."""
    try:
        return template.render(messages, now=NOW, **more)
    except MtpcoreError:
        return None


def right(source, conversation):
    """Return what a template may write of a conversation: that of its plain form."""
    formal, texts = plain(**conversation), []
    as_given = [  # some templates ask whether there is no content
        message | ({"content": None} if given.get("content", "") is None else {})
        for message, given in zip(formal["messages"], conversation["messages"], strict=True)
    ]
    in_text = json.loads(json.dumps(formal["messages"]))
    for message in in_text:
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], str):
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                call["function"]["arguments"] = arguments
    for messages in (formal["messages"], as_given, in_text, conversation["messages"]):
        texts.append(expected(source, **conversation | {"messages": messages}))
    return [text for text in texts if text is not None]


def main(folder):
    total = {"right": 0, "refused": 0, "different": 0}
    for path in sorted(Path(folder).glob("*.jinja")):
        source = path.read_text("utf-8")
        template = ChatTemplate(source, **TOKENS)
        found = {"right": [], "refused": [], "different": [], "mended": []}
        for name, conversation in SHAPES.items():
            try:
                text = template.render(**conversation, now=NOW)
            except MtpcoreError as error:
                refuses = name in IMAGES or not right(source, conversation)
                how = "refused" if refuses else "different"
                found[how].append(f"{name} ({str(error.got or error.what)[:60]})")
                continue
            is_right = text in right(source, conversation)
            found["right" if is_right else "different"].append(name)
            if text != expected(source, **conversation):
                found["mended"].append(name)
        print(f"{path.stem}: {len(found['right'])} right of {len(SHAPES)}")
        for how in ("mended", "refused", "different"):
            if found[how]:
                print(f"    {how}:", ", ".join(found[how]))
        for how in total:
            total[how] += len(found[how])
    print(total)


if __name__ == "__main__":
    main(*sys.argv[1:])
