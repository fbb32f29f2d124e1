"""Options and commands of other programs: understood, or answered in one line."""

import json

import pytest

from mtpcore.cli.foreign import FOREIGN, Refused, translate

RUN = ("run", "demo", "hi", "-n", 2)
OURS = {"-p", "-n", "--raw", "--chat", "--stop", "--when-full", "-md", "-hfd", "--quiet", "-q"}


def test_every_row_says_something():
    for name, foreign in FOREIGN.items():
        assert name.startswith("-")
        assert foreign.said
        assert not foreign.ours or foreign.ours.partition("=")[0] in OURS
        assert foreign.refused or not foreign.neutral


@pytest.mark.parametrize(
    ("words", "ours", "said"),
    [
        ("-p hi -ngl 99 -n 3", "-p hi -n 3", ["-ngl"]),
        ("--gpu-layers=99 -p hi", "-p hi", ["--gpu-layers"]),
        ("-fa hi", "hi", ["-fa"]),
        ("-fa on hi -fa", "hi", ["-fa", "-fa"]),
        ("-no-cnv x -r y --log-disable", "--raw x --stop y --quiet", []),
        ("--no-context-shift", "--when-full=stop", []),
        ("--adaptive-target -1 --mirostat 0 x", "x", []),
        ("-q -- -ngl 3", "-q -- -ngl 3", []),
        ("--nonsense -ngl", None, "-ngl takes a value"),
        ("--mirostat 2", None, "--mirostat: there is no such sampler"),
        ("-mu a/b", None, "-mu: download the file first"),
        ("--spec-draft-hf a/b", "-hfd a/b", []),
        ("--lora=x", None, "--lora: run, chat, serve, bench and eval take"),
        ("--jinja --host x", None, "--host: mtpcore serve"),
        ("--grammar x", None, "--grammar: mtpcore run and chat give"),
    ],
)
def test_words_become_ours_or_are_answered(words, ours, said):
    if ours is None:
        with pytest.raises(Refused, match=said):
            translate(words.split(), OURS, FOREIGN)
        return
    found, lines = translate(words.split(), OURS, FOREIGN)
    assert found == ours.split()
    assert [line.split()[0] for line in lines] == said


def test_what_a_command_does_not_have():
    assert translate(["-cnv"], (), FOREIGN) == (
        [],
        ["-cnv does nothing here: a conversation is what chat has"],
    )
    with pytest.raises(Refused, match="mtpcore run --raw"):
        translate(["-no-cnv"], (), FOREIGN)
    assert translate(["-ngl", "3"], {"-ngl"}, FOREIGN) == (["-ngl", "3"], [])


def test_a_command_line_of_llama_cpp_runs(command):
    """Nothing that it says changes the text, and each option has its line."""
    line = "-ngl 99 -fa on -ctv f16 --jinja -no-cnv -t -1 -c 0 --seed -1 --top-nsigma -1"
    code, out, err = command(*RUN, "--temp", 0, *line.split(), "--color", "off", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["n_ctx"] == 512
    assert (
        json.loads(out)["tokens"] == json.loads(command(*RUN, "--temp", 0, "--json")[1])["tokens"]
    )
    assert err.count("does nothing here: ") == 4
    assert "does nothing" not in command(*RUN, "-ngl", 9, "-q")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "demo", "x", "-mu", "a/b"), "run: -mu: download the file first"),
        (("run", "demo", "-hx"), "unknown argument -hx\n"),
        (("run", "demo", "-nfoo"), "unknown argument -nfoo\n"),
        (("run", "demo", "--top_k", "3"), "did you mean --top-k?"),
        (("run", "demo", "--ctx", "3"), "did you mean --ctx-size?"),
        (("run", "demo", "--frobnicate"), "unknown argument --frobnicate\n"),
        (("convert", "-hf"), "unknown argument -hf\n"),
        (("chatt",), "did you mean chat?"),
        (("generate",), "mtpcore run writes a text"),
        (("server",), "mtpcore serve answers clients"),
        (("xyz",), "there are run, chat, serve, pull"),
        (("m.gguf", "hi"), "did you mean mtpcore run m.gguf?"),
        (("-m", "m.gguf", "-p", "hi"), "options follow a command, as in mtpcore run -m"),
        (("-hf", "a/b"), "options follow a command"),
    ],
)
def test_what_is_not_understood_is_code_2_and_no_guess(command, words, said):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) <= 2


def test_a_value_may_follow_a_letter(command):
    wanted = command(*RUN, "--temp", 0)[1]
    assert command("run", "demo", "-phi", "-n2", "--temp", 0)[:2] == (0, wanted)
