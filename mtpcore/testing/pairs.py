"""Pairwise test points: samples of a grid that contain every pair of values of two factors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from mtpcore.boundary.arguments import Length, read
from mtpcore.errors import BatchError, spell

__all__ = ["cover_pairs"]

_Candidates = Annotated[int, Meta(ge=1, le=1 << 16, description="an int in 1..65536")]
Point = dict[str, Any]
T = TypeVar("T")


def cover_pairs(
    factors: Mapping[str, Sequence[T]], seed: int = 0, n_candidates: int = 12
) -> list[dict[str, T]]:
    """Return points such that each pair of values of two factors occurs in one.

    Greedy: each point starts from a pair that is missing; of some random completions the one that
    adds most pairs is taken.

    Parameters
    ----------
    factors : mapping of str to hashable values
    seed : int
        Of what is random in it.
    n_candidates : int
        Completions to choose among; more make fewer points.

    Raises
    ------
    BatchError
        Factors without hashable values, or arguments that are no numbers.
    """
    values = _read_factors(factors)
    seed = read(seed, Length, "a seed", where="cover_pairs")
    n_candidates = read(n_candidates, _Candidates, "a number of points", where="cover_pairs")
    chance, names = random.Random(seed), list(values)
    missing = dict.fromkeys(
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in values[a]
        for y in values[b]
    )
    points: list[dict[str, T]] = []
    while missing:
        start = dict(next(iter(missing)))
        candidates = [
            {name: start.get(name, chance.choice(values[name])) for name in names}
            for _ in range(n_candidates)
        ]
        best = max(candidates, key=lambda point: sum(p in missing for p in _pairs(point)))
        for pair in _pairs(best):
            missing.pop(pair, None)
        points.append(best)
    return points


def _read_factors(given: Any) -> dict[str, tuple[Any, ...]]:
    wanted = "a mapping of names to hashable values"
    factors: dict[str, Any] = read(given, dict[str, Any], "no factors", wanted=wanted)
    try:
        grid = {name: tuple(dict.fromkeys(values)) for name, values in factors.items()}
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError("no factors", wanted=wanted, got=spell(error, str)) from error
    if not all(grid.values()):
        raise BatchError("a factor has values", wanted=wanted, got=spell(given))
    return grid


def _pairs(point: Point) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    return itertools.combinations(point.items(), 2)
