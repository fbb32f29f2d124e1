"""A text that fills the context goes on: it is the one that its definition gives."""

from itertools import chain

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES, HYBRID
from harness.hashed import N_VOCAB, START, Planted, advance, logits_of
from harness.requests import lettered, seeing
from harness.scripted import cross_of, run, sampler_of, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, BatchError, CapacityError, Generator, LinkError, Sampling

WARM = Sampling(temperature=1.0, seed=8)
LONG = [(n * n + 5) % N_VOCAB for n in range(60)]


def shifted(prompt, sampling, n, n_ctx, n_keep):
    """The hashed model's text by definition, one row after the other; and the tokens held then."""
    held, n_prompt, text, n_shifts = list(prompt), len(prompt), [], 0
    keep = min(len(prompt), n_ctx // 2) if n_keep is None else n_keep
    drop = -(-(n_ctx - keep) // 2)
    while len(text) < n:
        if len(held) > n_ctx:
            n_prompt = min(n_prompt, keep) + max(n_prompt - keep - drop, 0)
            del held[keep : keep + drop]
            n_shifts += 1
        state = START
        for token in held:
            state = advance(state, token)
        stream = (sampling.stream + n_shifts * 0x9E3779B97F4A7C15) % 2**64
        sampler = sampler_of(msgspec.structs.replace(sampling, stream=stream))
        history = np.asarray(held, np.int32)
        text.append(sampler.choose(logits_of(state), history, n_prompt, len(history)))
        held.append(text[-1])
    return text, held, n_shifts


@st.composite
def wants(draw):
    """A context and requests that mostly outgrow it, some beginning alike."""
    n_ctx = draw(st.integers(2, 40))
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, n_ctx))
        base = draw(st.integers(0, 2))
        prompt = [(base + token) % N_VOCAB for token in LONG[:n]]
        requests.append(
            {
                "prompt": prompt,
                "sampling": draw(settings()),
                "max_tokens": draw(st.integers(1, 3 * n_ctx)),
                "n_keep": draw(st.sampled_from([None, 0, n_ctx - 1, n_ctx // 3])),
                "draft": draw(st.sampled_from([0, 1, 4, "auto"])),
            }
        )
    return n_ctx, requests


@searching(120)
@given(
    wanted=wants(),
    n_seq_max=st.integers(1, 3),
    prefix_cache=st.sampled_from([None, 0, "all"]),
    fails=st.sampled_from([None, 3, 17, 60]),
)
def test_the_text_is_the_one_of_its_definition(wanted, n_seq_max, prefix_cache, fails):
    n_ctx, requests = wanted
    cross, backend = cross_of("head", skill=12, n_ctx=n_ctx, n_seq_max=n_seq_max)
    generator = Generator(cross, prefix_cache=prefix_cache)
    backend.fail_at = fails
    made = [generator.add(when_full="shift", **one) for one in requests]
    while generator.active:
        try:
            generator.step()
        except Planted:
            continue
    backend.fail_at = None
    n_shifts = 0
    for request, one in zip(made, requests, strict=True):
        rest = (one["sampling"], one["max_tokens"], n_ctx, one["n_keep"])
        text, held, n = shifted(one["prompt"], *rest)
        assert (request.tokens, request.finish_reason) == (text, "length")
        assert (request.n_shifts, request.n_held) == (n, len(held))
        n_shifts += n
    assert generator.stats.shifts == n_shifts
    for seq in range(n_seq_max):
        fresh = cross_of("head", skill=12, n_ctx=n_ctx, n_seq_max=n_seq_max)[0]
        if tokens := cross.tokens(seq):
            fresh.llm.process(Batch.of(tokens, seq=seq))
        assert cross.digest(seq) == fresh.digest(seq)


@pytest.mark.parametrize("subject", [*FAMILIES, HYBRID], ids=str)
def test_drafts_change_no_text_that_is_shifted(subject):
    """With real memory: drafts of every family, logits as they are recorded, and the digest."""
    texts = []
    prompt = subject.text(30).tolist()
    for draft in (0, 3):
        cross = subject.link(64, threads=1)
        generator = Generator(cross, sampling=WARM, draft=draft)
        request = generator.add(
            prompt, max_tokens=90, ignore_eos=True, logprobs=1, when_full="shift", n_keep=4
        )
        while len(request.tokens) < 80:
            generator.step()
        assert request.n_shifts == 2
        fresh = subject.link(64, threads=1)
        fresh.llm.process(Batch.of(cross.tokens(0)))
        assert fresh.digest(0) == cross.digest(0)
        run(generator)
        texts.append((request.tokens, request.logprobs))
    assert texts[0] == texts[1]


def test_a_processor_sees_what_remains():
    seen = []
    generator = Generator(cross_of("head", skill=12, n_ctx=12)[0], sampling=WARM, draft=2)
    request = generator.add(
        LONG[:4],
        max_tokens=20,
        when_full="shift",
        logits_processor=lambda tokens, logits: seen.append(tokens.tolist()),
    )
    run(generator)
    text = shifted(LONG[:4], WARM, 20, 12, None)[0]
    assert request.tokens == text
    shifts = [range(9, 13), range(9, 13), range(9, 12)]  # a pending token is chosen of 12
    assert [len(tokens) for tokens in seen] == [*range(4, 13), *chain(*shifts)]
    assert all(tokens[:4] == LONG[:4] for tokens in seen)
    assert [tokens[-1] for tokens in seen[1:]] == text[:-1]


def test_a_processor_gets_the_calls_that_it_gets_without_drafts():
    """One for each token, none after the end, which a stop string or a token makes."""
    n_ends = 0
    for base in range(12):
        calls = []
        for draft in (0, 4):
            seen = []
            cross = cross_of("head", skill=12, n_ctx=8, model=lettered())[0]
            generator = Generator(cross, sampling=WARM, draft=draft)
            request = generator.add(
                [base, 3],
                max_tokens=60,
                stop="ab",
                when_full="shift",
                logits_processor=lambda tokens, logits, seen=seen: seen.append(tokens.tolist()),
            )
            run(generator)
            calls.append(seen)
        assert calls[0] == calls[1]
        n_ends += request.n_shifts > 0 and request.finish_reason != "length"
    assert n_ends > 2


def test_without_a_budget_it_goes_on_until_it_is_cancelled():
    generator = Generator(cross_of("head", skill=12, n_ctx=12)[0], sampling=WARM)
    request = generator.add(LONG[:4], max_tokens=None, when_full="shift")
    while len(request.tokens) < 100:
        generator.step()
    generator.cancel(request)
    n = len(request.tokens)
    assert request.tokens == shifted(LONG[:4], WARM, n, 12, None)[0]


def test_the_text_ends_where_nothing_else_is_said():
    generator = Generator(cross_of("head", skill=12, n_ctx=12)[0], sampling=WARM)
    request = generator.add(LONG[:4], max_tokens=None)
    run(generator)
    assert (len(request.tokens), request.finish_reason) == (9, "length")


def test_a_request_after_one_that_was_shifted_draws_its_own_noise():
    """It goes on in the same sequence, or beside it."""
    generator = Generator(
        cross_of("head", skill=12, n_ctx=12)[0], sampling=WARM, prefix_cache="all"
    )
    first = generator.add(LONG[:4], max_tokens=20, when_full="shift")
    run(generator)
    second = generator.add([*LONG[:4], first.tokens[0]], max_tokens=6)
    run(generator)
    assert second.n_cached == 4
    assert second.tokens == shifted(second.prompt, WARM, 6, 12, None)[0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"when_full": "shove"}, "when_full"),
        ({"when_full": None}, "when_full"),
        ({"n_keep": -1}, "n_keep"),
        ({"n_keep": 1.5}, "n_keep"),
    ],
)
def test_there_are_two_ways(options, match):
    generator = Generator(cross_of("head", skill=12, n_ctx=12)[0])
    with pytest.raises(BatchError, match=match):
        generator.add(LONG[:4], **options)


@pytest.mark.parametrize(("n_ctx", "n_keep"), [(12, 12), (12, 2**40), (1, None), (1, 0)])
def test_a_shift_drops_a_token_at_least(n_ctx, n_keep):
    generator = Generator(cross_of("head", skill=12, n_ctx=n_ctx)[0])
    with pytest.raises(CapacityError, match="no token can be dropped"):
        generator.add([1], when_full="shift", n_keep=n_keep)
    assert generator.add([1], n_keep=n_keep).tokens == []


def test_a_target_that_reads_an_encoder_is_not_shifted():
    with pytest.raises(LinkError, match="by their places"):
        Generator(seeing()).add([1], when_full="shift")
