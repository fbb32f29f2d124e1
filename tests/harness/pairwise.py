"""Samples of a grid in which every two values of two factors meet."""

import itertools
import random


def cover_pairs(factors, seed=0, n_candidates=12):
    """Return points (dicts) such that each pair of values of two factors occurs in one.

    Greedy: each point starts from a pair that is missing; of some random completions the one that
    adds most pairs is taken.

    Parameters
    ----------
    factors : dict of str to list
    """
    chance, names = random.Random(seed), list(factors)
    missing = dict.fromkeys(
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
    )
    points = []
    while missing:
        start = dict(next(iter(missing)))
        candidates = [
            {name: start.get(name, chance.choice(factors[name])) for name in names}
            for _ in range(n_candidates)
        ]
        best = max(candidates, key=lambda point: sum(p in missing for p in _pairs(point)))
        for pair in _pairs(best):
            missing.pop(pair, None)
        points.append(best)
    return points


def _pairs(point):
    return itertools.combinations(point.items(), 2)
