"""Options of chat templates: another template, its variables, and how much a model thinks."""

import argparse
import io
import json

import pytest

import mtpcore
from mtpcore.cli import serve
from mtpcore.cli.templates import take_response_template, take_template
from mtpcore.gguf import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{{ enable_thinking | default('?') }} {{ reasoning_effort | default('?') }} {{ mood }}"
    "<assistant>"
)


@pytest.fixture
def seen(command):
    """What a model reads of a question with these options."""

    def run(*options):
        code, out, err = command("run", "demo", "hi", "-n", 1, "-t", 1, "--json", *options)
        assert code == 0, err
        with mtpcore.load_model("demo") as model:
            return model.tokenizer.decode(json.loads(out)["prompt_tokens"], special=True)

    return run


def test_a_template_in_place_of_the_file_s(seen, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE, "utf-8")
    wanted = "<user>hi\n? ? <assistant>"
    assert seen("--chat-template", TEMPLATE) == wanted
    assert seen("--chat-template-file", path) == wanted
    with mtpcore.load_model("demo") as model:
        end = model.tokenizer.decode([model.tokenizer.eos], special=True)
    assert seen("--chat-template", "{{ eos_token }}x") == f"{end}x"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--chat-template-kwargs", '{"mood": "glad"}'), "? ? glad"),
        (("--reasoning", "off"), "False ? "),
        (("-rea", "on", "--reasoning-effort", "low"), "True low "),
        (("--reasoning-effort", "none"), "False ? "),
        (("--reasoning", "auto"), "? ? "),
        (("--reasoning", "off", "--chat-template-kwargs", '{"enable_thinking": 3}'), "3 ? "),
    ],
)
def test_variables_of_the_template(seen, options, wanted):
    assert seen("--chat-template", TEMPLATE, *options) == f"<user>hi\n{wanted}<assistant>"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--chat-template", "chatml"), 2, "there are none by name"),
        (("--chat-template-file", "nowhere"), 2, "nowhere"),
        (("--chat-template", "{% if %}"), 1, "--chat-template"),
        (("--chat-template", "{}", "--chat-template-file", __file__), 2, "not allowed with"),
        (("--chat-template-kwargs", "[1]"), 2, "wanted a JSON object"),
        (("--chat-template", TEMPLATE, "--chat-template-kwargs", '{"messages": 1}'), 1, "messages"),
        (("--chat-template", "{}", "--reasoning", "on", "--reasoning-effort", "none"), 2, "one"),
        (("--reasoning", "perhaps"), 2, "invalid choice"),
        (("--reasoning-effort", ""), 2, "wanted a word"),
        (("--reasoning", "off"), 1, "no chat template"),
        (("--raw", "--reasoning", "off"), 2, "--raw continues a text"),
        (("--reasoning-budget", "100"), 2, "reasoning has no budget"),
    ],
)
def test_what_makes_no_sense(command, options, code, said):
    found, _, err = command("run", "demo", "hi", "-n", 1, *options)
    assert found == code
    assert said in err


def test_a_variable_that_is_not_read_is_named(command):
    line = ("run", "demo", "hi", "-n", 1, "--chat-template", "{{ messages }}", "--reasoning")
    assert "does not read enable_thinking" in command(*line, "off")[2]
    assert "does not read" not in command(*line, "auto")[2]


def test_a_chat_has_them_too(command, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    line = ("chat", "demo", "-n", 8, "--seed", 3, "-t", 1, "--chat-template", TEMPLATE)
    code, out, _ = command(*line, "--reasoning", "off")
    assert code == 0
    with mtpcore.LM("demo", draft=0, threads=1) as lm:
        prompt = lm.tokenizer.encode(
            "<user>hi\nFalse ? <assistant>", add_special=False, parse_special=True
        )
        assert out.rstrip("\n") == lm.generate(prompt, max_tokens=8, seed=3).text.rstrip("\n")


RESPONSE = {
    "start_anchor": "<assistant>",
    "fields": {"reasoning_content": {"open": "(", "close": ")"}, "content": {}},
}


@pytest.fixture
def taken():
    """The response template of the demo with these options of a server."""

    def take(*options):
        parser = argparse.ArgumentParser()
        serve.add_options(parser)
        found = parser.parse_args(["demo", "--chat-template", TEMPLATE, *map(str, options)])
        with mtpcore.load_model("demo") as model:
            take_template(found, model)
            take_response_template(found, model)
            return model.response_template

    return take


def test_a_response_template_of_a_run(taken, tmp_path):
    path = tmp_path / "response.json"
    path.write_text(json.dumps(RESPONSE), "utf-8")
    assert taken() is None
    assert taken("--response-template", json.dumps(RESPONSE)).source == RESPONSE
    assert taken("--response-template-file", path).source == RESPONSE
    assert taken("--response-template", "none") is None
    with pytest.raises(mtpcore.ModelFileError, match="--response-template"):
        taken("--response-template", '{"fields": {}}')
    with pytest.raises(mtpcore.MtpcoreError, match="another chat template"):
        taken("--response-template", json.dumps(RESPONSE | {"start_anchor": "<model>"}))


def test_a_response_template_parses_answers_of_a_chat(command):
    options = ("chat", "demo", "--chat-template", TEMPLATE, "-n", 1)
    code, _, err = command(*options, "--response-template", "{}")
    assert code == 1
    assert "no response template" in err
    code, _, err = command("chat", "demo", "--response-template", json.dumps(RESPONSE))
    assert code == 1
    assert "chat template" in err


def test_a_response_template_in_a_file(command, tmp_path):
    first, second, third = (tmp_path / f"{i}.gguf" for i in range(3))

    def write(source, out, *options):
        code, _, err = command("quantize", source, out, "--outtype", "q8_0", *options)
        assert code == 0, err
        with mtpcore.load_model(out) as model:
            model.chat_template = ChatTemplate(TEMPLATE)
            return model.response_template

    assert write("demo", first, "--response-template", json.dumps(RESPONSE)).source == RESPONSE
    assert write(first, second).source == RESPONSE
    assert write(second, third, "--response-template", "none") is None
    assert "tokenizer.chat_response_template" not in mtpcore.load_model(third).metadata
    code, _, err = command(
        "quantize", "demo", first, "--outtype", "q8_0", "--response-template", "{}"
    )
    assert code == 1
    assert "no response template" in err
