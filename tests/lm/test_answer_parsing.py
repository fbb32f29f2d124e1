"""An answer in a chat has its parts: what is said, reasoning, and calls of tools."""

import asyncio
import json

import numpy as np
import pytest

import mtpcore
from mtpcore import MtpcoreError, ToolCall
from mtpcore.gguf import ChatTemplate

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}MARK
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TOOLS_TOO = "{{ tools }}{{ messages[0].content }}"
CALLS = [{"city": "Rome"}, {"city": "Łódź"}]
HI = [{"role": "user", "content": "hi"}]


def text_of(mark):
    calls = (
        f"{mark}\n{json.dumps({'name': 'weather', 'arguments': one}, ensure_ascii=False)}\n"
        "</tool_call>"
        for one in CALLS
    )
    return "<think>\nWhere?\n</think>\n\nLet me look." + "".join(calls)


@pytest.fixture(scope="module", params=["<tool_call>", "[gMASK]"], ids=["text", "control token"])
def scripted(request):
    """An LM with a mark of calls, its text, and a logits processor that writes it."""
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate(TEMPLATE.replace("MARK", request.param))
    with mtpcore.LM(model, n_ctx=512, n_seq_max=2, draft=0, threads=1) as lm:
        text = text_of(request.param)
        script = lm.tokenizer.encode(text, add_special=False, parse_special=True)
        n_prompt = len(lm.encode_chat(HI, tools=TOOLS))

        def follow(tokens, logits):
            chosen = np.full_like(logits, -np.inf)
            chosen[[*script, lm.tokenizer.eos][len(tokens) - n_prompt]] = 0.0
            return chosen

        yield lm, text, follow


def check(answer):
    assert (answer.content, answer.reasoning) == ("Let me look.", "Where?")
    assert [call.name for call in answer.tool_calls] == ["weather"] * 2
    assert [call.read_arguments() for call in answer.tool_calls] == CALLS
    ids = {call.id for call in answer.tool_calls}
    assert len(ids) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_an_answer_in_its_parts(scripted):
    lm, text, follow = scripted
    options = {"tools": TOOLS, "logits_processor": follow}
    answer = lm.chat(HI, **options)
    check(answer)
    assert answer.text == text.replace("[gMASK]", "")
    for one in lm.chat([HI, HI], **options):
        check(one)
    stream = lm.chat(HI, stream=True, **options)
    assert "".join(stream) == answer.text
    assert stream.completion.tool_calls == answer.tool_calls
    assert asyncio.run(lm.achat(HI, **options)).message == answer.message


def test_a_conversation_goes_on_with_the_message(scripted):
    lm, text, follow = scripted
    answer = lm.chat(HI, tools=iter(TOOLS), logits_processor=follow)
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"}
    prompt = lm.encode_chat([*HI, answer.message, result], tools=TOOLS)
    said = lm.tokenizer.decode(prompt, special=True)
    assert said == f"<user>hi<assistant>{text}<tool>sunny<assistant>"


def test_without_tools_calls_are_content(scripted):
    lm, _, follow = scripted
    answer = lm.chat(HI, logits_processor=follow)
    assert answer.content.startswith("Let me look.")
    assert '"Rome"' in answer.content
    assert (answer.reasoning, answer.tool_calls) == ("Where?", ())


def test_a_text_that_was_cut_ends_in_its_parts(scripted):
    lm, _, follow = scripted
    options = {"tools": TOOLS, "logits_processor": follow}
    answer = lm.chat(HI, stop="Paris", **options)  # not in the text
    check(answer)
    answer = lm.chat(HI, stop=" look", **options)
    assert (answer.content, answer.tool_calls) == ("Let me", ())
    answer = lm.chat(HI, stop="Rome", **options)
    assert answer.tool_calls == ()
    answer = lm.chat(HI, stop="?", **options)
    assert answer.message == {"role": "assistant", "content": "", "reasoning_content": "Where"}


def test_another_text_is_content():
    with mtpcore.LM("demo", n_ctx=50, draft=0, threads=1) as lm:
        found = lm.generate("def f(", max_tokens=5)
    assert found.content == found.text
    assert found.message == {"role": "assistant", "content": found.text}


@pytest.mark.parametrize("arguments", ["[1]", "{", "3", ""])
def test_arguments_that_are_no_object(arguments):
    with pytest.raises(MtpcoreError, match="weather: the arguments of a call are no JSON object"):
        ToolCall("weather", arguments).read_arguments()


def test_tools_that_are_none(scripted):
    lm, _, _ = scripted

    def broken():
        yield TOOLS[0]
        raise ValueError("no more")

    for tools in (3, "clock", {"a": 1}, broken()):
        with pytest.raises(MtpcoreError, match="tools are a list of mappings"):
            lm.chat(HI, tools=tools, max_tokens=1)
    assert lm.chat(HI, tools=["clock"], max_tokens=1).tool_calls == ()


@pytest.mark.parametrize(("template", "n_said"), [("{{ messages[0].content }}", 1), (TOOLS_TOO, 0)])
def test_a_template_that_reads_no_tools_says_so_once(caplog, template, n_said):
    with mtpcore.LM("demo", n_ctx=64, draft=0, threads=1) as lm:
        lm.model.chat_template = ChatTemplate(template)
        for tools in (None, TOOLS, TOOLS):
            lm.encode_chat(HI, tools=tools)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the chat template reads no tools: the model is told of none"] * n_said
