"""Forms of answers: what a template writes has them, and what has them is read as it was meant."""

import json

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import LM, Grammar, SamplingError
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.answer_parser import AnswerParser
from mtpcore.lm import form_answer, read_response_format
from mtpcore.sampling import fill_masks

pytest.importorskip("llguidance")

TURNS = """{% for m in messages %}{% if m.role != "assistant" %}<|user|>{{ m.content }}
{% else %}<|assistant|>
%s{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
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
</tool_call>{% endfor %}""",
    "a control token": THINK
    + "{{ m.content }}{% for c in m.tool_calls or [] %}[gMASK]{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}",
    "list": "{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    '{{ c.function | tojson }}{{ ", " if not loop.last }}{% endfor %}]{% endif %}',
    "named": THINK
    + "{{ m.content }}{% if m.tool_calls %}<calls>"
    + CALL
    + "<call>functions.{{ f.name }}:{{ loop.index0 }}<args>{{ f.arguments | tojson }}"
    "</call>{% endfor %}</calls>{% endif %}",
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
</tool_call>{% endfor %}""",
    "pairs": THINK
    + "{{ m.content }}"
    + CALL
    + """
<tool_call>{{ f.name }}
{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}""",
    "ids": "{{ m.content }}{% if m.tool_calls %}<calls>"
    + CALL
    + "<call>{{ c.id }}<name>{{ f.name }}<args>{{ f.arguments | tojson }}</call>{% endfor %}"
    "</calls>{% endif %}",
    "parts": "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content %}<say>{{ m.content }}{% endif %}{% if m.tool_calls %}<do>["
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]"
    "{% endif %}",
    "attributes": "{{ m.content }}{% if m.tool_calls %}<calls>\n"
    + CALL
    + """<invoke name="{{ f.name }}">
{% for k, v in f.arguments.items() %}<parameter name="{{ k }}" string="{{ v is string }}">"""
    """{{ v if v is string else v | tojson }}</parameter>
{% endfor %}</invoke>
{% endfor %}</calls>{% endif %}""",
    "elements": """{% macro write(value) %}{% if value is mapping %}
{% for k, v in value.items() %}]~[<{{ k }}>{{ write(v) }}]~[</{{ k }}>{% endfor %}
{% elif value is iterable and value is not string %}
{% for v in value %}]~[<item>{{ write(v) }}]~[</item>{% endfor %}
{% else %}{{ value if value is string else value | tojson }}{% endif %}{% endmacro %}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- if m.tool_calls %}]~[<calls>
"""
    + CALL
    + """]~[<invoke name="{{ f.name }}">{{ write(f.arguments) }}]~[</invoke>
{% endfor %}]~[</calls>{% endif %}""",
    "alone": "{{ m.content }}{% if m.tool_calls[1:] %}{{ raise_exception('one call') }}{% endif %}"
    + CALL
    + """{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endfor %}""",
    "opened": "{% if m.content %}>>>all\n{{ m.content }}{% endif %}"
    + CALL
    + ">>>{{ f.name }}\n{{ f.arguments | tojson }}{% endfor %}",
}
PROMPTS = {"opened": ">>>"}
"""What else prompts end with."""
FEWER = {"alone": 1}
"""Forms of which a template writes so many calls."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "trip": {
                        "type": "object",
                        "properties": {"stops": {"type": "array", "items": {"type": "string"}}},
                    },
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get-time")
]
QUESTION = {"role": "user", "content": "hello"}
WORDS = st.text("abc é{}\"'\n.,", max_size=12).map(str.strip)
MEMBERS = ("city", "days", "unit", "trip")
ARGUMENTS = st.fixed_dictionaries(
    {"city": WORDS, "days": st.integers(-9, 999)},
    optional={
        "unit": st.sampled_from("CF"),
        "trip": st.fixed_dictionaries({"stops": st.lists(WORDS, max_size=2)}),
    },
).map(lambda found: {name: found[name] for name in MEMBERS if name in found})


@pytest.fixture(scope="module", params=FORMS)
def model(request):
    """The demo with a template."""
    made = mtpcore.load_model("demo")
    source, ending = TURNS.replace("%s", FORMS[request.param]), "{% endif %}"
    source = source.removesuffix(ending) + PROMPTS.get(request.param, "") + ending
    made.chat_template = ChatTemplate(source)
    return made


def tokens_of(model, text):
    ids = model.tokenizer.encode(text, add_special=False, parse_special=True)
    return np.array(ids, np.int32)


def written(model, message):
    """The end of a prompt, and the answer that a message is, as the template has it."""
    prompt = model.chat_template.render([QUESTION])
    whole = model.chat_template.render([QUESTION, message], add_generation_prompt=False)
    assert whole.startswith(prompt)
    return prompt, whole[len(prompt) :]


def may_end(model, grammar, text):
    """Whether a text has a form: it may end there."""
    mask = fill_masks([(model.grammars.matcher(grammar), tokens_of(model, text), ())])[0][0]
    end = model.tokenizer.eos
    return bool(mask[end // 32] >> (end % 32) & 1)


@searching(40)
@given(
    reasoning=WORDS,
    calls=st.lists(
        st.tuples(st.sampled_from(["get_weather", "get-time"]), ARGUMENTS), min_size=1, max_size=3
    ),
)
def test_calls_that_the_template_writes_have_the_form(request, model, reasoning, calls):
    calls = calls[: FEWER.get(request.node.callspec.params["model"])]
    message = {
        "role": "assistant",
        "content": "",
        "reasoning_content": reasoning if model.answer_format.reasoning else "",
        "tool_calls": [
            {
                "id": "abcdef012",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for name, arguments in calls
        ],
    }
    prompt, text = written(model, message)
    must = form_answer(model, tokens_of(model, prompt), None, tools=TOOLS, must_call=True)
    assert may_end(model, must, text.strip())
    may = form_answer(model, tokens_of(model, prompt), None, tools=TOOLS)
    assert may_end(model, may, text.strip())
    one = form_answer(
        model, tokens_of(model, prompt), None, tools=TOOLS, must_call=True, calls_several=False
    )
    assert may_end(model, one, text.strip()) == (len(calls) == 1)
    for name, arguments in calls:
        other = {**arguments, "days": "soon"}
        spoilt = {
            **message,
            "tool_calls": [
                message["tool_calls"][0] | {"function": {"name": name, "arguments": other}}
            ],
        }
        assert not may_end(model, must, written(model, spoilt)[1].strip())


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_have_the_form_are_read(model, seed):
    """Of a model that by itself never calls anything."""
    prompt = model.chat_template.render([QUESTION])
    with LM(model, n_ctx=700, draft=0 if seed else 3, threads=1) as lm:
        tools = [
            {"function": tool["function"] | {"parameters": short(tool["function"]["parameters"])}}
            for tool in TOOLS
        ]
        ids = tokens_of(model, prompt).tolist()
        ids += tokens_of(model, close(model)).tolist()  # it does not reason for long
        grammar = form_answer(model, ids, None, tools=tools, must_call=True, calls_several=False)
        completion = lm.generate(ids, grammar=grammar, seed=seed, special=True, max_tokens=400)
    assert completion.finish_reason == "end"
    parser = AnswerParser(model.answer_format, prompt, tools)
    (part,) = [*parser.feed(completion.text), *parser.finish()]
    assert part.call.name in ("get_weather", "get-time")
    arguments = json.loads(part.call.arguments)
    assert arguments["city"] in ("Rome", "Oslo")
    assert type(arguments["days"]) is int


def short(parameters):
    few = {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "trip": {
            "type": "object",
            "properties": {"stops": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2}},
            "additionalProperties": False,
        },
    }
    return parameters | {"properties": parameters["properties"] | few}


def close(model):
    marks = model.answer_format.reasoning
    return "\n".join(marks) if marks else ""


THINKING = TURNS.replace("%s", THINK + "{{ m.content }}")
SHAPE = Grammar.of_regex("(yes|no)[.]")


@pytest.fixture(scope="module")
def thinker():
    """The demo with a template that shows marks of reasoning."""
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(THINKING)
    return made


@pytest.mark.parametrize(
    ("prompt", "text", "fits"),
    [
        ("<|assistant|>\n", "yes.", True),
        ("<|assistant|>\n", "<think>\nyes? {no}\n</think>\n\nno.", True),
        ("<|assistant|>\n", "<think>\nyes? {no}\n</thin> </think>no.", True),
        ("<|assistant|>\n", "<think>\nyes? {no}\n</think>\n\nmaybe.", False),
        ("<|assistant|>\n", "<think>\nno.", False),
        ("<|assistant|>\n<think>\n", "hm.\n</think>\n\nno.", True),
        ("<|assistant|>\n<think>\n", "no.", False),
        ("<|assistant|>\n<think>\n</think>\n", "no.", True),
        ("<|assistant|>\n<think>\n</think>\n", "<think>\n</think>\nno.", False),
    ],
)
def test_the_form_begins_after_the_reasoning(thinker, prompt, text, fits):
    grammar = form_answer(thinker, tokens_of(thinker, prompt), SHAPE)
    assert may_end(thinker, grammar, text) == fits


@pytest.mark.parametrize(
    ("prompt", "text", "fits"),
    [
        ("<|assistant|>\n", "<say>yes.", True),
        ("<|assistant|>\n", "<think>no?</think><say>yes.", True),
        ("<|assistant|>\n", "<think>no?</think><say>maybe.", False),
        ("<|assistant|>\n<think>\n", "no?</think><say>yes.", True),
        ("<|assistant|>\n<think></think>", "<say>yes.", True),
    ],
)
def test_a_mark_of_what_is_said_follows_the_reasoning(prompt, text, fits):
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(TURNS.replace("%s", FORMS["parts"]))
    assert may_end(made, form_answer(made, tokens_of(made, prompt), SHAPE), text) == fits


@pytest.mark.parametrize(
    ("text", "fits"), [("<say>yes.", True), ("yes.", True), ("<say>maybe.", False)]
)
def test_a_mark_of_what_is_said_without_reasoning(text, fits):
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(TURNS.replace("%s", "<say>{{ m.content }}"))
    prompt = tokens_of(made, "<|assistant|>\n")
    assert may_end(made, form_answer(made, prompt, SHAPE), text) == fits


@pytest.mark.parametrize(
    ("prompt", "text", "answers", "fits"),
    [
        (">>>", "all\nyes.", True, True),
        (">>>", "yes.", True, False),
        ("", ">>>all\nyes.", True, True),
        (">>>", "all\nHm.", False, True),
        (">>>", 'all\nHm.>>>sell\n{"kind": "cat", "legs": 3}', False, True),
        (">>>", 'all\nHm.>>>sell\n{"kind": "cow", "legs": 3}', False, False),
        (">>>", 'sell\n{"kind": "cat", "legs": 3}', False, True),
        (">>>", 'sell\n{"kind": "cow", "legs": 3}', False, False),
    ],
)
def test_a_prompt_has_the_beginning_of_a_mark(prompt, text, answers, fits):
    made = mtpcore.load_model("demo")
    source, ending = TURNS.replace("%s", FORMS["opened"]), "{% endif %}"
    made.chat_template = ChatTemplate(source.removesuffix(ending) + ">>>" + ending)
    ids = tokens_of(made, f"<|assistant|>\n{prompt}")
    grammar = form_answer(made, ids, SHAPE if answers else None, tools=[pet("sell")])
    assert may_end(made, grammar, text) == fits


@pytest.mark.parametrize(
    ("prompt", "text", "fits"),
    [
        ("<|assistant|>", " to=sell CALL", True),
        ("<|assistant|>", "to=sell CALL", False),
        ("<|assistant|> ", "to=sell CALL", True),
        ("<|assistant|> ", " to=sell CALL", False),
        ("<|assistant|>", "<think>no?</think> to=sell CALL", True),
    ],
)
def test_space_before_a_call_is_written_where_the_prompt_has_none(prompt, text, fits):
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>"
        "{{ m.reasoning_content }}</think>{% endif %}{% for c in m.tool_calls or [] %} "
        "to={{ c.function.name }} {{ c.function.arguments | tojson }}<|done|>{% endfor %}"
        "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    call = text.replace("CALL", '{"kind": "cat", "legs": 3}<|done|>')
    ids, tools = tokens_of(made, prompt), [pet("sell")]
    assert may_end(made, form_answer(made, ids, None, tools=tools, must_call=True), call) == fits
    assert may_end(made, form_answer(made, ids, SHAPE, tools=tools), call) == fits
    assert may_end(made, form_answer(made, ids, SHAPE, tools=tools), "yes.")
    free = form_answer(made, ids, None, tools=tools)
    assert may_end(made, free, "Hm.")
    assert may_end(made, free, call)


def test_of_a_template_that_writes_one_call_there_is_one():
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(TURNS.replace("%s", FORMS["alone"]))
    grammar = form_answer(made, [1], None, tools=[pet("sell")], must_call=True)
    arguments = '{"kind": "cat", "legs": 3}'
    call = f'{{"name": "sell", "parameters": {arguments}}}'
    assert may_end(made, grammar, call)
    assert not may_end(made, grammar, call[:-1] + f'sell", "parameters": {arguments}}}')


@pytest.mark.parametrize("draft", [0, 3, "auto"])
def test_reasoning_is_drafted_and_the_form_begins_inside_a_round(thinker, draft):
    """A processor leads the model through its reasoning; then the form alone decides."""
    way = tokens_of(thinker, "<think>\nhm, hm, hm, hm, hm, hm\n</think>").tolist()

    with LM(thinker, n_ctx=300, draft=draft, threads=1) as lm:
        n = len(lm.encode_chat("hi"))

        def lead(tokens, logits):
            if len(tokens) - n < len(way):
                logits[way[len(tokens) - n]] += 1000

        said = lm.chat("hi", regex="(yes|no)[.] (abc){4}", logits_processor=lead, seed=1)
    assert said.finish_reason == "end"
    assert said.text.partition("</think>")[2].strip() in ("yes. abcabcabcabc", "no. abcabcabcabc")


def test_a_model_whose_calls_are_not_known(thinker):
    with pytest.raises(SamplingError) as caught:
        form_answer(thinker, [1], None, tools=TOOLS, must_call=True)
    assert "calls" in caught.value.what


PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"enum": [3, 4]}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}


def pet(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": PET, **more}}


@pytest.fixture(scope="module")
def caller():
    """The demo with a template that writes calls as JSON between marks."""
    made = mtpcore.load_model("demo")
    told = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    made.chat_template = ChatTemplate(told + TURNS.replace("%s", FORMS["json"]))
    with LM(made, n_ctx=400, threads=1) as lm:
        yield lm


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    """Return the choice of some tools, as the API of chats has it."""
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("draft", [0, "auto"])
def test_a_tool_that_must_be_called_is(caller, draft):
    tools = [pet("sell"), pet("feed")]
    for seed in range(2):
        said = caller.chat("hi", tools=tools, tool_choice=named("feed"), seed=seed, draft=draft)
        (call,) = said.tool_calls
        assert call.name == "feed"
        assert not said.content
        made = call.read_arguments()
        assert made["kind"] in ("cat", "dog")
        assert made["legs"] in (3, 4)
    options = {"tools": tools, "tool_choice": "required", "max_tokens": 120, "seed": 3}
    streamed = caller.chat("hi", stream=True, **options)
    list(streamed)
    for said in (caller.chat("hi", **options), streamed.completion):
        assert said.tool_calls
        assert {call.name for call in said.tool_calls} <= {"sell", "feed"}


def led(caller, tools, begun, **options):
    """Let a processor lead the model into a call; then the form alone decides."""
    way = tokens_of(caller.model, begun).tolist()
    n = len(caller.encode_chat("hi", tools=tools))

    def lead(tokens, logits):
        if len(tokens) - n < len(way):
            logits[way[len(tokens) - n]] += 1000

    return caller.chat("hi", tools=tools, logits_processor=lead, max_tokens=80, **options)


def test_calls_of_strict_tools_are_as_they_say(caller):
    begun = '<tool_call>\n{"name": "sell", "arguments": {'
    call = led(caller, [pet("sell", strict=True)], begun, seed=1).tool_calls[0]
    assert call.name == "sell"
    assert set(call.read_arguments()) == {"kind", "legs"}
    assert not led(caller, [pet("sell", strict=False)], begun, seed=1).tool_calls


def test_tools_that_are_not_allowed_are_shown_and_not_called(caller):
    tools = [pet("sell"), pet("feed"), pet("walk")]
    begun = '<tool_call>\n{"name": "'
    some = allowed("auto", "feed", "walk")
    call = led(caller, tools, begun + "sell", seed=1, tool_choice=some).tool_calls[0]
    assert call.name in ("feed", "walk")
    assert set(call.read_arguments()) == {"kind", "legs"}
    n_shown = caller.chat("hi", tools=tools, max_tokens=1).stats.prompt_tokens
    free = caller.chat("hi", tools=tools, tool_choice=some, max_tokens=8, seed=1)
    assert free.stats.prompt_tokens == n_shown
    assert free.content
    assert not free.tool_calls
    options = {"tools": tools, "max_tokens": 120, "seed": 3}
    in_responses = {"type": "allowed_tools", "mode": "required", "tools": [named("walk")]}
    for choice in (allowed("required", "walk"), in_responses):
        calls = caller.chat("hi", tool_choice=choice, **options).tool_calls
        assert {call.name for call in calls} == {"walk"}


def test_the_model_is_told_of_no_tools_where_none_may_be_called(caller):
    tools = [pet("sell")]
    plain = caller.chat("hi", max_tokens=8, seed=1)
    none = caller.chat("hi", tools=tools, tool_choice="none", max_tokens=8, seed=1)
    assert (none.text, none.stats.prompt_tokens) == (plain.text, plain.stats.prompt_tokens)


@pytest.mark.parametrize(
    "choice",
    [
        *("maybe", "sell", None, 3, {"type": "function"}, {}, named(3)),
        *(allowed("auto"), allowed("none", "sell"), allowed("auto", "sell", 3)),
        *({"type": "allowed_tools"}, {"type": "allowed_tools", "allowed_tools": "sell"}),
        {"type": "allowed_tools", "mode": "auto", "tools": "sell"},
    ],
)
def test_no_tool_choice(caller, choice):
    with pytest.raises(SamplingError) as caught:
        caller.chat("hi", tools=[pet("sell")], tool_choice=choice)
    assert caught.value.where == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        *(([pet("sell")], named("dance")), ([], "required"), ([], allowed("auto", "sell"))),
        ([pet("sell")], allowed("required", "sell", "dance")),
    ],
)
def test_a_tool_that_is_not_there_cannot_be_called(caller, tools, choice):
    with pytest.raises(SamplingError, match="no such tool"):
        caller.chat("hi", tools=tools, tool_choice=choice)


@pytest.mark.parametrize(
    "given", [{"type": "yaml"}, {"type": "json_schema"}, {}, 3, "json", {"type": ["text"]}]
)
def test_no_response_format(given):
    with pytest.raises(SamplingError):
        read_response_format(given)


def test_response_formats():
    assert read_response_format(None) is None
    assert read_response_format({"type": "text"}) is None
    schema = {"type": "array", "items": {"enum": [1]}}
    inner = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert read_response_format(inner) == Grammar.of_schema(schema)
    assert read_response_format({"type": "json_object"}) == Grammar.of_schema({"type": "object"})
    assert read_response_format(list[int]) == Grammar.of_schema(list[int])
