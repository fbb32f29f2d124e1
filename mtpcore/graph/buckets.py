"""Buckets of distances between places, which share a relative position bias.

Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text
transformer": near distances have a bucket each, those further away share buckets that grow
with the logarithm of the distance, and from a furthest one on all share the last.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["distance_buckets"]


@cache
def distance_buckets(n_buckets: int, max_distance: int, *, ahead: bool) -> NDArray[np.int32]:
    """Return the bucket of each distance: int32[2 * max_distance + 1].

    Parameters
    ----------
    n_buckets : int
    max_distance : int
        Entry ``max_distance + d`` is that of distance d, the place of a key less that of the row
        that attends to it; distances beyond the ends have the buckets of the ends.
    ahead : bool
        Whether there are keys after the row, which then have half of the buckets.
    """
    n = n_buckets // 2 if ahead else n_buckets
    begins = [*range(n // 2 + 1), *_begins_of_shared(n, max_distance)]
    back = np.searchsorted(begins, np.arange(max_distance + 1), "right") - 1
    forth = n + back[1:] if ahead else np.zeros_like(back[1:])
    buckets = np.concatenate([back[::-1], forth]).astype(np.int32)
    buckets.setflags(write=False)
    return buckets


def _begins_of_shared(n: int, furthest: int) -> list[int]:
    """Return the least distance of each bucket of several distances but the first, of n buckets.

    From ``exact = n // 2`` on distance d has bucket exact + floor((n - exact) log(d / exact) /
    log(furthest / exact)), and n - 1 at most. All is in whole numbers: no rounding of logarithms
    shows.
    """
    exact = n // 2
    steps = n - exact
    return [
        bisect_left(
            range(furthest),
            furthest**step * exact ** (steps - step),
            key=lambda distance: distance**steps,
        )
        for step in range(1, steps)
    ]
