"""Calls that are not JSON: their forms follow from the response template that reads them."""

import json

import msgspec
import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from mtpcore_gemma4 import GEMMA4
from mtpcore_gpt_oss import GPT_OSS

import mtpcore
from mtpcore import LM, SamplingError
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.response_template import ResponseTemplate
from mtpcore.gguf.template_parser import TemplateAnswerParser
from mtpcore.gguf.written_calls import written_format
from mtpcore.lm import form_answer
from mtpcore.models.lfm2 import LFM2
from mtpcore.sampling import fill_masks

pytest.importorskip("llguidance")

GEMMA = """{% macro put(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is boolean %}
{{- "true" if v else "false" }}{% elif v is mapping %}{{ "{" }}{% for k, one in v | dictsort %}
{{- k }}:{{ put(one) }}{{ "," if not loop.last }}{% endfor %}{{ "}" }}{% elif v is sequence %}[
{%- for one in v %}{{ put(one) }}{{ "," if not loop.last }}{% endfor %}]{% else %}{{ v }}{% endif %}
{%- endmacro %}{% for m in messages %}<|turn>{{ "model" if m.role == "assistant" else m.role }}
{% if m.reasoning_content %}<|channel>thought
{{ m.reasoning_content }}<channel|>{% endif %}{% for c in m.tool_calls or [] %}<|tool_call>call:
{{- c.function.name }}{{ put(c.function.arguments) }}<tool_call|>{% endfor %}{{ m.content }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""
CHATML = """{% macro put(v) %}{% if v is string %}'{{ v }}'{% elif v is mapping %}{{ v | tojson }}
{%- else %}{{ v | string }}{% endif %}{% endmacro %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.thinking is defined %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}
{%- if m.tool_calls %}<|tool_call_start|>[{% for c in m.tool_calls %}{{ c.function.name }}(
{%- for k, v in c.function.arguments.items() %}{{ k }}={{ put(v) }}{{ ", " if not loop.last }}
{%- endfor %}){{ ", " if not loop.last }}{% endfor %}]<|tool_call_end|>{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CONTROL = json.loads(GEMMA4.response_template)
CONTROL["fields"]["tool_calls"] |= {
    "open_pattern": r"\[gMASK\](?P<name>\w+)",
    "content_args": {"string_delims": [["<|assistant|>", "<|assistant|>"]], "unquoted_keys": True},
}
PLAIN = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            **{"open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "repeats": True},
            **{"content": "json", "transform": {"function": "{content}"}},
        },
        "content": {},
    },
}


def gemma(value, quote='<|"|>'):
    """Write a value as Gemma 4's chat template does."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{gemma(one, quote)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(gemma(one, quote) for one in value)}]"
    return json.dumps(value)


def of_gemma(calls):
    return "".join(f"<|tool_call>call:{name}{gemma(one)}<tool_call|>" for name, one in calls)


def of_control(calls):
    return "".join(f"[gMASK]{name}{gemma(one, '<|assistant|>')}<tool_call|>" for name, one in calls)


def python(value):
    """Write a value as Python does, but for the quotes of texts."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{python(key)}: {python(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(python, value))}]"
    if not isinstance(value, str):
        return repr(value)
    is_plain = not set(value) & {"'", "\\"} and len(value) % 2
    return f"'{value}'" if is_plain else json.dumps(value, ensure_ascii=False)


def of_lfm2(calls):
    said = ", ".join(
        f"{name}({', '.join(f'{key}={python(one)}' for key, one in arguments.items())})"
        for name, arguments in calls
    )
    return f"<|tool_call_start|>[{said}]<|tool_call_end|>"


def of_json(calls):
    said = (json.dumps({"name": name, "arguments": one}, ensure_ascii=False) for name, one in calls)
    return "".join(f"<|tool_call_start|>{one}<|tool_call_end|>" for one in said)


FAMILIES = {
    "gemma4": (GEMMA, GEMMA4.response_template, of_gemma),
    "control": (GEMMA, json.dumps(CONTROL), of_control),
    "lfm2": (CHATML, LFM2.response_template, of_lfm2),
    "json": (CHATML, json.dumps(PLAIN), of_json),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "city": {"type": "string", "minLength": 2, "maxLength": 9, "pattern": "^[A-Zé]"},
        "days": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 99},
        "dry": {"type": ["boolean", "null"]},
        "where": {"$ref": "#/$defs/where"},
        "unit": {"enum": ["C", 3, None, [True]]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "where"],
    "additionalProperties": False,
    "$defs": {
        "where": {
            "type": "object",
            "properties": {
                "inner": {"anyOf": [{"$ref": "#/$defs/where"}, {"type": "number"}]},
            },
            "required": ["inner"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("get_weather", "sell")
]
WORDS = st.text("ab é{}:,'[]", max_size=8)
PLACES = st.recursive(st.integers(-9, 9), lambda one: st.fixed_dictionaries({"inner": one}))
ARGUMENTS = st.fixed_dictionaries(
    {
        "city": st.builds(lambda a, b: a + b, st.sampled_from("Aé"), st.text("abc ", min_size=1)),
        "where": PLACES.filter(lambda one: isinstance(one, dict)),
    },
    optional={
        "note": WORDS,
        "days": st.integers(0, 99),
        "dry": st.sampled_from([True, False, None]),
        "unit": st.sampled_from(SCHEMA["properties"]["unit"]["enum"]),
        "tags": st.lists(WORDS, min_size=1, max_size=2),
    },
).map(lambda found: {name: found[name] for name in SCHEMA["properties"] if name in found})


def fits(arguments):
    return len(arguments["city"]) <= 9


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """The demo with a family's templates, and how calls are written there."""
    return demo_of(request.param)


def demo_of(name):
    chat_template, response_template, write = FAMILIES[name]
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(chat_template)
    made.response_template = ResponseTemplate(response_template)
    assert made.response_template is not None
    assert made.answer_format.calls is None or made.answer_format.calls.text is None
    return made, write


def tokens_of(model, text):
    ids = model.tokenizer.encode(text, add_special=False, parse_special=True)
    return np.array(ids, np.int32)


def may_end(model, grammar, text):
    mask = fill_masks([(model.grammars.matcher(grammar), tokens_of(model, text), ())])[0][0]
    end = model.tokenizer.eos
    return bool(mask[end // 32] >> (end % 32) & 1)


def read(model, text, tools=TOOLS):
    parser = TemplateAnswerParser(model.response_template, "", tools)
    parts = [*parser.feed(text), *parser.finish()]
    return [(part.call.name, part.call.read_arguments()) for part in parts if part.call], parts


@searching(40)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["get_weather", "sell"]), ARGUMENTS), min_size=1, max_size=2
    )
)
def test_calls_as_the_family_writes_them_have_the_form(family, calls):
    model, write = family
    prompt = tokens_of(model, model.chat_template.render([{"role": "user", "content": "hi"}]))
    must = form_answer(model, prompt, None, tools=TOOLS, must_call=True)
    text = write(calls)
    assert read(model, text)[0] == calls
    assert may_end(model, must, text) == all(fits(one) for _, one in calls)
    one = form_answer(model, prompt, None, tools=TOOLS, must_call=True, calls_several=False)
    assert may_end(model, one, text) == (len(calls) == 1 and fits(calls[0][1]))
    may = form_answer(model, prompt, None, tools=TOOLS)
    assert may_end(model, may, f"Let me see. {text}") == all(fits(one) for _, one in calls)
    name, arguments = calls[-1]
    for spoilt in (
        {key: one for key, one in arguments.items() if key != "city"},
        {**arguments, "where": {"inner": "x"}},
        {**arguments, "days": 100},
        {**arguments, "dry": 1},
        {**arguments, "unit": "K"},
        {**arguments, "tags": []},
        {**arguments, "tags": ["a", "b", "c"]},
        {**arguments, "city": "x"},
        {**arguments, "city": "rome"},
        {**arguments, "other": 1},
    ):
        assert not may_end(model, must, write([*calls[:-1], (name, spoilt)]))
    assert not may_end(model, must, write([("dance", arguments)]))


@pytest.mark.parametrize("seed", range(2))
def test_calls_that_have_the_form_are_read(family, seed):
    """Of a model that by itself never calls anything."""
    model, _ = family
    few = {
        "text": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "dry": {"type": "boolean"},
        "where": {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 3},
    }
    schema = {"type": "object", "properties": few, "required": [*few]}
    tools = [{"type": "function", "function": {"name": "sell", "parameters": schema}}]
    marks = written_format(model.response_template).reasoning or ("", "")
    prompt = model.chat_template.render([{"role": "user", "content": "hi"}])
    ids = tokens_of(model, prompt + "\n".join(marks)).tolist()  # it does not reason for long
    grammar = form_answer(model, ids, None, tools=tools, must_call=True, calls_several=False)
    with LM(model, n_ctx=400, draft=3 * seed, threads=1) as lm:
        said = lm.generate(ids, grammar=grammar, seed=seed, special=True, max_tokens=300)
    assert said.finish_reason == "end"
    calls, parts = read(model, said.text, tools)
    assert len(calls) == len(parts) == 1
    for _, arguments in calls:
        assert list(arguments) == [*few]
        assert len(arguments["text"]) <= 6
        assert type(arguments["days"]) is int
        assert type(arguments["dry"]) is bool
        assert all(one in ("x", 1, None) for one in arguments["where"])


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"properties": {"x": {"not": {}}}}, "not"),
        ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"properties": {"x": {"$ref": "#/$defs/none"}}}, r"\$ref"),
        ({"properties": {"x": {"type": "date"}}}, "type"),
        ({"properties": {}, "required": ["x"]}, "required"),
        ({"properties": {"x": False}}, "schema"),
        ({"properties": {"x": {"enum": []}}}, "enum"),
        ({"properties": {"x": {"oneOf": [{"type": "string"}]}}}, "oneOf|type"),
    ],
)
@pytest.mark.parametrize("name", ["gemma4", "lfm2"])
def test_what_a_schema_says_and_nobody_can_write_is_refused(name, parameters, match):
    model, _ = demo_of(name)
    tools = [{"function": {"name": "sell", "parameters": {"type": "object", **parameters}}}]
    with pytest.raises(SamplingError, match=match):
        form_answer(model, [1], None, tools=tools, must_call=True)


def test_names_that_would_not_be_read_are_refused(family):
    model, write = family
    tools = [{"function": {"name": "what is it?", "parameters": {"type": "object"}}}]
    if write is of_json:
        form_answer(model, [1], None, tools=tools, must_call=True)
        return
    with pytest.raises(SamplingError, match="names"):
        form_answer(model, [1], None, tools=tools, must_call=True)


def test_any_arguments_where_a_tool_says_nothing_of_them(family):
    model, write = family
    tools = [{"function": {"name": "sell"}}]
    arguments = {} if write is of_lfm2 else {"a": {"b": [1, "x", {"c": None}]}, "d": True}
    grammar = form_answer(model, [1], None, tools=tools, must_call=True)
    assert may_end(model, grammar, write([("sell", arguments)]))
    schema = {"type": "object", "properties": {"x": {}, "y": {"type": "object"}}}
    tools = [{"function": {"name": "sell", "parameters": schema}}]
    grammar = form_answer(model, [1], None, tools=tools, must_call=True)
    arguments = {"x": [1, "x", {"c": None}], "y": {"d": True}}
    assert may_end(model, grammar, write([("sell", arguments)]))


def test_forms_that_are_not_known():
    assert written_format(ResponseTemplate(GPT_OSS.response_template)) is None
    spec = json.loads(LFM2.response_template)
    for more in (
        {"repeats": False},
        {"close": None},
        {"open": None, "open_pattern": "<a+>"},
        {"transform": {"function": {"name": "{name}", "arguments": "{name}"}}},
        {"content": "kv-lines", "transform_each": False, "transform": {"function": "{content}"}},
    ):
        field = {**spec["fields"]["tool_calls"], **more}
        other = {**spec, "fields": {**spec["fields"], "tool_calls": field}}
        assert written_format(ResponseTemplate(other)) is None
    assert written_format(ResponseTemplate(spec)) is not None
    assert msgspec.structs.asdict(written_format(ResponseTemplate(spec)))["reasoning"] is not None


def test_what_is_written_is_what_the_response_template_reads():
    """Of a chat template that shows calls in another way than one reads them that comes first."""
    made = mtpcore.load_model("demo")
    shown = CHATML.replace("[{% for c", "{% for c").replace(
        "%}]<|tool_call_end", "%}<|tool_call_end"
    )
    shown = shown.replace(
        "{{ c.function.name }}(", "{{ c.function.name }}={{ c.function.arguments | tojson }}"
    )
    made.chat_template = ChatTemplate(shown)
    made.response_template = ResponseTemplate(PLAIN)
    call = made.answer_format.calls.text
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    grammar = form_answer(made, [1], None, tools=tools, must_call=True)
    assert may_end(
        made, grammar, '<|tool_call_start|>{"name": "f", "arguments": {}}<|tool_call_end|>'
    )
    assert not may_end(made, grammar, f"{call.before}f{call.middle}{{}}{call.after}")
