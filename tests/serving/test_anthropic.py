"""Anthropic's own client, unchanged: messages, streams, tokens, errors."""

import json

import httpx2
import pytest
from harness.served import serving

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.serving import ServerSettings

HI = [{"role": "user", "content": "hi"}]
ASKED = {"model": "demo", "messages": HI, "max_tokens": 12}
MORE = {"seed": 3, "temperature": 0.9}
CLOCK = {"name": "clock", "description": "the time", "input_schema": {"type": "object"}}


@pytest.fixture
def client(anthropic, address):
    """Anthropic's own client."""
    with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def shown():
    """Where a server is whose template writes all of a conversation as JSON."""
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate("{{ messages | tojson }}{{ (tools or []) | tojson }}")
    with (
        mtpcore.LM(model, n_ctx=500, draft=0, threads=1) as lm,
        serving(lm, ServerSettings(name="demo")) as url,
    ):
        yield lm, url


def read(shown, **fields):
    """Return messages and tools as a template reads them."""
    lm, url = shown
    seen, encode = [], lm.encode_chat

    def noted(messages, **more):
        seen.append((messages, more))
        return encode(messages, **more)

    lm.encode_chat = noted
    try:
        found = httpx2.post(f"{url}/v1/messages/count_tokens", json={"messages": HI} | fields)
    finally:
        del lm.encode_chat
    assert found.status_code == 200, found.text
    return seen[-1]


def test_an_answer_is_that_of_the_lm(client, lm):
    found = client.messages.create(**ASKED, extra_body=MORE)
    own = lm.chat(HI, max_tokens=12, **MORE)
    assert "".join(block.text for block in found.content) == own.text
    assert found.usage.output_tokens == len(own.tokens)
    counts = found.usage.input_tokens, found.usage.cache_read_input_tokens
    assert sum(counts) == own.stats.prompt_tokens
    assert (found.type, found.role, found.model) == ("message", "assistant", "demo")
    assert found.stop_reason == {"end": "end_turn", "length": "max_tokens"}[own.finish_reason]


def test_the_beta_client_is_answered_too(client):
    found = client.beta.messages.create(**ASKED, betas=["any-2026-01-01"], extra_body=MORE)
    assert found.content == client.beta.messages.create(**ASKED, extra_body=MORE).content


def test_a_stream_is_the_same_message(client):
    whole = client.messages.create(**ASKED, extra_body=MORE)
    with client.messages.stream(**ASKED, extra_body=MORE) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content) != ""
    assert [block.text for block in final.content] == [text]
    assert (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )


def test_events_have_their_names_and_their_order(http):
    with http.stream("POST", "/v1/messages?beta=true", json=ASKED | {"stream": True}) as found:
        lines = [line for line in found.iter_lines() if line and line != ":"]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [event["type"] for event in events]
    n_deltas = names.count("content_block_delta")
    assert n_deltas > 1
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * n_deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert {event["index"] for event in events if "index" in event} == {0}


def test_a_text_says_which_stop_ended_it(client, lm):
    text = lm.chat(HI, max_tokens=30, temperature=0).text
    stops = ["never there", text[8:11]]
    options = ASKED | {"max_tokens": 30, "stop_sequences": stops}
    found = client.messages.create(**options, extra_body={"temperature": 0})
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", stops[1])
    assert found.content[0].text == text[: text.index(stops[1])]


def test_tokens_of_a_conversation_are_counted(client, lm):
    system = "Be brief."
    found = client.messages.count_tokens(model="demo", messages=HI, system=system)
    wanted = lm.encode_chat([{"role": "system", "content": system}, *HI])
    assert found.input_tokens == len(wanted)
    several = client.messages.count_tokens(model="demo", messages=HI, tools=[CLOCK])
    assert (
        several.input_tokens > client.messages.count_tokens(model="demo", messages=HI).input_tokens
    )


def test_calls_and_results_of_tools_are_read(shown):
    messages, more = read(
        shown,
        tools=[CLOCK, {"type": "web_search_20250305", "name": "web_search"}],
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "when?", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a1", "name": "clock", "input": {"zone": "UTC"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a1", "content": [TEXT, TEXT]},
                    {"type": "tool_result", "tool_use_id": "b2", "is_error": True},
                    {"type": "text", "text": "so?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ],
    )
    call = {"name": "clock", "arguments": {"zone": "UTC"}}
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "when?",
            "tool_calls": [{"id": "a1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "noon\nnoon", "name": "clock"},
        {"role": "tool", "tool_call_id": "b2", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "so?"}]},
    ]
    (tool,) = more["tools"]
    assert tool["function"] == {
        "name": "clock",
        "description": "the time",
        "parameters": {"type": "object"},
    }


TEXT = {"type": "text", "text": "noon"}


def test_instructions_are_read_but_those_for_a_service(shown):
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=a5145;"}
    messages, _ = read(shown, system=[billing, TEXT])
    assert messages[0] == {"role": "system", "content": [TEXT]}
    messages, _ = read(shown, system=[billing])
    assert [message["role"] for message in messages] == ["user"]


def test_thinking_is_for_the_template(shown):
    for fields, wanted in (
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({}, None),
    ):
        _, more = read(shown, **fields)
        assert more["template_options"] == wanted


def test_instructions_in_between_come_first_where_a_template_refuses_them():
    template = """{% for message in messages %}{% if message.role == "system" and not loop.first %}
{{ raise_exception("instructions come first") }}{% endif %}<{{ message.role }}>{{ message.content }}
{% endfor %}"""
    made = mtpcore.load_model("demo")
    made.chat_template = ChatTemplate(template)
    body = {
        "messages": [
            *HI,
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "so?"},
        ],
        "system": "be kind",
    }
    with mtpcore.LM(made, n_ctx=200, draft=0, threads=1) as lm, serving(lm) as url:
        found = httpx2.post(f"{url}/v1/messages/count_tokens", json=body).json()
        wanted = "<system>be kind\nbe brief\n<user>hi\n<user>so?\n"
        assert found["input_tokens"] == len(
            lm.tokenizer.encode(wanted, add_special=False, parse_special=True)
        )


def test_an_answer_that_has_begun_is_continued(client, lm):
    begun = [*HI, {"role": "assistant", "content": "def"}]
    found = client.messages.create(model="demo", max_tokens=8, messages=begun, extra_body=MORE)
    own = lm.chat(begun, max_tokens=8, continue_final_message=True, **MORE)
    assert "".join(block.text for block in found.content) == own.text


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        {"messages": [{"role": "nobody", "content": ""}]},
        {"messages": [{"role": "user", "content": "long " * 500}]},
        {"tools": [CLOCK], "tool_choice": {"type": "any"}},
        {"tools": [{"description": "no name"}]},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strng"}}}},
        {"temperature": -1},
        {"mirostat": 2},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_makes_no_sense_is_refused_in_their_shape(anthropic, client, fields, stream):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ASKED, stream=stream, extra_body=fields)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.body["error"]["message"]


def test_errors_in_a_stream_are_events(anthropic, lm):
    def fail():
        raise OSError("planted")

    with (
        serving(lm, ServerSettings()) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client,
    ):
        lm.generator.step = fail
        try:
            with pytest.raises(anthropic.APIStatusError) as caught:
                list(client.messages.create(**ASKED, stream=True))
        finally:
            del lm.generator.step
        assert caught.value.body["error"] == {"type": "api_error", "message": "OSError: planted"}
        assert client.messages.create(**ASKED).content
    with (
        serving(lm, ServerSettings(api_keys=("secret",))) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(**ASKED)


def test_drafts_are_chosen_a_request_and_change_nothing(client):
    options = ASKED | {"max_tokens": 24}
    found = [
        client.messages.create(**options, extra_body=MORE | {"speculative": one})
        for one in (False, {"draft": 3})
    ]
    assert found[0].content == found[1].content
    assert "draft_n" not in found[0].timings
    assert found[1].timings["draft_n"] > 0
