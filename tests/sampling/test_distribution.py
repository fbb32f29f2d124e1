"""What is drawn follows softmax; what shares noise agrees as often as theory says."""

import math

import numpy as np
import pytest

from mtpcore.sampling import Sampler, Sampling, Scratch, reference

N_DRAWS = 100_000
ALPHA = 1e-6
NO_HISTORY = np.zeros(0, np.int32)
CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 9},
    {"top_p": 0.8},
    {"min_p": 0.1, "temperature": 1.3},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
]


def chi_square_bound(freedom, alpha):
    """Return the quantile 1 - alpha of chi-square by Wilson and Hilferty, a little high."""
    z = math.sqrt(2) * inverse_erfc(2 * alpha)
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3 * 1.02


def inverse_erfc(y):
    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle) > y else (low, middle)
    return low


def expected(sampling, logits):
    p = np.zeros(len(logits))
    rows = reference.cut(sampling, logits)
    scaled = logits[rows].astype(np.float64) / sampling.temperature
    p[rows] = np.exp(scaled - scaled.max())
    return p / p.sum()


def chi_square(draws, p):
    """Return the statistic and its degrees of freedom; rare tokens share a cell."""
    counts = np.bincount(draws, minlength=len(p)).astype(np.float64)
    assert counts[p == 0].sum() == 0
    rare = p * len(draws) < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(p[~rare], p[rare].sum()) * len(draws)
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    return ((counts - wanted) ** 2 / wanted).sum(), len(wanted) - 1


@pytest.mark.parametrize(
    ("over", "case"),
    [(over, case) for over in ("positions", "seeds") for case in CASES] + [("streams", CASES[-1])],
)
def test_t18_draws_follow_softmax(over, case):
    logits = (np.random.default_rng(12).normal(size=30) * 1.5).astype(np.float32)
    scratch = Scratch(30)
    draws = np.empty(N_DRAWS, np.int64)
    sampler = Sampler(Sampling(seed=99, **case), scratch)
    for i in range(N_DRAWS):
        if over == "seeds":
            sampler = Sampler(Sampling(seed=i, **case), scratch)
        elif over == "streams":
            sampler = Sampler(Sampling(seed=5, stream=i << 20, **case), scratch)
        draws[i] = sampler.choose(logits, NO_HISTORY, 0, i if over == "positions" else 17)
    statistic, freedom = chi_square(draws, expected(Sampling(**case), logits))
    assert statistic < chi_square_bound(freedom, ALPHA)


def test_the_check_notices_a_wrong_distribution():
    """A temperature off by four percent is far outside the bound."""
    logits = (np.random.default_rng(12).normal(size=30) * 1.5).astype(np.float32)
    sampler = Sampler(Sampling(seed=99, temperature=1.04), Scratch(30))
    draws = [sampler.choose(logits, NO_HISTORY, 0, i) for i in range(N_DRAWS)]
    statistic, freedom = chi_square(np.array(draws), expected(Sampling(), logits))
    assert statistic > chi_square_bound(freedom, ALPHA)


def test_chi_square_bound():
    """Quantiles at 1e-6 from tables: 48.6 for 10 degrees of freedom, 82.3 for 29."""
    assert 48.0 < chi_square_bound(10, 1e-6) < 51.0
    assert 81.0 < chi_square_bound(29, 1e-6) < 85.0


def test_neighbouring_draws_are_independent():
    """Pairs at neighbouring positions, seeds and streams fill the product distribution."""
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    p = np.outer(expected(Sampling(), logits), expected(Sampling(), logits)).ravel()
    scratch = Scratch(3)
    for seed_step, stream_step, index_step in ((0, 0, 1), (1, 0, 0), (0, 1, 0)):
        pairs = np.empty(30_000, np.int64)
        for i in range(len(pairs)):
            first = Sampler(Sampling(seed=2 * i, stream=3), scratch)
            second = Sampler(Sampling(seed=2 * i + seed_step, stream=3 + stream_step), scratch)
            pairs[i] = 3 * first.choose(logits, NO_HISTORY, 0, 8) + second.choose(
                logits, NO_HISTORY, 0, 8 + index_step
            )
        statistic, freedom = chi_square(pairs, p)
        assert statistic < chi_square_bound(freedom, ALPHA)


def agreement(p, q):
    """Return the exact probability that two argmaxes with common Gumbel noise are equal.

    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (Daliri, Musco, Suresh 2024).
    """
    return sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(len(p)))


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.5])
def test_shared_noise_agrees_as_often_as_theory_says(distance):
    rng = np.random.default_rng(13)
    scratch = Scratch(40)
    target = (rng.normal(size=40) * 1.5).astype(np.float32)
    drafter = (target + rng.normal(size=40) * distance).astype(np.float32)
    p, q = expected(Sampling(), target), expected(Sampling(), drafter)
    sampler = Sampler(Sampling(seed=21), scratch)
    n = 40_000
    equal = (
        sum(
            sampler.choose(target, NO_HISTORY, 0, i) == sampler.choose(drafter, NO_HISTORY, 0, i)
            for i in range(n)
        )
        / n
    )
    wanted = agreement(p, q)
    assert abs(equal - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / n)
    overlap = np.minimum(p, q).sum()
    assert overlap / (2 - overlap) - 0.01 < equal < overlap + 0.01


def test_without_shared_noise_agreement_is_lower():
    logits = (np.random.default_rng(13).normal(size=40) * 1.5).astype(np.float32)
    scratch = Scratch(40)
    one, other = (Sampler(Sampling(seed=21, stream=s), scratch) for s in (0, 1))
    equal = np.mean(
        [
            one.choose(logits, NO_HISTORY, 0, i) == other.choose(logits, NO_HISTORY, 0, i)
            for i in range(20_000)
        ]
    )
    p = expected(Sampling(), logits)
    assert abs(equal - (p**2).sum()) < 0.02
