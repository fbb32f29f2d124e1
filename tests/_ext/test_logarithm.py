"""The sampler's own log and exp are accurate to a few units in the last place."""

import math

import numpy as np

from mtpcore._ext import _sampling


def largest_error(got, wanted):
    """In units in the last place of the wanted value."""
    return max(abs(a - b) / math.ulp(b) for a, b in zip(got.tolist(), wanted, strict=True))


def test_log():
    rng = np.random.default_rng(1)
    near_one = 1 - 2.0 ** -rng.uniform(1, 53, 20_000)
    small = 2.0 ** rng.uniform(-60, 6, 20_000)
    x = np.concatenate([near_one, small, [1.0, 2.0**-53, 1 - 2.0**-53, math.sqrt(0.5)]])
    assert largest_error(_sampling.log(x), [math.log(value) for value in x]) <= 3.5


def test_exp():
    x = np.random.default_rng(2).uniform(-700, 700, 40_000)
    x[:20_000] /= 20
    assert largest_error(_sampling.exp(x), [math.exp(value) for value in x]) <= 3.5
    assert _sampling.exp(np.zeros(1))[0] == 1.0
