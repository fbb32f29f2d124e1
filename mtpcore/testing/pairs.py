"""Samples of a grid in which every two values of two factors meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["cover_pairs"]

Point = dict[str, Any]


def cover_pairs(
    factors: Mapping[str, Sequence[Any]], seed: int = 0, n_candidates: int = 12
) -> list[Point]:
    """Return points such that each pair of values of two factors occurs in one.

    Greedy: each point starts from a pair that is missing; of some random completions the one that
    adds most pairs is taken.

    Parameters
    ----------
    factors : mapping of str to hashable values
    n_candidates : int
        Completions to choose among; more make fewer points.
    """
    chance, names = random.Random(seed), list(factors)
    missing = dict.fromkeys(
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
    )
    points: list[Point] = []
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


def _pairs(point: Point) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    return itertools.combinations(point.items(), 2)
