"""Answers in a given form, for the clients of each API: schemas, grammars, calls of tools."""

import json
import re
from typing import Literal

import ollama
import pytest
from harness.served import serving
from pydantic import BaseModel, Field

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.serving import ServerSettings

pytest.importorskip("llguidance")

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


class Pet(BaseModel):
    """What is asked for."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


SCHEMA = Pet.model_json_schema() | {"additionalProperties": False}
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
HI = [{"role": "user", "content": "hi"}]
ASKED = {"model": "demo", "messages": HI, "seed": 3, "max_tokens": 300}


def tool(name="weather", **more):
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


@pytest.fixture(scope="module")
def server():
    """A server of the demo, which by itself writes no JSON at all."""
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate(TEMPLATE)
    with (
        mtpcore.LM(model, n_ctx=600, n_seq_max=2, threads=1) as lm,
        serving(lm, ServerSettings(name="demo")) as url,
    ):
        yield url


@pytest.fixture
def client(openai, server):
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{server}/v1", api_key="any", max_retries=0) as made:
        yield made


def read(calls):
    """The calls of a message, whose arguments have the form that the tool asks for."""
    found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    for _, arguments in found:
        assert arguments.keys() == {"city", "days"}
        assert arguments["city"] in ("Rome", "Oslo")
        assert type(arguments["days"]) is int
        assert arguments["days"] <= 9
    return [name for name, _ in found]


def test_an_answer_is_parsed_into_its_type(client):
    done = client.chat.completions.parse(**ASKED, response_format=Pet)
    (choice,) = done.choices
    assert isinstance(choice.message.parsed, Pet)
    assert choice.finish_reason == "stop"
    again = client.chat.completions.parse(
        **ASKED, response_format=Pet, extra_body={"speculative": False}
    )
    assert again.choices[0].message.content == choice.message.content


def test_a_stream_is_parsed_into_its_type(client):
    with client.chat.completions.stream(**ASKED, response_format=Pet) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Pet)


def test_responses_are_parsed_into_their_type(client):
    asked = {"model": "demo", "input": "hi", "max_output_tokens": 300}
    assert isinstance(client.responses.parse(**asked, text_format=Pet).output_parsed, Pet)
    made = client.responses.create(
        **asked,
        tools=[{"type": "function", "name": "weather", "parameters": PARAMETERS}],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = [item for item in made.output if item.type == "function_call"]
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")


def test_any_object(client):
    done = client.chat.completions.create(
        **ASKED | {"max_tokens": 400}, response_format={"type": "json_object"}
    )
    (choice,) = done.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "function": {"name": "time"}}, {"time"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
            {"time"},
        ),
    ],
    ids=["required", "named", "allowed"],
)
def test_a_tool_that_must_be_called_is(client, choice, names, stream):
    asked = ASKED | {"tools": [tool(), tool("time")], "tool_choice": choice}
    asked["parallel_tool_calls"] = False  # the demo would never end
    if stream:
        with client.chat.completions.stream(**asked) as events:
            for _ in events:
                pass
            (done,) = events.get_final_completion().choices
    else:
        (done,) = client.chat.completions.create(**asked).choices
    assert set(read(done.message.tool_calls)) <= names
    assert done.finish_reason == "tool_calls"
    assert not done.message.content


def test_strict_tools_are_called_as_they_say_or_not_at_all(client):
    for seed in range(4):
        (done,) = client.chat.completions.create(
            **ASKED | {"seed": seed, "max_tokens": 60}, tools=[tool(strict=True)]
        ).choices
        read(done.message.tool_calls or ())


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([tool()], {"type": "function", "function": {"name": "dance"}}),
        (None, {"type": "function", "function": {"name": "dance"}}),
        (None, "required"),
        ([], "required"),
        (None, "sometimes"),
    ],
)
def test_a_tool_that_is_not_there_cannot_be_called(openai, client, tools, choice):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, tools=tools, tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_a_tool_must_be_called_where_there_is_none_in_no_api(http):
    talk = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for path, body in (
        ("/v1/messages", talk | {"tool_choice": {"type": "any"}}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2, "tool_choice": "required"}),
    ):
        found = http.post(path, json=body)
        assert found.status_code == 400
        assert "no such tool" in found.json()["error"]["message"]
        free = {**body, "tool_choice": {"type": "auto"} if path == "/v1/messages" else "auto"}
        assert http.post(path, json=free).status_code == 200


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"json_schema": SCHEMA}, r"\{(.|\n)*\}"),
        ({"structured_outputs": {"regex": "[a-c]{3}"}}, "[a-c]{3}"),
        ({"structured_outputs": {"choice": ["a b", "ä"]}}, "a b|ä"),
        ({"response_format": {"type": "json_schema", "schema": {"enum": [7]}}}, "7"),
    ],
)
def test_texts_that_are_continued_have_a_form(client, fields, pattern):
    done = client.completions.create(model="demo", prompt="def", max_tokens=200, extra_body=fields)
    assert re.fullmatch(pattern, done.choices[0].text)
    assert done.choices[0].finish_reason == "stop"


def test_claude(anthropic, server):
    with anthropic.Anthropic(base_url=server, api_key="any", max_retries=0) as claude:
        asked = {"model": "demo", "messages": HI, "max_tokens": 300}
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        said = claude.messages.create(**asked, extra_body={"output_config": form})
        Pet.model_validate_json("".join(b.text for b in said.content if b.type == "text"))
        tools = [{"name": "weather", "input_schema": PARAMETERS}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            choice["disable_parallel_tool_use"] = True
            made = claude.messages.create(**asked, tools=tools, tool_choice=choice)
            assert made.stop_reason == "tool_use"
            blocks = [block for block in made.content if block.type == "tool_use"]
            assert all(block.input["city"] in ("Rome", "Oslo") for block in blocks)
            assert blocks


def test_ollama(server):
    options = {"num_predict": 300}
    with ollama.Client(server) as client:
        said = client.chat("demo", HI, format=SCHEMA, options=options).message.content
        assert Pet.model_validate_json(said)
        for raw in (False, True):
            said = client.generate("demo", "hi", raw=raw, format=SCHEMA, options=options).response
            assert Pet.model_validate_json(said)
        said = client.generate("demo", "hi", format="json", options=options).response
        assert said.lstrip().startswith("{")


def test_two_forms_are_refused(openai, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **ASKED,
            response_format={"type": "json_object"},
            extra_body={"grammar": 'root ::= "a"'},
        )
    assert "one form" in str(caught.value)


def test_a_form_that_becomes_too_complex_is_a_text_that_was_cut(client):
    """Nobody is told that it is complete, and texts of others go on."""
    ways = [
        {"type": "object", "properties": {f"p{i}": {"type": "null"}}, "required": [f"p{i}"]}
        for i in range(2100)
    ]
    done = client.chat.completions.create(**ASKED, extra_body={"json_schema": {"anyOf": ways}})
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens < 9
    asked = {**ASKED, "messages": [{"role": "user", "content": "another"}]}
    assert client.chat.completions.parse(**asked, response_format=Pet).choices[0].message.parsed
