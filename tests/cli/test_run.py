"""``mtpcore run``."""

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

import mtpcore
from mtpcore.backends.cpu.backend import CpuPlan
from mtpcore.cli import prompts, run
from mtpcore.cli.prompts import TokenizedPrompt
from mtpcore.decoding import Generator
from mtpcore.sampling import USUAL

PROMPT = ("-p", "def read_config(path):", "--temp", "0")
GREEN = re.compile("\x1b\\[32m(.*?)\x1b\\[0m", re.S)


def library(path, prompt, n, draft):
    """The same text without the command line."""
    model = mtpcore.load_model(path)
    cross = mtpcore.link(mtpcore.Context(model, 256))
    gen = Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=draft)
    request = gen.add(prompt, max_tokens=n)
    while gen.active:
        gen.step()
    return request


def test_text_goes_to_standard_output_and_the_report_elsewhere(command, glm):
    code, out, err = command("run", glm, *PROMPT, "-n", 40, "--draft", 3)
    tokens = mtpcore.load_model(glm).tokenizer.encode(PROMPT[1])
    assert code == 0
    assert out.rstrip("\n") == library(glm, tokens, 40, 0).text.rstrip("\n")
    assert len(err.splitlines()) == 2


def test_the_report_is_two_lines_or_more_or_none(command, glm):
    write = ("run", glm, *PROMPT, "-n", 40, "--draft", 3)
    _, out, err = command(*write)
    speed, rounds = err.splitlines()
    found = json.loads(command(*write, "--json")[1])
    stats, n_prompt = found["stats"], len(found["prompt_tokens"])
    number = r"[\d,]+\.\d tokens/s"
    assert re.fullmatch(
        rf"mtpcore: prompt {n_prompt} tokens at {number}; text 40 tokens at {number}, "
        "cut by -n 40",
        speed,
    )
    assert rounds.strip() == (
        f"{stats['passes']} rounds of {stats['tokens_per_pass']:.2f} tokens; acceptance rate "
        f"{stats['acceptance']:.2f}, {stats['accepted']} of {stats['drafted']} drafts by glm_nextn"
    )
    again, more = command(*write, "--verbose")[1:]
    assert again == out
    assert rounds in more
    assert "acceptance rate by position of the draft: 0." in more
    assert re.search(r"prefill \d+%, draft \d+%, verify \d+%, sampling \d+%", more)
    assert command(*write, "--quiet") == (0, out, "")
    assert command(*write, "--quiet", "-v")[0] == 2


def test_a_seed_that_was_drawn_is_said(command, glm):
    write = ("run", glm, *PROMPT[:2], "-n", 40)
    _, out, err = command(*write, "--json")
    sampling = json.loads(out)["settings"]["sampling"]
    assert USUAL.items() <= sampling.items()
    assert f"(again with --seed {sampling['seed']})" in err
    _, again, err = command(*write, "--json", "--seed", sampling["seed"])
    assert json.loads(again)["tokens"] == json.loads(out)["tokens"]
    assert "--seed" not in err


def test_the_prompt_may_be_the_second_word(command, glm):
    wanted = command("run", glm, *PROMPT, "-n", 10)[1]
    words = PROMPT[1:2]
    for line in (
        ("run", glm, *words, "-n", 10, "--temp", 0),
        ("run", glm, "-n", 10, "--temp", 0, *words),
        ("run", "--temp", 0, glm, "-n", 10, *words),
    ):
        assert command(*line)[:2] == (0, wanted)
    for other in (PROMPT[:2], ("-f", "x"), ("--prompt-tokens", "1")):
        for line in (("run", glm, *words, *other), ("run", glm, *other, *words)):
            code, out, err = command(*line)
            assert (code, out) == (2, "")
            assert "give one prompt: PROMPT, -p TEXT" in err


def test_json_is_one_object_and_drafts_change_nothing(command, glm):
    found = {}
    for draft in (0, 1, 3):
        code, out, _ = command(
            "run", "-m", glm, "--prompt-tokens", "345, 297,346", "-n", 30, "--json",
            "--spec-draft-n-max", draft, "--temp", 0.8, "--top-k", 40, "--seed", 7,
        )  # fmt: skip
        found[draft] = json.loads(out)
        assert code == 0
        assert found[draft]["settings"]["draft"] == draft
        assert (found[draft]["stats"]["drafted"] > 0) == (draft > 0)
    one = found[3]
    assert one["prompt_tokens"] == [345, 297, 346]
    assert len(one["tokens"]) == 30
    assert one["stats"]["passes"] < 29
    assert one["stats"]["tokens_per_pass"] == pytest.approx(29 / one["stats"]["passes"])
    assert found[0]["stats"]["tokens_per_pass"] == 1
    assert {json.dumps([f["tokens"], f["text"]]) for f in found.values()} == {
        json.dumps([one["tokens"], one["text"]])
    }
    assert one["settings"]["sampling"]["seed"] == 7
    assert one["settings"]["guarantee"] == "exact"


def test_a_tree_writes_the_same_text(command, glm):
    """--draft-tree asks for a drafter, is as deep as it says, and less deep with --draft."""
    _, plain, _ = command("run", glm, *PROMPT, "-n", 40, "--draft", 0)
    tree = ("--draft-tree", "3,3,9", "--draft")
    code, out, err = command("run", glm, *PROMPT, "-n", 40, *tree, 3, "--compare")
    assert (code, out) == (0, plain)
    assert "drafts by glm_nextn, tree 3,3,9" in err
    assert "the texts are equal" in err
    for depth in (2, 3):
        _, out, _ = command("run", glm, *PROMPT, "-n", 40, "--json", *tree, depth)
        found = json.loads(out)
        assert found["settings"]["tree"] == {"paths": [], "depth": 3, "width": 3, "n_nodes": 9}
        assert len(found["stats"]["accepted_per_position"]) == depth
        assert found["stats"]["drafted"] > 5 * found["stats"]["verify_steps"]
    _, _, err = command("run", glm, *PROMPT, "-n", 4, "--draft-tree", "30,2,9")
    assert "8 levels, as glm_nextn drafts at most 8 tokens in a row" in err


def test_colours_mark_exactly_the_accepted_drafts(command, glm):
    _, out, _ = command("run", glm, *PROMPT, "-n", 40, "--draft", 3, "--color", "always")
    model = mtpcore.load_model(glm)
    request = library(glm, model.tokenizer.encode(PROMPT[1]), 40, 3)
    stream = model.tokenizer.stream()
    pieces = [stream.push(t) for t in request.tokens]
    wanted = [p for p, drafted in zip(pieces, request.drafted, strict=True) if drafted and p]
    assert GREEN.findall(out) == wanted
    assert len(wanted) > 5
    assert GREEN.sub(r"\1", out).rstrip("\n") == request.text.rstrip("\n")


@pytest.mark.parametrize("mode", ["auto", "never"])
def test_a_pipe_gets_no_colours(command, glm, mode):
    assert "\x1b" not in command("run", glm, *PROMPT, "-n", 20, "--color", mode)[1]


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_refused(glm, environment, coloured):
    ours, theirs = pty.openpty()
    base = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mtpcore", "run", glm, *PROMPT, "-n", "30", "--draft", "3"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=base | environment,
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # the other end has gone
        pass
    os.close(ours)
    report = process.communicate(timeout=60)[1]
    assert process.returncode == 0, report
    assert (b"\x1b[32m" in seen) == coloured
    assert PROMPT[1].encode() in seen
    assert b"\x1b" not in report


def test_compare_says_that_the_texts_are_equal(command, glm):
    code, out, err = command("run", glm, *PROMPT, "-n", 30, "--draft", 3, "--compare", "--json")
    found = json.loads(out)
    assert code == 0
    assert "the texts are equal" in err
    assert re.search(r"[\d.]+ times as fast", err)
    assert found["compare"]["equal"]
    assert found["compare"]["tokens"] == found["tokens"]
    assert found["compare"]["stats"]["drafted"] == 0


def test_a_difference_is_a_failure(command, glm, monkeypatch):
    monkeypatch.setattr(run, "first_difference", lambda one, other: 3)
    code, _, err = command("run", glm, *PROMPT, "-n", 5, "--compare")
    assert code == 1
    assert "differ from token 3 on" in err
    assert "please report it" in err


def test_stop_strings_end_the_text_before_them(command, glm):
    whole = command("run", glm, *PROMPT, "-n", 40)[1]
    stop = whole.strip()[6:10]
    code, out, _ = command("run", glm, *PROMPT, "-n", 40, "--stop", stop, "--stop", "\0never")
    assert code == 0
    assert out.rstrip("\n") == whole[: whole.index(stop)].rstrip("\n")


def test_a_file_and_standard_input_are_prompts_too(command, glm, tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT[1])
    wanted = command("run", glm, *PROMPT, "-n", 10)[1]
    assert command("run", glm, "-f", file, *PROMPT[2:], "-n", 10)[1] == wanted
    with file.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert command("run", glm, "-f", "-", *PROMPT[2:], "-n", 10)[1] == wanted
    file.write_bytes(b"\xff")
    assert command("run", glm, "-f", file)[0] == 1
    code, _, err = command("run", glm, "-f", tmp_path / "missing")
    assert code == 1
    assert "fix: -f FILE names a text" in err


@pytest.mark.parametrize("name", ["/dev/zero", "endless", "a\0b", "."])
def test_a_prompt_has_an_end(command, glm, tmp_path, monkeypatch, name):
    if name == "endless":
        monkeypatch.setattr("mtpcore.cli.prompts._LONGEST", 1000)
        name = tmp_path / name
        name.write_text("a" * 1001)
    code, out, err = command("run", glm, "-f", name)
    assert (code, out) == (1, "")
    assert "Traceback" not in err


def test_a_prompt_may_come_from_a_pipe(command, glm, tmp_path):
    wanted = command("run", glm, *PROMPT, "-n", 10)[1]
    reader, writer = os.pipe()
    os.write(writer, PROMPT[1].encode())
    os.close(writer)
    assert command("run", glm, "-f", f"/dev/fd/{reader}", *PROMPT[2:], "-n", 10)[1] == wanted
    os.close(reader)


def test_a_model_without_a_head(command, headless):
    auto = command("run", headless, *PROMPT, "-n", 10)
    assert auto[0] == 0
    assert auto[2].startswith("mtpcore: prompt ")  # nothing before the report
    assert " by lookup\n" in auto[2]
    assert auto[1] == command("run", headless, *PROMPT, "-n", 10, "--draft", 0)[1]
    compared = command("run", headless, *PROMPT, "-n", 10, "--compare")
    assert compared[:2] == auto[:2]
    assert "the texts are equal" in compared[2]
    repeats = ("-p", "a, b = b, a\nc, d = d, c\na, b = ", "--temp", 0, "-n", 40)
    code, out, err = command("run", headless, *repeats, "--draft", 3)
    assert (code, out) == (0, command("run", headless, *repeats, "--draft", 0)[1])
    said = "has no head and no draft model: lookup drafts, which copies from earlier in the text"
    assert err.splitlines()[0].endswith(said)
    assert re.search(r"[1-9]\d* of \d+ drafts by lookup", err)
    assert "lookup drafts" not in command("run", headless, *repeats, "--drafter", "lookup")[2]
    code, out, err = command("run", headless, *PROMPT, "-n", 10, "--draft-tree", "3,2,4")
    assert (code, out) == (1, "")
    assert "this drafter cannot draft trees" in err
    code, _, err = command("run", headless, *PROMPT, "-n", 10, "--drafter", "glm_nextn")
    assert (code, "or take lookup, which every model has" in err) == (1, True)


@pytest.mark.parametrize("option", ["--mtp-path", "-md", "--draft-model"])
def test_a_head_in_another_file(command, glm, headless, head_alone, option):
    wanted = json.loads(command("run", glm, *PROMPT, "-n", 20, "--draft", 2, "--json")[1])
    code, out, _ = command("run", headless, *PROMPT, "-n", 20, "--json", "--draft", 2, option,
                           head_alone)  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert found["tokens"] == wanted["tokens"]
    for count in ("drafted", "accepted", "passes"):
        assert found["stats"][count] == wanted["stats"][count]


def test_a_file_that_is_missing(command, headless, tmp_path):
    code, _, err = command("run", headless, *PROMPT, "--mtp-path", tmp_path / "none.gguf")
    assert code == 1
    assert "cannot open the file" in err
    assert "fix: name a GGUF file that exists" in err


def test_auto_says_what_it_chose_and_why(command, glm):
    """The default: the text is that of plain decoding; lengths and the last reason are reported."""
    code, out, err = command("run", glm, *PROMPT, "-n", 80, "--ignore-eos", "--compare", "-v")
    assert code == 0
    assert out == command("run", glm, *PROMPT, "-n", 80, "--ignore-eos", "--draft", 0)[1]
    assert "the texts are equal" in err
    assert re.search(
        r"drafts for a round: \d in \d+(, \d in \d+)*; lastly (off|drafting \d): ", err
    )
    assert re.search(r"a pass of [\d.]+ rows costs \d+\.\d\d of one of 1", err)
    found = json.loads(
        command("run", glm, *PROMPT, "-n", 80, "--ignore-eos", "--json", "--draft", "auto")[1]
    )
    assert found["settings"]["draft"] == "auto"
    stats = found["stats"]
    assert sum(stats["lengths"].values()) == stats["passes"]
    assert stats["decisions"][-1]["reason"]
    _, _, err = command("run", glm, *PROMPT, "-n", 20, "--draft", 2)
    assert "drafts for a round" not in err


@pytest.fixture(scope="module")
def chatty(write_part, tmp_path_factory):
    """The model with a chat template, whose answers end before long."""
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}[answer]"
    path = tmp_path_factory.mktemp("models") / "chat.gguf"
    return write_part(path, lambda name: True, **{"tokenizer.chat_template": template})


def prompt_of(command, *words):
    return json.loads(command("run", *words, "-n", 1, "--json")[1])["prompt_tokens"]


def test_a_prompt_goes_into_the_models_chat_template(command, glm, chatty):
    """As the template says, markers and all, and without what a text alone begins with."""
    tokenizer = mtpcore.load_model(glm).tokenizer

    def asked(text):
        return tokenizer.encode(text, add_special=False, parse_special=True)

    for words in (("hi",), ("--chat", "hi"), ("-p", "hi")):
        assert prompt_of(command, chatty, *words) == asked("[user] hi [answer]")
    system = asked("[system] be short [user] hi [answer]")
    assert prompt_of(command, chatty, "hi", "-sys", "be short") == system
    assert prompt_of(command, chatty, "hi", "--raw") == tokenizer.encode("hi")
    assert prompt_of(command, glm, "hi") == tokenizer.encode("hi")
    assert prompt_of(command, chatty, "--prompt-tokens", "7") == [7]
    for words in (
        ("hi", "--raw", "-sys", "x"),
        ("--prompt-tokens", "1", "--chat"),
        ("--raw", "--chat", "hi"),
    ):
        assert command("run", chatty, *words)[0] == 2
    code, _, err = command("run", glm, "hi", "-sys", "x")
    assert (code, "no chat template" in err) == (1, True)


def test_an_answer_ends_by_itself_or_says_what_cut_it(command, chatty, glm):
    """Without -n an answer goes on to its end, a text that is continued for 128 tokens."""
    code, out, err = command("run", chatty, "hi", "-c", 60, "--ignore-eos", "--json")
    assert (code, json.loads(out)["finish_reason"]) == (0, "length")
    assert "cut as the context of 60 tokens is full; -c N makes room" in err
    code, out, err = command("run", glm, *PROMPT, "--json", "--ignore-eos")
    assert (len(json.loads(out)["tokens"]), "cut by -n 128" in err) == (128, True)
    _, _, err = command("run", chatty, "hi", "-n", 60, "--stop", "e", "--temp", 0, "-v")
    assert "cut" not in err
    assert "put into the chat template" in err


def test_what_comes_through_a_pipe_precedes_the_prompt(command, glm, monkeypatch, tmp_path):
    tokenizer = mtpcore.load_model(glm).tokenizer
    file = tmp_path / "given.txt"
    for given, words, wanted in (
        ("a b\n", ("c",), "a b\n\nc"),
        ("a b\n", (), "a b\n"),
        ("\n", ("-p", "c"), "c"),
    ):
        file.write_text(given)
        with file.open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert prompt_of(command, glm, *words) == tokenizer.encode(wanted)


def test_a_silent_pipe_is_waited_for_aloud(command, glm, monkeypatch):
    monkeypatch.setattr(prompts, "_PATIENCE", 0)
    reader, writer = os.pipe()
    read = prompts._read

    def read_to_the_end(name):
        os.close(writer)
        return read(name)

    monkeypatch.setattr(prompts, "_read", read_to_the_end)
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        code, _, err = command("run", glm, *PROMPT, "-n", 1)
    assert (code, "reading standard input until it ends" in err) == (0, True)


def test_settings_that_the_file_recommends_are_taken_and_said(command, write_part, tmp_path):
    keys = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7, "general.sampling.xyz": 1}
    path = write_part(tmp_path / "m.gguf", lambda name: True, **keys)
    code, out, err = command("run", path, "x", "-n", 2, "--top-k", 9, "--json", "-v")
    settings = json.loads(out)["settings"]["sampling"]
    assert (code, settings["temperature"], settings["top_k"], settings["top_p"]) == (
        0,
        0.25,
        9,
        0.95,
    )
    assert "sampling as the file recommends: temp 0.25\n" in err
    assert "general.sampling.xyz is not taken" in err
    assert "sampling: temp 0.25, top-k 9, top-p 0.95, min-p 0.05, repeat-penalty 1" in err


def test_an_empty_prompt_is_refused_with_a_way_out(command, glm, monkeypatch):
    monkeypatch.setattr("mtpcore.cli.run.read_prompt", lambda options, model: TokenizedPrompt([]))
    code, _, err = command("run", glm, "-p", "", "-n", 3)
    assert code == 1
    assert "at least one token" in err
    assert "fix: begin with some text" in err


def test_no_tokens_are_a_short_report(command, glm):
    code, out, err = command("run", glm, *PROMPT, "-n", 0)
    assert (code, out.strip()) == (0, "")
    assert (
        err == "mtpcore: prompt 0 tokens; text 0 tokens, cut by -n 0\n"
        "         0 rounds; nothing was drafted by glm_nextn, lookup\n"
    )


def test_longer_drafts_than_the_drafter_makes_are_cut_aloud(command, glm):
    code, out, err = command("run", glm, *PROMPT, "-n", 10, "--draft", 50, "--json")
    assert code == 0
    assert "drafts at most 8" in err
    assert json.loads(out)["settings"]["draft"] == 8


def test_until_the_context_is_full(command, glm):
    out = command("run", glm, *PROMPT, "-n", -1, "-c", 40, "--ignore-eos", "--json")[1]
    found = json.loads(out)
    assert found["finish_reason"] == "length"
    assert len(found["prompt_tokens"]) + len(found["tokens"]) in (40, 41)


@pytest.mark.parametrize("way", [("--when-full", "shift"), ("--context-shift",)])
def test_beyond_the_end_of_the_context(command, glm, way):
    options = ("-n", 120, "-c", 40, "--ignore-eos", "--temp", 1, "--seed", 3, "--keep", 4)
    code, out, err = command(
        "run", glm, *PROMPT, *options, *way, "--draft", 2, "--compare", "--json", "-v"
    )
    found = json.loads(out)
    assert (code, len(found["tokens"])) == (0, 120)
    assert found["compare"]["equal"]
    assert found["stats"]["shifts"] == 5  # 18 tokens each, of 126
    assert "was shifted: 5 times" in err
    assert "do not fit" not in err


def test_backends_and_cache_types_are_options(command, glm):
    out = command(
        "run", glm, *PROMPT, "-n", 3, "--backend", "reference", "-ctk", "f32", "-t", 1, "--json"
    )[1]
    settings = json.loads(out)["settings"]
    assert (settings["backend"], settings["kv_dtype"], settings["threads"]) == (
        "reference",
        "f32",
        1,
    )


def test_checkpoints_have_a_budget_where_a_model_has_none(command, glm):
    """Without recurrent layers it is accepted and does nothing."""
    texts = []
    for words in ((), ("--checkpoint-bytes", 0), ("--checkpoint-bytes", 1 << 40)):
        out = command("run", glm, *PROMPT, "-n", 5, "--temp", 0, *words, "--json")[1]
        found = json.loads(out)
        assert found["settings"]["checkpoint_bytes"] == (words[1] if words else None)
        texts.append(found["text"])
    assert texts == texts[:1] * 3


@pytest.mark.parametrize("n_bytes", ["-1", "64M", 1 << 53])
def test_a_budget_is_a_whole_number(command, glm, n_bytes):
    code, out, err = command("run", glm, "x", "--checkpoint-bytes", n_bytes)
    assert (code, out) == (2, "")
    assert "wanted a whole number >= 0" in err


def test_backends_are_offered(command, glm):
    for words in (("run", "--help"), ("run", glm, "x", "--backend", "vulkan")):
        _, out, err = command(*words)
        assert "cpu, reference, cuda" in out + err


def test_a_device_that_is_not_there_is_an_error(command, glm):
    for backend, said in (("cuda:64", "no CUDA device"), ("cpu:1", "without devices")):
        code, out, err = command("run", glm, "x", "--backend", backend)
        assert (code, out) == (1, "")
        assert err.startswith("mtpcore: ")
        assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt-tokens", "99999"), "no such token"),
        (("-p", "x", "--chat"), "no chat template"),
        (("-p", "x" * 99, "-c", "4"), "or leave -c out"),
        (("-p", "x", "--drafter", "nobody"), "no drafter 'nobody'"),
        (("-p", "x", "-md", __file__), "GGUF"),
    ],
)
def test_errors_are_one_message(command, glm, arguments, said):
    code, out, err = command("run", glm, *arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert "Traceback" not in err
    assert err.startswith("mtpcore: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x.gguf", "-p", "x", "--drfat", "3"), "did you mean --draft?"),
        (("x.gguf", "-p", "x", "--spec-draft-n-mx=3"), "did you mean --spec-draft-n-max?"),
        (("x.gguf", "-p", "x", "--draft", "many"), "wanted a whole number >= 0"),
        (("x.gguf", "-p", "x", "--temp", "-1"), "bad temperature"),
        (("x.gguf", "-p", "x", "--top-p", "2"), "top_p"),
        (("x.gguf", "-p", "x", "--p-min", "2"), "0..1"),
        (("x.gguf", "-p", "x", "--draft-tree", "3,4"), "wanted DEPTH,WIDTH,NODES"),
        (("x.gguf", "-p", "x", "--draft-tree", "3,0,4"), "wanted a whole number >= 1"),
        (("-p", "x"), "give one model"),
        (("x.gguf", "-m", "y.gguf", "-p", "x"), "give one model"),
        (("x.gguf", "-p", "x", "-f", "y"), "not allowed with"),
        (("x.gguf", "-p", "x", "-n", "-5"), "got '-5'"),
    ],
)
def test_wrong_arguments_are_code_2(command, arguments, said):
    code, out, err = command("run", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_prompt_must_be_given(command, glm):
    code, _, err = command("run", glm)
    assert code == 2
    assert "give a prompt" in err


def test_interruption_ends_with_the_report(command, glm, monkeypatch):
    step, rounds = Generator.step, []

    def interrupt(self):
        rounds.append(1)
        if len(rounds) == 5:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Generator, "step", interrupt)
    code, out, err = command("run", glm, *PROMPT, "--json", "--compare")
    assert code == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert "round" in err


def test_an_interrupted_prompt_is_reported_as_far_as_it_was_read(command, glm, monkeypatch):
    """A batch that a signal cuts off is taken back: it does not count."""
    process, batches = CpuPlan.run, []

    def interrupt(self, rows, memory):
        batches.append(len(rows.tokens))
        if len(batches) == 4:
            raise KeyboardInterrupt
        return process(self, rows, memory)

    monkeypatch.setattr(CpuPlan, "run", interrupt)
    code, out, err = command("run", glm, "--prompt-tokens", ",".join(["7"] * 50), "-b", 8, "--json")
    assert code == 130
    found = json.loads(out)
    assert (found["finish_reason"], found["tokens"]) == ("cancelled", [])
    assert err.splitlines()[0] == "mtpcore: interrupted: read 24 of 50 prompt tokens"
    assert err.splitlines()[1].startswith("mtpcore: prompt 24 tokens at ")
    assert found["stats"]["prefill_tokens"] == sum(batches[:3]) == 24


def test_a_signal_ends_with_the_report(glm):
    # Where this process ignores the signal (it runs in a background), its children would too.
    main = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from mtpcore.cli import main; sys.exit(main())"
    )
    program = [sys.executable, "-c", main, "run", glm, *PROMPT, "-n", "-1", "-c", "9999"]
    process = subprocess.Popen(
        [*program, "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.read(1)  # it writes
    process.send_signal(signal.SIGINT)
    report = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, report
    assert "round" in report
    assert "Traceback" not in report


def test_a_tree_is_not_left_out_silently(command, glm):
    code, _, err = command("run", glm, *PROMPT, "-n", 4, "--draft", 0, "--draft-tree", "3,2,6")
    assert code == 0
    assert "--draft 0" in err.splitlines()[0]
