"""What the demo models write, and how much of it their heads foresee; prompts are held out."""

import json
from pathlib import Path

import pytest

import mtpcore

PROMPTS = Path(__file__).resolve().parents[1] / "data/demo/prompts.json"
N_TOKENS = 64


@pytest.fixture(scope="module")
def prompts():
    return [p["text"] for p in json.loads(PROMPTS.read_text(encoding="utf-8"))]


def write(name, prompts, draft, small=None, **options):
    """Continue the prompts one after the other, greedily unless the options say otherwise."""
    model = mtpcore.load_model(name)
    llm = mtpcore.Context(model, 160)
    if draft:
        llm = mtpcore.link(llm, draft_model=small and mtpcore.load_model(small))
    options = {"sampling": mtpcore.Sampling.greedy(), **options}
    generator = mtpcore.Generator(llm, draft=draft, **options)
    encoded = map(model.tokenizer.encode, prompts)
    texts = [list(generator.generate(ids, max_tokens=N_TOKENS)) for ids in encoded]
    return texts, generator.stats, model.tokenizer


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("demo", 0.65),
        ("demo:deepseek", 0.5),
        ("demo:mimo", 0.5),
        ("demo:mimo2", 0.5),
        ("demo:eagle3", 0.45),
    ],
)
def test_drafts_are_often_right_and_change_nothing(prompts, name, wanted):
    plain, _, tokenizer = write(name, prompts, 0)
    texts, stats, _ = write(name, prompts, 3)
    assert texts == plain
    assert stats.acceptance_per_position[0] >= wanted
    written = "".join(map(tokenizer.decode, plain))
    assert sum(map(len, plain)) > len(prompts) * N_TOKENS / 2
    for sign in ("\n    ", "self", "(", "= ", "return"):
        assert sign in written


def test_a_draft_model_is_often_right_and_shares_the_noise(prompts):
    """Three of four greedy drafts are accepted; sampled ones twice as often as best guesses."""
    plain, _, _ = write("demo", prompts[:8], 0)
    texts, stats, _ = write("demo", prompts[:8], 3, "demo:small")
    assert texts == plain
    assert stats.acceptance_per_position[0] >= 0.6
    sampled = {"sampling": mtpcore.Sampling(temperature=1.0, seed=3)}
    rates = [
        write("demo", prompts[:8], 3, "demo:small", draft_sampler=kind, **sampled)[
            1
        ].acceptance_per_position[0]
        for kind in ("coupled", "argmax")
    ]
    assert rates[0] >= 0.5
    assert rates[0] >= 1.8 * rates[1]
