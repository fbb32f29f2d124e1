"""Processors that say they are pure run on drafts, too: the same text, and more drafts accepted."""

import logging

import numpy as np
import pytest
from harness.scripted import SCRIPTS, Scripted, cross_of, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    LM,
    Generator,
    PureProcessor,
    Sampling,
    SamplingError,
    TreeShape,
)
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import DraftProcessor

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)


def even_sum(tokens, logits):
    """Forbid half of the tokens, by those before."""
    logits[(int(tokens.sum()) + 1) % 2 :: 2] = -np.inf


def text_of(processor, draft, drafter="head", sampling=WARM, n=16, tree=None, **options):
    cross = cross_of(drafter, skill=14, tree=tree)[0]
    generator = Generator(cross, sampling=sampling, draft=draft)
    request = generator.add(PROMPT, max_tokens=n, logits_processor=processor, **options)
    run(generator)
    return request.tokens, generator.stats


@searching(60)
@given(
    sampling=settings(),
    draft=st.integers(1, 5),
    tree=st.sampled_from(
        [None, TreeShape(depth=3, width=2, n_nodes=5), TreeShape(paths=((0, 0), (1,)))]
    ),
    kind=st.sampled_from(["head", "script"]),
    p_min=st.sampled_from([0.0, 0.2]),
    logprobs=st.sampled_from([None, 1]),
)
def test_the_text_is_the_same(sampling, draft, tree, kind, p_min, logprobs):
    drafter = "head" if kind == "head" else Scripted(SCRIPTS["right"])
    tree = tree if kind == "head" else None
    given = {"sampling": sampling, "p_min": p_min, "logprobs": logprobs}
    plainly, _ = text_of(even_sum, 0, **given)
    for processor in (even_sum, PureProcessor(even_sum)):
        text, _ = text_of(processor, draft, drafter, tree=tree, **given)
        assert text == plainly


@pytest.mark.parametrize(
    "tree", [None, TreeShape(depth=3, width=2, n_nodes=5)], ids=["chain", "tree"]
)
def test_drafters_see_it_alone_if_it_is_pure(tree):
    calls = {}
    for kind in (lambda processor: processor, PureProcessor):
        seen = []

        def watch(tokens, logits, seen=seen):
            seen.append(len(tokens))
            even_sum(tokens, logits)

        _, stats = text_of(kind(watch), 3, n=40, tree=tree)
        calls[kind] = seen, stats.accepted / stats.drafted
    (plain, before), (pure, after) = calls.values()
    assert plain == [*range(3, 43)]
    assert len(pure) > len(plain)
    assert after > before + 0.1


def test_what_is_raised_for_a_draft_ends_the_drafts_alone(caplog):
    """The target may never come to that place; if it does the round raises."""
    truth, _ = text_of(even_sum, 0)

    @PureProcessor
    def fail(tokens, logits):
        if tokens.tolist() != [*PROMPT, *truth][: len(tokens)]:
            raise KeyError("no such state")
        even_sum(tokens, logits)

    with caplog.at_level(logging.WARNING):
        text, stats = text_of(fail, 4)
    assert text == truth
    assert stats.accepted
    assert sum(record.message.count("KeyError") for record in caplog.records) == 1


def test_logits_of_a_draft_vocabulary_stand_where_their_tokens_are():
    seen, told = [], []

    @PureProcessor
    def watch(tokens, logits):
        seen.append(logits.copy())
        logits[5] = 9
        return None if len(tokens) == 1 else logits[:3]

    change = DraftProcessor(watch, 8, told.append)
    row, ids = np.array([1, 2], np.float32), np.array([2, 5], np.int32)
    assert change(np.zeros(1, np.int32), row, ids).tolist() == [1, 9]
    assert seen[0][ids].tolist() == [1, 2]
    assert np.isneginf(np.delete(seen[0], ids)).all()
    assert change(np.zeros(1, np.int32), row).tolist() == [1, 2]
    assert not told
    assert np.isneginf(change(np.zeros(2, np.int32), row, ids)).all()
    assert "SamplingError" in told[0]
    assert row.tolist() == [1, 2]


def test_the_direct_api_takes_it():
    pure = PureProcessor(even_sum)
    truth, _ = text_of(even_sum, 0, n=8)
    cross = cross_of("head", skill=16)[0]
    cross.llm.process(Batch.of(PROMPT))
    assert cross.pending(0, WARM, pure) == truth[0]
    drafts = cross.draft(0, 4, WARM, processors={0: pure})
    assert all(
        token % 2 == sum([*PROMPT, truth[0], *drafts[:i]]) % 2 for i, token in enumerate(drafts)
    )
    assert len(drafts) == 4
    assert cross.verify({0: drafts}, WARM, processors={0: pure})[0].tokens[0] == truth[1]
    with pytest.raises(SamplingError, match="callable"):
        PureProcessor(3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_lm_lets_drafters_see_it(backend):
    """Of two that do the same the pure one has more accepted; so has a bias, which is as pure."""
    n_vocab = 2048
    allowed = np.arange(0, n_vocab, 97)
    bias = dict.fromkeys(set(range(n_vocab)) - set(allowed.tolist()), -np.inf)

    def some(tokens, logits):
        row = np.full_like(logits, -np.inf)
        row[allowed] = logits[allowed]
        return row

    made = {}
    with LM("demo", draft=3, backend=backend) as lm:
        for name, options in {
            "plain": {"logits_processor": some},
            "pure": {"logits_processor": PureProcessor(some)},
            "bias": {"logit_bias": bias},
        }.items():
            made[name] = lm.generate("x = ", max_tokens=24, seed=5, temperature=0.7, **options)
    assert len({one.tokens for one in made.values()}) == 1
    assert made["pure"].stats.accepted == made["bias"].stats.accepted
    assert made["pure"].stats.acceptance >= made["plain"].stats.acceptance
