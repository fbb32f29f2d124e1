"""What a file recommends for sampling: which keys are taken, as what, and which are left out."""

import math

import pytest

from mtpcore.sampling import USUAL, read_recommended

CASES = [
    ({}, {}, ()),
    (
        {"temp": 0.6000000238418579, "top_k": 20, "top_p": 0.949999988079071, "min_p": 0.0},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
        (),
    ),
    ({"temp": "0.7", "top_k": 20.0}, {"temperature": 0.7, "top_k": 20}, ()),
    ({"temp": -1, "top_k": -1, "top_p": 2, "min_p": -1.0},
     {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, ()),
    ({"temp": math.nan, "top_k": "many", "top_p": 0, "min_p": 2.0, "penalty_repeat": 0}, {},
     ("temp", "top_k", "top_p", "min_p", "penalty_repeat")),
    ({"temp": [1.0], "top_k": math.inf}, {"top_k": 10**9}, ("temp",)),
    ({"penalty_repeat": 1.1}, {"repetition_penalty": 1.1}, ()),
    ({"penalty_repeat": 1.1, "penalty_last_n": 64.0},
     {"repetition_penalty": 1.1, "penalty_last_n": 64}, ()),
    ({"penalty_last_n": -7}, {"penalty_last_n": -1}, ()),
    ({"penalty_last_n": "0"}, {"penalty_last_n": 0}, ()),
    ({"penalty_last_n": "some"}, {}, ("penalty_last_n",)),
    ({"mirostat": 0, "mirostat_tau": 5.0, "xtc_probability": 0.0, "xtc_threshold": 0.1},
     {"xtc_probability": 0.0, "xtc_threshold": 0.1}, ()),
    ({"mirostat": 2, "xtc_probability": 0.5}, {"xtc_probability": 0.5}, ("mirostat",)),
    ({"xtc_probability": 2, "xtc_threshold": 2}, {"xtc_threshold": 1.0}, ("xtc_probability",)),
    ({"warmth": 0.5}, {}, ("warmth",)),
    ({"sequence": "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"}, {}, ()),
    ({"sequence": "Top-K;temp", "top_p": 0.5},
     {"top_p": 1.0, "min_p": 0.0}, ()),
    ({"sequence": "typ;temp", "xtc_probability": 0.5, "penalty_repeat": 1.1},
     {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "xtc_probability": 0.0},
     ()),
    ({"sequence": "temperature;top_k", "top_p": 0.5}, {"top_p": 0.5}, ("sequence",)),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "settings", "left_out"), CASES)
def test_keys_are_taken_or_left_out_by_name(keys, settings, left_out):
    found = read_recommended({f"general.sampling.{key}": keys[key] for key in keys})
    assert found.settings == settings
    assert set(found.left_out) == {f"general.sampling.{key}" for key in left_out}
    assert found.defaults == {**USUAL, **settings}
