"""Options of the sampler: each sets its field, and what cannot be read is refused."""

import json
from argparse import ArgumentParser

import msgspec
import pytest

from mtpcore.cli.samplers import (
    FIELDS,
    add_sampling_options,
    given_sampling,
    spell_sampling,
    spell_settings,
)
from mtpcore.sampling import Sampling

OTHERS = {
    "--dry-sequence-breaker": ("\n", "dry_sequence_breakers", ["\n"]),
    "--logit-bias": ("7-1.5", "logit_bias", {7: -1.5}),
    "--seed": ("5", "seed", 5),
    "--stream": ("5", "stream", 5),
}


def given(*arguments):
    parser = ArgumentParser(exit_on_error=False)
    add_sampling_options(parser)
    options = parser.parse_args([*arguments])
    options.parser = parser
    return given_sampling(options)


@pytest.mark.parametrize("name", FIELDS)
def test_an_option_sets_its_field(name):
    assert given(f"--{name}", "1") == {FIELDS[name]: 1, "stream": 0}


def test_minus_one_switches_off_what_it_does_in_llama_cpp():
    assert given("--top-k", "-1", "--top-nsigma", "-1") == {
        "top_k": 0,
        "top_n_sigma": 0,
        "stream": 0,
    }


@pytest.mark.parametrize("name", OTHERS)
def test_options_that_are_no_numbers(name):
    text, field, value = OTHERS[name]
    assert given(name, text) == {"stream": 0} | {field: value}


def test_every_setting_has_an_option():
    fields = {field.name for field in msgspec.structs.fields(Sampling)}
    others = {field for _, field, _ in OTHERS.values()} | {"grammar"}  # which --json-schema makes
    assert fields == {*FIELDS.values(), *others}


def test_breakers_and_biases_come_together():
    both = given("--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b")
    assert both["dry_sequence_breakers"] == ["a", "b"]
    assert given("--dry-sequence-breaker", "none")["dry_sequence_breakers"] == []
    assert given("-l", "1+2", "-l", "3-inf")["logit_bias"] == {1: 2, 3: -float("inf")}


@pytest.mark.parametrize(
    ("option", "value"),
    [("-l", "7"), ("-l", "x+1"), ("-l", "7+many"), ("-l", "7+inf"), ("--dry-base", "0.5"),
     ("--typical", "0"), ("--repeat-last-n", "-2"), ("--xtc-threshold", "few")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(command, glm, option, value):
    code, out, err = command("run", glm, "x", "-n", 1, option, value)
    assert (code, out) == (2, "")
    assert "wanted" in err or "invalid" in err


def test_settings_are_spelled_as_their_options():
    usual = "temp 1, top-k 0, top-p 1, min-p 0, repeat-penalty 1"
    assert spell_settings(Sampling(seed=1)) == usual
    changed = Sampling(seed=1, dry_multiplier=0.8, penalty_last_n=64)
    assert spell_settings(changed) == f"{usual}, repeat-last-n 64, dry-multiplier 0.8"
    assert spell_sampling({"typical_p": 0.5}) == "typical 0.5"


def test_what_a_text_is_not_to_be(command, glm):
    base = ("run", glm, "def read(", "-n", 40, "--temp", 0, "--json", "--compare")
    free = json.loads(command(*base)[1])
    banned, last = free["text"][4:7], free["tokens"][-1]
    code, out, _ = command(
        *(*base, "--banned-string", banned, "--min-tokens", 30, "--stop-token-ids", last)
    )
    bound = json.loads(out)
    assert code == 0
    assert bound["compare"]["equal"]
    assert banned in free["text"]
    assert banned not in bound["text"]
    assert len(bound["tokens"]) >= 30
    assert last not in bound["tokens"]


def test_a_text_has_what_was_asked_for(command, glm):
    """With drafts and without, and not what is written without these samplers."""
    asked = ("--dry-multiplier", 3, "--xtc-probability", 0.5, "--dynatemp-range", 0.3, "-l", "5+1")
    base = ("run", glm, "def read(", "-n", 24, "--seed", 3, "--json", "--draft")
    texts = []
    for arguments in ((*base, 3, *asked, "--compare"), (*base, 0, *asked), (*base, 0)):
        code, out, _ = command(*arguments)
        assert code == 0
        texts.append(json.loads(out)["tokens"])
    assert texts[0] == texts[1] != texts[2]
