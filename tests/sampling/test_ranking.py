"""Ranked tokens: the compiled ranking against its definition, and what its shares mean."""

import numpy as np
import pytest
from harness.search import searching
from harness.situations import host_situations, situations
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext import _cpu, _sampling
from mtpcore.errors import SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch, reference

NO_HISTORY = np.zeros(0, np.int32)


@searching(150)
@given(
    st.tuples(situations(), st.just(())) | host_situations(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 3, 10, 80, 5000]),
    st.sampled_from(_cpu.available_isas()),
)
def test_equals_the_definition(both, index, n, isa):
    (sampling, logits, history, n_prompt, n_ids, token_ids, _), breakers = both
    sampler = Sampler(sampling, Scratch(len(logits), n_ids), breakers)
    given = logits, history, n_prompt, index
    ids, probabilities, shares = found = sampler.rank(*given, n, token_ids)
    before = _cpu.use_isa(isa)
    again = sampler.rank(*given, n, token_ids)
    _cpu.use_isa(before)
    assert all(map(np.array_equal, again, found))
    wanted = reference.rank(sampling, *given, n, token_ids, breakers)
    assert ids.tolist() == wanted[0].tolist()
    assert np.allclose(probabilities, wanted[1], rtol=1e-6, atol=1e-12)
    assert np.allclose(shares, wanted[2], rtol=1e-9, atol=1e-12)
    token, probability = sampler.choose_with_probability(*given, token_ids)
    assert [*ids[:1]] == [token][: token >= 0]
    assert probabilities[:1].tolist() == [np.float32(probability)][: token >= 0]
    assert len(set(ids.tolist())) == len(ids) <= n
    assert (np.diff(shares) <= 0).all()
    assert shares.sum() <= 1 + 1e-9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n", [5, 9])
def test_all_tokens_are_ranked(temperature, n):
    logits = np.array([0.3, -1.0, 2.5, 0.1, 2.0], np.float32)
    given = logits, NO_HISTORY, 0, 17
    sampling = Sampling(temperature=temperature, seed=9)
    ids = Sampler(sampling, Scratch(5)).rank(*given, n)[0]
    assert ids.tolist() == reference.rank(sampling, *given, n)[0].tolist()
    assert temperature > 0 or ids.tolist() == [2, 4, 0, 3, 1]


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0, 3.0])
def test_each_would_be_chosen_without_those_before_it(temperature):
    """Ranks are choices in turn: the best token forbidden, the next one is chosen."""
    logits = np.random.default_rng(4).normal(size=300).astype(np.float32) * 2
    sampling = Sampling(temperature=temperature, seed=9)
    scratch = Scratch(300)
    ids, _, shares = Sampler(sampling, scratch).rank(logits, NO_HISTORY, 0, 17, 12)
    assert len(ids) == 12
    left = logits.copy()
    for token in ids:
        assert Sampler(sampling, scratch).choose(left, NO_HISTORY, 0, 17) == token
        left[token] = -np.inf
    p = np.exp(logits - logits.max().astype(np.float64))
    p /= p.sum()
    if temperature == 0:
        assert np.allclose(shares, p[ids], rtol=1e-9)
    else:
        noise = np.array([_sampling.gumbel(9, 0, 17, int(i)) for i in ids])
        weights = p[ids] * np.exp(temperature * noise)
        assert np.allclose(shares, weights / (weights.sum() + 1 - p[ids].sum()), rtol=1e-9)


def test_what_the_cuts_leave():
    logits = np.array([3.0, 2.0, 1.0, 0.0, -np.inf], np.float32)
    for sampling, n in (
        (Sampling(temperature=1.0, top_k=2, seed=1), 2),
        (Sampling(temperature=0.0, top_k=2), 4),
        (Sampling(temperature=1.0, min_p=1.0, seed=1), 1),
        (Sampling(temperature=1.0, seed=1), 4),
    ):
        ids, _, _ = Sampler(sampling, Scratch(5)).rank(logits, NO_HISTORY, 0, 0, 5)
        assert len(ids) == n
    nothing = np.full(5, -np.inf, np.float32)
    ids, probabilities, shares = Sampler(Sampling(seed=1), Scratch(5)).rank(
        nothing, NO_HISTORY, 0, 0, 3
    )
    assert len(ids) == len(probabilities) == len(shares) == 0


def test_what_cannot_be_ranked():
    sampler = Sampler(Sampling(seed=1), Scratch(5))
    for n, index in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(SamplingError):
            sampler.rank(np.zeros(5, np.float32), NO_HISTORY, 0, index, n)
