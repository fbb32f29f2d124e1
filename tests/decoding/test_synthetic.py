"""Synthetic acceptance, default draft lengths, and what statistics mean."""

import msgspec
import pytest
from harness.hashed import HashBackend, HashModel
from hypothesis import given
from hypothesis import strategies as st
from toy import HEAD

from mtpcore import Context, Generator, Sampling, link
from mtpcore.decoding import SyntheticAcceptance, default_length
from mtpcore.errors import SamplingError


@given(st.integers(1, 8), st.floats(0, 1))
def test_rates_sum_up_to_the_length_asked_for(n, share):
    length = 1 + share * n
    made = SyntheticAcceptance.of_length(length, n)
    assert sum(made.rates) == pytest.approx(length - 1, abs=1e-9)
    assert all(rate == pytest.approx(made.rates[0] ** i) for i, rate in enumerate(made.rates, 1))


@pytest.mark.parametrize("length", [0.9, 4.1, float("nan")])
def test_impossible_lengths(length):
    with pytest.raises(SamplingError):
        SyntheticAcceptance.of_length(length, 3)


@pytest.mark.parametrize("rates", [(0.5, 0.6), (1.1,), (-0.1,), (float("nan"),)])
def test_impossible_rates(rates):
    with pytest.raises(SamplingError):
        SyntheticAcceptance(rates)


def test_the_generator_accepts_at_these_rates():
    cross = link(Context(HashModel(), 4096, backend=HashBackend(skill=8)))
    acceptance = SyntheticAcceptance((0.6, 0.5, 0.0), seed=3)
    gen = Generator(cross, sampling=Sampling.greedy(), draft=3, acceptance=acceptance)
    assert len(list(gen.generate([1, 2], max_tokens=3000))) == 3000
    rates = gen.stats.acceptance_per_position
    assert rates[0] == pytest.approx(0.6, abs=0.05)
    assert rates[1] == pytest.approx(0.5, abs=0.05)
    assert rates[2] == 0
    assert gen.stats.tokens_per_pass == pytest.approx(2.1, abs=0.1)


def test_tokens_that_end_a_text_are_never_accepted():
    always = SyntheticAcceptance((1.0, 1.0), never={7})
    assert always(0, 1)
    assert always(1, 2)
    assert not always(0, 7)
    assert not always(2, 1)


@pytest.mark.parametrize(
    ("acceptance", "limit", "length"),
    [((0.6, 0.95), 8, 3), ((0.6, 0.95), 2, 2), ((0.0, 0.1), 8, 1), ((1.0, 1.0), 8, 8)],
)
def test_default_lengths_follow_the_declaration(acceptance, limit, length):
    assert (
        default_length(msgspec.structs.replace(HEAD, acceptance=acceptance, limit=limit)) == length
    )


def test_plain_decoding_makes_one_token_a_pass():
    gen = Generator(Context(HashModel(), 64, backend=HashBackend()), sampling=Sampling.greedy())
    list(gen.generate([1], max_tokens=20))
    assert gen.stats.tokens_per_pass == 1
    assert gen.stats.tokens == 20
    assert gen.stats.prompts == 1
    assert gen.stats.choose_seconds > 0
