"""The sample of the grid is one: every two values meet, in far fewer points."""

import itertools

from mtpcore.testing.pairs import cover_pairs


def test_every_two_values_meet():
    factors = {"a": range(9), "b": "xyz", "c": (True, False), "d": range(4)}
    found = cover_pairs(factors)
    for one, two in itertools.combinations(factors, 2):
        met = {(point[one], point[two]) for point in found}
        assert met == set(itertools.product(factors[one], factors[two]))
    assert len(found) < 60 < 9 * 3 * 2 * 4
