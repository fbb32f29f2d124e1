"""The Responses API by OpenAI's own client, unchanged: items, events, errors."""

import json

import pytest
from harness.served import serving

from mtpcore.serving import ServerSettings

ASKED = {"model": "demo", "input": "hi", "max_output_tokens": 12}
MORE = {"seed": 3, "temperature": 0.9}
OWN = {"max_tokens": 12, "seed": 3, "temperature": 0.9}
CLOCK = {"type": "function", "name": "clock", "description": "the time", "parameters": {}}


@pytest.fixture
def read(lm, client, monkeypatch):
    """Returns messages and options of ``encode_chat`` that a request makes."""
    seen, encode = [], lm.encode_chat

    def noted(messages, **more):
        seen.append((messages, more))
        return encode([{"role": "user", "content": "hi"}])

    def ask(**fields):
        client.responses.create(**ASKED | fields)
        return seen[-1]

    monkeypatch.setattr(lm, "encode_chat", noted)
    return ask


def test_an_answer_is_that_of_the_lm(client, lm):
    found = client.responses.create(**ASKED, instructions="be brief", extra_body=MORE)
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    own = lm.chat(said, **OWN)
    assert found.output_text == own.text
    assert (found.usage.input_tokens, found.usage.output_tokens) == (
        own.stats.prompt_tokens,
        len(own.tokens),
    )
    assert found.usage.total_tokens == own.stats.prompt_tokens + len(own.tokens)
    assert (found.object, found.error, found.instructions) == ("response", None, "be brief")
    assert found.status == {"end": "completed", "length": "incomplete"}[own.finish_reason]


def test_a_text_that_the_budget_ends_is_incomplete(client):
    options = {"ignore_eos": True, **MORE}
    found = client.responses.create(**ASKED, extra_body=options)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.output[0].status == "incomplete"
    *_, last = client.responses.create(**ASKED, stream=True, extra_body=options)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.usage.output_tokens == 12


def test_a_text_that_ends_is_complete(client, lm):
    text = lm.chat("hi", max_tokens=30, temperature=0).text
    stop = {"stop": text[8:11], "temperature": 0}
    options = ASKED | {"max_output_tokens": 30}
    with client.responses.stream(**options, extra_body=stop) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == text[: text.index(text[8:11])]
    assert (final.status, final.output[0].status) == ("completed", "completed")
    assert final.output_text == client.responses.create(**options, extra_body=stop).output_text


def test_events_have_names_numbers_and_places(http):
    with http.stream("POST", "/v1/responses", json=ASKED | MORE | {"stream": True}) as found:
        lines = [line for line in found.iter_lines() if line and line != ":"]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    n_deltas = names.count("response.output_text.delta")
    assert n_deltas > 1
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * n_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{events[-1]['response']['status']}",
    ]
    inner = events[2:-1]
    assert all(event["output_index"] == 0 for event in inner)
    of_text = [event for event in inner if "output_item" not in event["type"]]
    assert all(event["content_index"] == 0 for event in of_text)
    ids = {event["item_id"] for event in of_text} | {
        event["item"]["id"] for event in inner if "item" in event
    }
    assert ids == {events[-1]["response"]["output"][0]["id"]}
    assert len({e["response"]["id"] for e in events if "response" in e}) == 1
    text = "".join(e["delta"] for e in events if e["type"].endswith("text.delta"))
    assert text == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_logprobs(client, lm):
    options = ASKED | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = client.responses.create(**options, temperature=0)
    own = lm.chat("hi", max_tokens=12, temperature=0, logprobs=2)
    shown = found.output[0].content[0].logprobs
    assert [one.logprob for one in shown] == [one.logprob for one in own.logprobs]
    assert all(len(one.top_logprobs) == 2 for one in shown)
    events = client.responses.create(**options, temperature=0, stream=True)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert sum(len(event.logprobs) for event in deltas) == len(own.tokens)


def test_items_are_messages(read):
    messages, more = read(
        instructions="be brief",
        tools=[CLOCK, {"type": "web_search"}],
        reasoning={"effort": "high"},
        input=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "input_text", "text": "when?"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "m",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "noon"},
            {"type": "function_call_output", "call_id": "b", "output": "night"},
            {"role": "assistant", "content": "Noon."},
            {"role": "user", "content": "so?"},
        ],
    )
    function = {"name": "clock", "arguments": "{}"}
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "when?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": function},
                {"id": "b", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
        {"role": "tool", "tool_call_id": "b", "content": "night"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "so?"},
    ]
    (tool,) = more["tools"]
    assert tool["function"] == {"name": "clock", "description": "the time", "parameters": {}}
    assert more["template_options"] == {"reasoning_effort": "high"}
    _, more = read(tools=[CLOCK], tool_choice="none", reasoning={"effort": "none"})
    assert (more["tools"], more["template_options"]) == (None, {"enable_thinking": False})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"tools": [CLOCK], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "clock"}]}, "input[0].arguments"),
        ({"input": []}, "messages"),
        ({"input": 5}, "input"),
        ({"input": "long " * 500}, None),
        ({"mirostat": 2}, "mirostat"),
    ],
)
def test_what_makes_no_sense_is_a_400(openai, client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ASKED, extra_body=fields)
    assert caught.value.message
    assert caught.value.param == param


def test_errors_in_a_stream_are_events(openai, lm):
    def fail():
        raise OSError("planted")

    with (
        serving(lm, ServerSettings()) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        lm.generator.step = fail
        try:
            with pytest.raises(openai.APIError, match="OSError: planted"):
                list(client.responses.create(**ASKED, stream=True))
        finally:
            del lm.generator.step
        assert client.responses.create(**ASKED).output_text


def test_tokens_are_counted_as_answers_count_them(client, http):
    given = {"input": "hi", "instructions": "be brief"}
    answer = client.responses.create(model="demo", **given, max_output_tokens=1)
    counted = client.responses.input_tokens.count(model="demo", **given)
    assert counted.input_tokens == answer.usage.input_tokens > 0
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    found = http.post("/v1/chat/completions/input_tokens", json={"messages": messages})
    assert found.json()["input_tokens"] == counted.input_tokens
    refused = http.post("/v1/responses/input_tokens", json={"previous_response_id": "x"})
    assert refused.status_code == 400
