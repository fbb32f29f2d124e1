"""Sampler settings are checked, normalised and recorded."""

import math

import msgspec
import numpy as np
import pytest

from mtpcore.errors import SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e-40),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.0),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("top_n_sigma", -1.0),
        ("top_n_sigma", math.nan),
        ("typical_p", 0.0),
        ("typical_p", 1.1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", math.inf),
        ("penalty_last_n", -2),
        ("penalty_last_n", 1.5),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.9),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", 2**31),
        ("dry_sequence_breakers", "text"),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", [-1]),
        ("dry_sequence_breakers", [1.5]),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("presence_penalty", -math.inf),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("stream", -1),
        ("stream", True),
        ("logit_bias", [1, 2]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
    ],
)
def test_values_out_of_range(field, value):
    with pytest.raises(SamplingError, match=r"Sampling: bad ") as caught:
        Sampling(**{field: value})
    assert caught.value.wanted is not None


def test_values_become_plain_numbers():
    sampling = Sampling(
        temperature=np.float32(0.5), top_k=np.int64(4), logit_bias={np.int32(9): 1, 2: -math.inf}
    )
    assert type(sampling.temperature) is float
    assert type(sampling.top_k) is int
    assert list(sampling.logit_bias.items()) == [(2, -math.inf), (9, 1.0)]


def test_bias_is_a_copy():
    bias = {3: 1.0}
    sampling = Sampling(logit_bias=bias)
    bias[3] = 2.0
    assert sampling.logit_bias == {3: 1.0}


def test_seed_is_drawn_and_recorded():
    seeds = {Sampling().seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(isinstance(seed, int) for seed in seeds)
    again = msgspec.json.decode(msgspec.json.encode(Sampling()), type=Sampling)
    assert isinstance(again.seed, int)
    assert Sampling(seed=7).seed == 7


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Sampling().temperature = 2.0


@pytest.mark.parametrize(
    ("field", "largest"), [("top_k", 2**31 - 1), ("seed", 2**64 - 1), ("stream", 2**64 - 1)]
)
def test_whole_numbers_end_where_the_compiled_sampler_does(field, largest):
    logits, history = np.array([0, 1, 5, 2], np.float32), np.zeros(0, np.int32)
    settings = Sampling(**{"seed": 0, field: largest})
    assert getattr(settings, field) == largest
    assert Sampler(settings, Scratch(4)).choose(logits, history, 0, 0) in range(4)
    with pytest.raises(SamplingError, match=f"bad {field}") as caught:
        Sampling(**{"seed": 0, field: largest + 1})
    assert caught.value.got == str(largest + 1)
