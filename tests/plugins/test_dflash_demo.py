"""The trained drafter in the package: how many of its drafts the demo model accepts."""

import json
from pathlib import Path

import pytest

import mtpcore

PROMPTS = Path(__file__).parents[1] / "data/demo/prompts.json"


@pytest.fixture(scope="module")
def pair():
    return mtpcore.load_model("demo", sidecars=False), mtpcore.load_model("demo:dflash-draft")


def written(pair, temperature, draft, draft_sampler="coupled"):
    """Return the texts from some prompts, and what was drafted for them."""
    target, drafter = pair
    cross = mtpcore.link(mtpcore.Context(target, 256, threads=1), draft_model=drafter)
    sampling = mtpcore.Sampling(temperature=temperature, seed=1)
    generator = mtpcore.Generator(
        cross, sampling=sampling, draft=draft, draft_sampler=draft_sampler
    )
    prompts = [p["text"] for p in json.loads(PROMPTS.read_text("utf-8"))[:8]]
    texts = [
        list(generator.generate(target.tokenizer.encode(prompt), max_tokens=48, ignore_eos=True))
        for prompt in prompts
    ]
    return texts, generator.stats


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_without_drafts(pair, temperature):
    plain, _ = written(pair, temperature, 0)
    for draft in (1, 3, 5):
        texts, stats = written(pair, temperature, draft)
        assert texts == plain
        assert stats.drafted > 100


def test_two_of_five_drafts_are_accepted(pair):
    """Greedy, both tokens of a block of two; the first alone more often."""
    _, stats = written(pair, 0.0, 2)
    assert stats.acceptance > 0.4
    assert stats.acceptance_per_position[0] > 0.6


def test_coupled_drafts_are_accepted_more_often(pair):
    """At temperature 1 the drafter draws with the target's noise."""
    _, coupled = written(pair, 1.0, 2)
    _, argmax = written(pair, 1.0, 2, "argmax")
    assert coupled.acceptance > 0.35
    assert coupled.acceptance > argmax.acceptance + 0.1
