"""Reasoning and calls of tools come out of the text, at once and in streams."""

import json
from itertools import pairwise

import numpy as np
import ollama
import pytest
from harness.rewritten import write_demo
from harness.served import serving

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.response_template import RESPONSE_TEMPLATE_KEY
from mtpcore.serving import ServerSettings

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
CALLS = [("weather", {"city": "Rome"}), ("time", {"city": "Łódź"})]
SAID = "Let me look."
TEXT = (
    "<think>\nWhere?\nThere.\n</think>\n\n"
    + SAID
    + "".join(
        "\n<tool_call>\n"
        + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        + "\n</tool_call>"
        for name, arguments in CALLS
    )
)
DECLARED = {
    "start_anchor": "<assistant>",
    "fields": {
        "thinking": {"open": "[THINK]", "close": "[/THINK]"},
        "tool_calls": {
            "open_pattern": r"\[CALL\](?P<name>\w+)",
            "close_pattern": r"\[/CALL\]\s*",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}
"""A response template, of other marks than the chat template has."""
DECLARED_TEXT = f"[THINK]Where?\nThere.[/THINK]\n{SAID}" + "".join(
    f"\n[CALL]{name}{json.dumps(arguments, ensure_ascii=False)}[/CALL]" for name, arguments in CALLS
)
TEXTS = {"derived": TEXT, "declared": DECLARED_TEXT}
ASKED = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}


@pytest.fixture(scope="module", params=TEXTS)
def text(request):
    """An answer, by whose marks the form of answers is known."""
    return TEXTS[request.param]


@pytest.fixture(scope="module")
def script_server(text, tmp_path_factory):
    """A server whose model writes that text; give its address."""
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    more = {} if text == TEXT else {RESPONSE_TEMPLATE_KEY: json.dumps(DECLARED)}
    model = mtpcore.load_model(write_demo(path, more))
    model.chat_template = ChatTemplate(TEMPLATE)
    with mtpcore.LM(model, n_ctx=512, n_seq_max=2, threads=1) as lm:
        script = [*lm.tokenizer.encode(text, add_special=False), lm.tokenizer.eos]
        astream = lm.astream

        def scripted(prompt, **options):
            def follow(tokens, logits):
                chosen = np.full_like(logits, -np.inf)
                chosen[script[len(tokens) - len(prompt)]] = 0.0
                return chosen

            return astream(prompt, **options, logits_processor=follow)

        lm.astream = scripted
        with serving(lm, ServerSettings(name="demo")) as url:
            yield url


@pytest.fixture
def told(openai, script_server):
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{script_server}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(anthropic, script_server):
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=script_server, api_key="any", max_retries=0) as client:
        yield client


def called(message):
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]


def test_an_answer_is_parted(told):
    (choice,) = told.chat.completions.create(**ASKED).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == SAID
    assert choice.message.reasoning_content == choice.message.reasoning == "Where?\nThere."
    assert called(choice.message) == CALLS
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2


def test_tokens_of_reasoning_are_counted(told):
    n = told.chat.completions.create(**ASKED).usage.completion_tokens_details.reasoning_tokens
    *_, last = told.chat.completions.create(
        **ASKED, stream=True, stream_options={"include_usage": True}
    )
    asked = {"model": "demo", "input": "hi"}
    response = told.responses.create(**asked)
    assert (
        0
        < n
        == last.usage.completion_tokens_details.reasoning_tokens
        == response.usage.output_tokens_details.reasoning_tokens
        < response.usage.output_tokens
    )


def test_a_stream_is_parted(told, text):
    chunks = list(told.chat.completions.create(**ASKED, stream=True, logprobs=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == SAID
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == "Where?\nThere."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert all(call.id and call.function.name for call in calls)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    logprobs = [
        one
        for chunk in chunks
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert b"".join(bytes(one.bytes) for one in logprobs).decode() == text
    told_of = [chunk.mtpcore for chunk in chunks if hasattr(chunk, "mtpcore")]
    assert sum(one["tokens"] for one in told_of) == len(logprobs)
    assert not any(one["drafted"] for one in told_of)


def test_the_helper_of_streams_puts_calls_together(told):
    with told.chat.completions.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert called(final.choices[0].message) == CALLS
    assert kinds.count("tool_calls.function.arguments.done") == 2


def test_a_text_that_is_cut_off_is_no_call(told):
    """Nor does it wait for a result."""
    for n in (20, 40):
        (choice,) = told.chat.completions.create(**ASKED, max_tokens=n).choices
        assert choice.finish_reason == "length"
        assert not choice.message.tool_calls


def test_without_tools_calls_are_content(told, text):
    asked = {name: value for name, value in ASKED.items() if name != "tools"}
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = told.chat.completions.create(**asked, **more).choices
        assert choice.finish_reason == "stop"
        assert choice.message.content.startswith(text[text.index(SAID) :][:30])
    raw = told.chat.completions.create(**asked, extra_body={"reasoning_format": "none"})
    assert raw.choices[0].message.content == text


def test_calls_come_as_soon_as_they_are_whole(told):
    chunks = list(told.chat.completions.create(**ASKED, stream=True))
    at = [i for i, chunk in enumerate(chunks) if chunk.choices[0].delta.tool_calls]
    assert all(after > before for before, after in pairwise(at))
    assert len(at) == 2


def blocks_of(message):
    return [
        (block.type, getattr(block, "thinking", None) or getattr(block, "text", None))
        if block.type != "tool_use"
        else (block.name, block.input)
        for block in message.content
    ]


def test_blocks_of_anthropics_api(claude):
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in TOOLS
    ]
    asked = {"model": "demo", "max_tokens": 400, "tools": tools, "messages": ASKED["messages"]}
    wanted = [("thinking", "Where?\nThere."), ("text", SAID), *CALLS]
    whole = claude.messages.create(**asked)
    assert blocks_of(whole) == wanted
    assert whole.stop_reason == "tool_use"
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert blocks_of(streamed) == wanted
    assert streamed.stop_reason == "tool_use"
    begun = [kind for kind in kinds if kind in ("content_block_start", "content_block_stop")]
    assert begun == ["content_block_start", "content_block_stop"] * 4


def test_messages_of_ollamas_api(script_server):
    with ollama.Client(host=script_server) as client:
        whole = client.chat(**ASKED)
        lines = [*client.chat(**ASKED, stream=True)]
    for messages in ([whole.message], [line.message for line in lines]):
        assert "".join(one.thinking or "" for one in messages) == "Where?\nThere."
        assert "".join(one.content or "" for one in messages).strip() == SAID
        calls = [call.function for one in messages for call in one.tool_calls or ()]
        assert [(call.name, call.arguments) for call in calls] == CALLS
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]


def test_items_of_responses(told):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    asked = {"model": "demo", "input": "hi", "tools": tools}
    whole = told.responses.create(**asked)
    with told.responses.stream(**asked) as stream:
        events = [*stream]
        streamed = stream.get_final_response()
    for found in (whole, streamed):
        thought, said, *calls = found.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Where?\nThere.")
        assert (said.type, said.content[0].text) == ("message", SAID)
        assert [(call.name, json.loads(call.arguments)) for call in calls] == CALLS
        assert len({item.id for item in found.output}) == 4
    kinds = [event.type for event in events if "output_item" in event.type]
    assert kinds == ["response.output_item.added", "response.output_item.done"] * 4
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    thoughts = (e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert "".join(thoughts) == "Where?\nThere."


def test_one_call_where_no_more_are_wanted(told, claude):
    (choice,) = told.chat.completions.create(**ASKED, parallel_tool_calls=False).choices
    assert called(choice.message) == CALLS[:1]
    assert choice.finish_reason == "tool_calls"
    chunks = told.chat.completions.create(**ASKED, parallel_tool_calls=False, stream=True)
    assert sum(len(chunk.choices[0].delta.tool_calls or []) for chunk in chunks) == 1
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in TOOLS
    ]
    message = claude.messages.create(
        model="demo",
        max_tokens=400,
        tools=tools,
        messages=ASKED["messages"],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert blocks_of(message)[-1] == CALLS[0]
