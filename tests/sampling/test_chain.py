"""What each sampler leaves, alone and together with others: all survivors, in order."""

import numpy as np
import pytest

from mtpcore.sampling import Sampler, Sampling, Scratch, reference

N_VOCAB = 90
CASES = [
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.4, "top_k": 30},
    {"typical_p": 0.3},
    {"typical_p": 0.9, "top_k": 12},
    {"typical_p": 0.5, "top_n_sigma": 1.2, "top_p": 0.4},
    {"typical_p": 0.4, "min_p": 0.6},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.05},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02, "typical_p": 0.9, "top_p": 0.8},
    {"dynatemp_range": 0.8},
    {"dynatemp_range": 0.8, "dynatemp_exponent": 3.0, "top_k": 20},
    {"repetition_penalty": 1.5, "penalty_last_n": 5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.2, "penalty_last_n": 9},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 0, "dry_penalty_last_n": 8},
    {"dry_multiplier": 2.0, "dry_base": 1.1, "repetition_penalty": 1.2, "typical_p": 0.8},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_survivors_are_those_of_the_definition(case, temperature):
    rng = np.random.default_rng(7)
    scratch, changed = Scratch(N_VOCAB), 0
    for seed in range(60):
        logits = (rng.normal(size=N_VOCAB) * 2 + seed % 7).astype(np.float32)
        history, n_prompt = rng.integers(0, 3, 24).astype(np.int32), int(rng.integers(0, 24))
        sampling = Sampling(temperature=temperature, seed=seed, **case)
        breakers = ((2, 2), (2, 1, 0))
        given = logits, history, n_prompt, seed, N_VOCAB
        found = Sampler(sampling, scratch, breakers).rank(*given)
        wanted = reference.rank(sampling, *given, breakers=breakers)
        assert found[0].tolist() == wanted[0].tolist()
        np.testing.assert_allclose(found[2], wanted[2], rtol=1e-9)
        plain = Sampler(Sampling(temperature=temperature, seed=seed), scratch).rank(*given)
        changed += found[0].tolist() != plain[0].tolist() or found[2].tolist() != plain[2].tolist()
    assert changed > 10


def test_the_coin_of_xtc_is_tossed_anew_for_each_token():
    """As often as it says, whatever the text; drafted or not, it is the index that counts."""
    logits = np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    sampling = Sampling(seed=3, xtc_probability=0.3, xtc_threshold=0.2)
    sampler, n = Sampler(sampling, Scratch(3)), 20_000
    texts = np.zeros(0, np.int32), np.arange(3, dtype=np.int32)
    left = [[sampler.rank(logits, text, 0, i, 3)[0].tolist() for i in range(n)] for text in texts]
    assert left[0] == left[1]
    excluded = np.mean([0 not in ids for ids in left[0]])
    assert abs(excluded - 0.3) < 5 * np.sqrt(0.3 * 0.7 / n)
    assert all(1 in ids and 2 in ids for ids in left[0])
    other = Sampler(Sampling(seed=3, stream=1, xtc_probability=0.3, xtc_threshold=0.2), Scratch(3))
    again = [other.rank(logits, texts[0], 0, i, 3)[0].tolist() for i in range(n)]
    assert np.mean([a != b for a, b in zip(left[0], again, strict=True)]) > 0.3


@pytest.mark.parametrize("n", [1, 2, 50])
def test_even_probabilities_are_warmest(n):
    """All of one token: the lowest temperature; all even: the highest; 0 stays 0."""
    one = np.where(np.arange(n) == 0, 50.0, 0.0).astype(np.float32)
    sampling, rows = Sampling(temperature=1.0, dynatemp_range=0.4), np.arange(n)
    assert reference.warm(sampling, one, rows) == pytest.approx(0.6)
    even = np.zeros(n, np.float32)
    assert reference.warm(sampling, even, rows) == pytest.approx(1.4 if n > 1 else 0.6)
    cold = Sampling(temperature=0.0, dynatemp_range=0.4, seed=1)
    assert Sampler(cold, Scratch(n)).choose(one, np.zeros(0, np.int32), 0, 0) == 0
