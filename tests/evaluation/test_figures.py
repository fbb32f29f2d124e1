"""Figures against their definitions, token by token."""

import math

import numpy as np
import pytest

from mtpcore.evaluation import Rows, compare_rows

N, V = 60, 17


def random_rows(seed, scale=3.0):
    return np.random.default_rng(seed).normal(0, scale, (N, V)).astype(np.float32)


def probabilities(row):
    largest = max(map(float, row))
    weights = [math.exp(float(x) - largest) for x in row]
    return [w / math.fsum(weights) for w in weights]


@pytest.fixture(scope="module")
def rows():
    return random_rows(1), random_rows(2), np.random.default_rng(3).integers(0, V, N)


def test_every_value_is_its_definition(rows):
    logits, reference, tokens = rows
    found = compare_rows(logits, tokens, reference)
    for i, token in enumerate(tokens):
        mine, theirs = probabilities(logits[i]), probabilities(reference[i])
        kld = math.fsum(p * math.log(p / q) for p, q in zip(theirs, mine, strict=True))
        assert found.losses[i] == pytest.approx(-math.log(mine[token]))
        assert found.reference_losses[i] == pytest.approx(-math.log(theirs[token]))
        assert found.divergences[i] == pytest.approx(kld)
        assert found.same[i] == (mine.index(max(mine)) == theirs.index(max(theirs)))


def test_what_they_come_to(rows):
    logits, reference, tokens = rows
    found = compare_rows(logits, tokens, reference)
    figures, far = found.figures(), found.figures().divergence

    def mean_and_error(values):
        mean = math.fsum(values) / N
        square = math.fsum(x * x for x in values) / N
        return mean, math.sqrt((square - mean * mean) / (N - 1))

    mean, error = mean_and_error(found.losses)
    assert figures.n_tokens == N
    assert figures.perplexity.value == pytest.approx(math.exp(mean))
    assert figures.perplexity.error == pytest.approx(math.exp(mean) * error)
    for estimate, values in (
        (far.mean, found.divergences),
        (far.same_choice, found.same.astype(float)),
        (far.log_perplexity_ratio, found.losses - found.reference_losses),
    ):
        assert (estimate.value, estimate.error) == pytest.approx(mean_and_error(values))
    changes = np.exp(-found.losses) - np.exp(-found.reference_losses)
    assert far.probability == pytest.approx(math.sqrt(mean_and_error(changes**2)[0]))
    ordered = sorted(found.divergences)
    assert far.maximum == ordered[-1]
    place = 0.99 * (N - 1)
    low, part = int(place), place - int(place)
    assert far.percentiles["99"] == pytest.approx(
        (1 - part) * ordered[low] + part * ordered[low + 1]
    )
    assert [*far.percentiles] == ["50", "90", "95", "99", "99.9"]
    assert [*far.percentiles.values()] == sorted(far.percentiles.values())


def test_of_itself_nothing_is_far(rows):
    logits, _, tokens = rows
    far = compare_rows(logits, tokens, logits).figures().divergence
    assert (far.mean.value, far.maximum, far.same_choice.value, far.probability) == (0, 0, 1, 0)


def test_a_sum_that_is_added_changes_nothing(rows):
    logits, reference, tokens = rows
    moved = logits.astype(np.float64) + 1000  # in float32 differences would be rounded
    one, other = (compare_rows(x, tokens, reference) for x in (logits.astype(np.float64), moved))
    assert np.allclose(one.divergences, other.divergences, atol=1e-9)


def test_what_is_far_beyond_the_others():
    """Probabilities of 0 in float64 add nothing; what came all the same costs its logit."""
    logits, reference = np.zeros((2, 2, 3), np.float32)
    reference[0, 2] = logits[1, 2] = -5000
    found = compare_rows(logits, np.array([0, 2]), reference)
    assert found.divergences[0] == pytest.approx(math.log(3 / 2))
    assert found.losses[1] == pytest.approx(5000 + math.log(2))
    assert found.figures().perplexity.value == np.inf


def test_few_tokens_have_no_error():
    assert Rows(np.array([1.0, 2.0])).figures().perplexity.error == 0


def test_rows_that_are_joined(rows):
    logits, reference, tokens = rows
    whole = compare_rows(logits, tokens, reference).figures()
    pieces = [
        compare_rows(logits[i : i + 7], tokens[i : i + 7], reference[i : i + 7])
        for i in range(0, N, 7)
    ]
    assert Rows.joined(pieces).figures() == whole
