"""Families that say how answers are parsed: texts as their published chat templates write them."""

import json
import logging

import msgspec
import pytest
from harness.rewritten import write_demo
from mtpcore_gemma4 import GEMMA4
from mtpcore_gpt_oss import GPT_OSS

import mtpcore
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.response_template import RESPONSE_TEMPLATE_KEY, ResponseTemplate
from mtpcore.gguf.template_parser import TemplateAnswerParser
from mtpcore.models.lfm2 import LFM2, LFM2_MOE

WEATHER, TIME = {"city": "Rome", "days": 3}, {"city": "Łódź", "x": {"a": [1, True, "y"]}}
CALLS = [("get_weather", WEATHER), ("time", TIME)]
TOOLS = [{"type": "function", "function": {"name": name}} for name, _ in CALLS]
THOUGHT, SAID = "Where? There.", "Let me look."
ANSWERS = {
    "gemma4": (
        GEMMA4,
        f"<|channel>thought\n{THOUGHT}\n<channel|>{SAID}<|tool_call>call:get_weather"
        '{city:<|"|>Rome<|"|>,days:3}<tool_call|><|tool_call>call:time'
        '{city:<|"|>Łódź<|"|>,x:{a:[1,true,<|"|>y<|"|>]}}<tool_call|><|tool_response>',
    ),
    "gpt_oss": (
        GPT_OSS,
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
        f"<|channel|>commentary<|message|>{SAID}<|end|><|start|>assistant to=functions.get_weather"
        f"<|channel|>commentary json<|message|>{json.dumps(WEATHER)}<|call|><|start|>assistant"
        "<|channel|>commentary to=functions.time <|constrain|>json<|message|>"
        f"{json.dumps(TIME, ensure_ascii=False)}",  # its end is the text's
    ),
    "lfm2": (
        LFM2,
        f"<think>{THOUGHT}</think>{SAID}<|tool_call_start|>[get_weather(city='Rome', days=3), "
        'time(city=\'Łódź\', x={"a": [1, true, "y"]})]<|tool_call_end|><|im_end|>\n',
    ),
}


@pytest.mark.parametrize("family", ANSWERS)
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_an_answer_in_its_parts(family, n):
    spec, text = ANSWERS[family]
    parser = TemplateAnswerParser(ResponseTemplate(spec.response_template), "", TOOLS)
    pieces = [text[i : i + n] for i in range(0, len(text), n)]
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    said = {
        kind: "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "content")
    }
    assert said == {"reasoning": THOUGHT, "content": SAID}
    calls = [part.call for part in parts if part.call]
    assert [(call.name, call.read_arguments()) for call in calls] == CALLS


def test_a_final_answer_of_gpt_oss():
    template = ResponseTemplate(GPT_OSS.response_template)
    parser = TemplateAnswerParser(template, "<|channel|>analysis<|message|>")
    text = f"{THOUGHT}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{{}}"
    kinds = [(part.kind, part.text) for part in [*parser.feed(text), *parser.finish()]]
    assert kinds == [("reasoning", THOUGHT), ("content", "{}")]


def test_both_forms_of_lfm2_have_it():
    assert LFM2_MOE.response_template == LFM2.response_template


SPEC = {
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "[gMASK]",
            "close": "[/CALL]",
            "repeats": True,
            "content": "json",
            "transform": {"function": "{content}"},
        },
        "content": {},
    },
}
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
WITH_CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKS = "{# [gMASK] [/CALL] #}"


def demo(chat_template, of_family=None, of_file=None, folder=None):
    """Return the demo with templates."""
    path = "demo"
    if of_file is not None:
        path = write_demo(folder / "demo.gguf", {RESPONSE_TEMPLATE_KEY: json.dumps(of_file)})
    model = mtpcore.load_model(path)
    if of_family is not None:
        of_family = json.dumps(of_family)
        model.spec = msgspec.structs.replace(model.spec, response_template=of_family)
    model.chat_template = ChatTemplate(chat_template)
    return model


@pytest.mark.parametrize(
    ("chat_template", "close", "is_used"),
    [
        (PLAIN + MARKS, "[/CALL]", True),
        (WITH_CALLS + MARKS, "[/CALL]", True),
        (PLAIN, "[gMASK]", True),  # control tokens, and no other calls are known
        (WITH_CALLS, "[gMASK]", False),
        (PLAIN, "[/CALL]", False),
        (PLAIN.replace("<assistant>", "<model>") + MARKS, "[/CALL]", False),
    ],
)
def test_a_familys_template_is_for_its_own_chat_templates(chat_template, close, is_used):
    calls = SPEC["fields"]["tool_calls"] | {"close": close}
    spec = SPEC | {"fields": {**SPEC["fields"], "tool_calls": calls}}
    with demo(chat_template, spec) as model:
        assert (model.response_template is not None) == is_used
        model.chat_template = ChatTemplate(PLAIN.replace("<assistant>", "<model>"))
        assert model.response_template is None


def test_a_files_template_wins(tmp_path, caplog):
    of_file = {"start_anchor": "<assistant>", "fields": {"content": {}}}
    with demo(WITH_CALLS + MARKS, SPEC, of_file, tmp_path) as model:
        assert model.response_template.source == of_file
        with caplog.at_level(logging.WARNING, "mtpcore"):
            model.chat_template = ChatTemplate(PLAIN.replace("<assistant>", "<model>"))
            assert model.response_template is None
    assert "another chat template" in caplog.text


def test_malformed_templates_are_errors(tmp_path):
    of_file = demo(PLAIN, of_file={"fields": {}}, folder=tmp_path)
    with of_file as model, pytest.raises(ModelFileError, match="no response template"):
        model.response_template  # noqa: B018
    of_family = demo(PLAIN, of_family={"fields": {}})
    with of_family as model, pytest.raises(PluginError, match="malformed response template"):
        model.response_template  # noqa: B018
