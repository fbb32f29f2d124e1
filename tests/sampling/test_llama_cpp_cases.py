"""Which probabilities llama.cpp's samplers leave: cases of its tests/test-sampling.cpp, and others.

Its samplers normalise what they are given, ours do not in between; each case has one sampler, for
which that makes no difference.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from mtpcore.sampling import Sampling, reference

EVEN, STEPS = [0.2] * 5, [0.1, 0.2, 0.3, 0.4]


def left(probabilities, history=(), breakers=(), **settings):
    """Return the probability of each token in the choice; 0 where it cannot be chosen."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probabilities)).astype(np.float32)
    sampling = Sampling(seed=0, **settings)
    ids, history = np.arange(len(logits), dtype=np.int32), np.array(history, np.int32)
    adjusted = reference.adjust(sampling, logits, history, 0, ids, breakers=breakers)
    rows = reference.cut(sampling, adjusted)
    scaled = adjusted[rows].astype(np.float64) / reference.warm(sampling, adjusted, rows)
    p = np.zeros(len(logits))
    p[rows] = np.exp(scaled - scaled.max())
    return p / p.sum()


CASES = [
    (STEPS, {"temperature": 1.0}, STEPS),
    (STEPS, {"dynatemp_range": 0.0, "dynatemp_exponent": 1.0}, STEPS),
    (STEPS, {"top_k": 1}, [0, 0, 0, 1]),
    (STEPS, {"top_k": 3}, [0, 0.22222, 0.33333, 0.44444]),
    (STEPS, {"top_k": 4}, STEPS),
    (STEPS, {"top_k": 0}, STEPS),
    (STEPS, {"top_p": 1e-9}, [0, 0, 0, 1]),
    (STEPS, {"top_p": 0.69}, [0, 0, 0.428571, 0.571429]),
    (STEPS, {"top_p": 0.8}, [0, 0.22222, 0.33333, 0.44444]),
    (STEPS, {"top_p": 1.0}, STEPS),
    (STEPS, {"min_p": 0.24}, STEPS),
    (STEPS, {"min_p": 0.26}, [0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9]),
    (STEPS, {"min_p": 0.49}, [0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9]),
    (STEPS, {"min_p": 0.51}, [0, 0, 0.3 / 0.7, 0.4 / 0.7]),
    (STEPS, {"min_p": 0.74}, [0, 0, 0.3 / 0.7, 0.4 / 0.7]),
    (STEPS, {"min_p": 0.76}, [0, 0, 0, 1]),
    (STEPS, {"min_p": 1.0}, [0, 0, 0, 1]),
    (STEPS[::-1], {"xtc_probability": 1.0, "xtc_threshold": 0.09}, [0, 0, 0, 1]),
    (STEPS[::-1], {"xtc_probability": 1.0, "xtc_threshold": 0.19}, [0, 0, 0.2 / 0.3, 0.1 / 0.3]),
    (STEPS[::-1], {"xtc_probability": 1.0, "xtc_threshold": 0.29}, [0, 0.5, 0.2 / 0.6, 0.1 / 0.6]),
    (STEPS[::-1], {"xtc_probability": 1.0, "xtc_threshold": 0.39}, STEPS[::-1]),
    (STEPS[::-1], {"xtc_probability": 0.0, "xtc_threshold": 0.09}, STEPS[::-1]),
    ([0.97, 0.01, 0.01, 0.01], {"typical_p": 0.5}, [1, 0, 0, 0]),
    ([0.4, 0.2, 0.2, 0.2], {"typical_p": 0.5}, [0, 1 / 3, 1 / 3, 1 / 3]),
    (STEPS, {"top_n_sigma": 1.0}, [0, 0, 0.428571, 0.571429]),
    (STEPS, {"top_n_sigma": 0.0}, STEPS),
    (STEPS, {"top_n_sigma": 3.0}, STEPS),
]
REPEATED, PENALISED = (
    {"repetition_penalty": 50.0},
    {
        "frequency_penalty": 5.0,
        "presence_penalty": 5.0,
    },
)
TEXTS = [
    (EVEN, [0], REPEATED, [0, 0.25, 0.25, 0.25, 0.25]),
    (EVEN, [0, 1, 2], REPEATED, [0, 0, 0, 0.5, 0.5]),
    (EVEN, [0, 1, 2, 0, 0], REPEATED, [0, 0, 0, 0.5, 0.5]),
    (EVEN, [0], PENALISED, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
    (EVEN, [0, 1, 2], PENALISED, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
    (EVEN, [0, 1, 2, 0, 0], PENALISED, [0, 0.000023, 0.000023, 0.499977, 0.499977]),
]
DRY = [
    ([0.25] * 4, [0, 1], (1.0, 2, 4), [], [0.25] * 4),
    ([0.25] * 4, [0, 1, 2, 0, 1], (1.0, 2, 5), [], [0.296923, 0.296923, 0.109232, 0.296923]),
    (EVEN, [0, 1, 3, 4, 0, 1], (1.0, 2, 6), [[3]], EVEN),
    (EVEN, [0, 1, 2, 0, 1], (2.0, 2, 5), [], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
    (EVEN, [0, 1, 2, 3, 4, 0, 1], (1.0, 4, 7), [], EVEN),
]


MADE = json.loads((Path(__file__).parents[1] / "data/llama_cpp/samplers.json").read_text())


@pytest.mark.parametrize("case", MADE, ids=lambda case: next(iter(case["settings"])))
def test_random_logits_have_the_probabilities_of_llama_cpp(case):
    settings = case["settings"]
    if "penalty_last_n" not in settings and "dry_penalty_last_n" not in settings:
        case = case | {"history": []}
    found = left(np.exp(case["logits"]), case["history"], case["breakers"], **settings)
    np.testing.assert_allclose(found, case["probabilities"], atol=2e-6)


@pytest.mark.parametrize(("probabilities", "settings", "wanted"), CASES)
def test_samplers_leave_what_llama_cpp_leaves(probabilities, settings, wanted):
    np.testing.assert_allclose(left(probabilities, **settings), wanted, atol=1e-5)


@pytest.mark.parametrize(("probabilities", "history", "settings", "wanted"), TEXTS)
def test_penalties(probabilities, history, settings, wanted):
    np.testing.assert_allclose(left(probabilities, history, **settings), wanted, atol=1e-5)


@pytest.mark.parametrize(("probabilities", "history", "settings", "breakers", "wanted"), DRY)
def test_dry(probabilities, history, settings, breakers, wanted):
    multiplier, allowed, last_n = settings
    found = left(
        probabilities,
        history,
        breakers,
        dry_multiplier=multiplier,
        dry_base=1.1,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)
