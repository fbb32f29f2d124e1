"""What passes and drafts cost on this machine, learnt from the rounds as they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Curve", "DraftCurves", "Passes"]

_KEPT = 9
"""Measurements of one size: their median stands against four slow rounds."""
_STALE = 64
"""Rounds without a measurement of a size after which only the newest of its old ones counts."""
_GLANCE = 8
"""Rounds in which what sizes may cost at least is taken to stay."""
_LEAST = 1e-9
"""Seconds of anything: a clock that is too coarse to see it must not make it free."""
_AGREEING = 5
"""Measurements whose median says how fast the machine is, against two slow rounds."""
_ROW = 0.3
"""What a further row costs of the first, where passes of one size alone were measured."""
_JUMP = 1.3
"""How many times what was expected the first measurement of a size counts for at most."""
_WARM = 0.7
"""What a size may cost of what it cost while it was not warm."""
_UNSURE, _UNSURE_AFTER = 0.4, 512
"""Share of its price that an unknown size may cost less; and rounds after which a size that was
measured would be wholly unknown again."""


class _Floor(NamedTuple):
    """What sizes that were measured cost at least, from a round on; ``at``: others asked for."""

    begin: int
    sizes: list[int]
    seconds: list[float]
    at: dict[float, float]


class Curve:
    """Seconds by size: medians of the latest measurements, never falling with size.

    What was measured while it was not warm says only how much a size costs at most: the least of it
    counts until there is better.

    Between sizes that were measured it is a line; beyond the largest the line from the smallest to
    the largest goes on. No shape is assumed: rows that share a kernel's tile or an expert cost
    little, the next one may cost much. Large sizes are kept together by eights.

    Parameters
    ----------
    anchored : bool
        Size 0 costs nothing.
    """

    def __init__(self, *, anchored: bool = False) -> None:
        self._anchored = anchored
        self._seen: dict[int, list[tuple[int, float]]] = {}
        self._points: dict[int, tuple[float, float, int]] = {}  # size, median, how many
        self._newest: dict[int, int] = {}
        self._cold: set[int] = set()  # sizes of which there is nothing better
        self._sizes: list[float] = []
        self._seconds: list[float] = []
        self._at: dict[float, float] = {}  # seconds of sizes that were asked for
        self._floor = _Floor(-_GLANCE, [], [], {})

    def __len__(self) -> int:
        return len(self._points)

    def observe(self, size: int, seconds: float, now: int, *, is_warm: bool = True) -> None:
        """Take a measurement of round ``now``."""
        kept = _kept_as(size)
        seen, was_cold = self._seen.get(kept, []), kept in self._cold
        if not is_warm and seen and (not was_cold or seen[0][1] <= seconds):
            return
        if was_cold or not is_warm:
            seen = []
        elif now - self._newest.get(kept, now) > _STALE:
            seen = seen[-1:]
        if self._points and kept not in self._points:  # one slow round is no price
            seconds = min(seconds, _JUMP * self.at(size))
        seen = [*seen, (size, max(seconds, _LEAST))][-_KEPT:]
        n = len(seen)
        mean = size if kept == size else sum([size for size, _ in seen]) / n
        median = sorted([seconds for _, seconds in seen])[(n - 1) // 2]
        point = mean, median if is_warm else _WARM * median, n
        before = self._points.get(kept, (0.0, 0.0, 0))
        # Whole values take the place of others, wherever a signal cuts this off.
        self._seen[kept] = seen
        (self._cold.discard if is_warm else self._cold.add)(kept)
        self._newest[kept], self._points[kept] = now, point
        if point[:2] != before[:2]:
            self._sizes = []

    def n_seen(self, size: int) -> int:
        """Return how many measurements of a size are kept."""
        return self._points.get(_kept_as(size), (0.0, 0.0, 0))[2]

    def is_sure(self, size: int) -> bool:
        """Say whether there are as many measurements of a size as are kept."""
        return self.n_seen(size) == _KEPT

    def at(self, size: float) -> float:
        """Return the seconds of a size; there must be a measurement of some size."""
        if not self._sizes:
            self._fit()
        found = self._at.get(size)
        if found is None:
            found = self._at[size] = self._between(size)
        return found

    def _between(self, size: float) -> float:
        sizes, seconds = self._sizes, self._seconds
        i = bisect_right(sizes, size)
        if 0 < i < len(sizes):
            below, low = sizes[i - 1], seconds[i - 1]
            return low + (size - below) / (sizes[i] - below) * (seconds[i] - low)
        slope = 0.0
        if len(sizes) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        end = -1 if i else 0
        return max(seconds[end] + slope * (size - sizes[end]), 0.1 * seconds[end])

    def lowest(self, size: float, now: int) -> float:
        """Return what a size may cost at least in round ``now``, by what is known of it.

        That is no less than what smaller ones cost at least.
        """
        if not self._sizes:
            self._fit()
        if not 0 <= now - self._floor.begin < _GLANCE:
            sizes = sorted(self._points)
            alone = [self._lowest_alone(kept, now) for kept in sizes]
            self._floor = _Floor(now, sizes, [*accumulate(alone, max)], {})
        found = self._floor.at.get(size)
        if found is None:
            found = self._floor.at[size] = self._above_floor(size)
        return found

    def _above_floor(self, size: float) -> float:
        _, sizes, seconds, _ = self._floor
        i = bisect_right(sizes, size)
        if i and sizes[i - 1] == size:
            return seconds[i - 1]
        return max(seconds[i - 1] if i else 0.0, (1.0 - _UNSURE) * self.at(size))

    def _lowest_alone(self, kept: int, now: int) -> float:
        if kept in self._cold:
            return _LEAST
        age = (now - self._newest[kept]) / _UNSURE_AFTER
        unsure = min(max(_UNSURE / self._points[kept][2], age), 1.0)
        return (1.0 - unsure) * self.at(kept)

    def points(self) -> dict[int, float]:
        """Return the seconds of the sizes that were measured; of large ones by eights."""
        return {size: self.at(size) for size in sorted(self._points)}

    def _fit(self) -> None:
        """Pool neighbours whose medians fall with size (isotonic regression)."""
        pools: list[tuple[float, int, list[float]]] = []  # mean, weight, sizes
        for _, (size, mean, weight) in sorted(self._points.items()):
            sizes = [size]
            while pools and pools[-1][0] > mean:
                before, n, below = pools.pop()
                mean = (mean * weight + before * n) / (weight + n)
                weight, sizes = weight + n, below + sizes
            pools.append((mean, weight, sizes))
        self._floor, self._at = _Floor(-_GLANCE, [], [], {}), {}
        # Sizes last: without them there is no curve, wherever a signal cuts this off.
        self._seconds = [0.0] * self._anchored + [pool[0] for pool in pools for _ in pool[2]]
        self._sizes = [0] * self._anchored + [size for pool in pools for size in pool[2]]


class Passes(Curve):
    """Seconds of passes by rows, at one speed of the machine.

    A machine is slower at times: other programs run, or it is hot. If prices were seconds, those
    measured at different times could not be compared, and what was last tried in a fast moment
    would look cheap. So seconds are divided by ``slowness``, which follows what passes of a
    size that was measured take.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slowness = 1.0
        self._slowness = deque([1.0] * _AGREEING, maxlen=_AGREEING)

    def observe(self, size: int, seconds: float, now: int, *, is_warm: bool = True) -> None:
        """Take a pass of round ``now``, and what it says of the machine's speed."""
        if is_warm and self.n_seen(size):
            self._slowness.append(max(seconds, _LEAST) / self.at(size))
            self.slowness = sorted(self._slowness)[len(self._slowness) // 2]
        super().observe(size, seconds / self.slowness, now, is_warm=is_warm)

    def _between(self, size: float) -> float:
        seconds = super()._between(size)
        if len(self._sizes) == 1:
            seconds *= (1 + _ROW * (size - 1)) / (1 + _ROW * (self._sizes[0] - 1))
        return seconds


class DraftCurves:
    """Seconds of a draft by how many tokens in a row the longest has, and who drafts together.

    Sequences that draft together share a step. Between numbers of sequences that were measured it
    is a line; fewer and more cost what the nearest of these do.
    """

    def __init__(self) -> None:
        self._curves: dict[int, Curve] = {}
        self._measured: list[int] = []

    def __len__(self) -> int:
        return len(self._curves)

    def observe(
        self, n_seqs: int, longest: int, seconds: float, now: int, *, is_warm: bool = True
    ) -> None:
        """Take a draft of ``n_seqs`` sequences together."""
        curve = self._curves.get(n_seqs) or Curve(anchored=True)
        curve.observe(longest, seconds, now, is_warm=is_warm)
        self._curves[n_seqs] = curve  # now that it has a measurement: a signal may come between
        self._measured = sorted(self._curves)

    def at(self, n_seqs: int, longest: int) -> float:
        """Return the seconds; nothing where nobody drafts or nothing was measured."""
        return self._between(n_seqs, lambda curve: curve.at(longest))

    def lowest(self, n_seqs: int, longest: int, now: int) -> float:
        """Return what it may cost at least in round ``now``; see ``Curve``."""
        return self._between(n_seqs, lambda curve: curve.lowest(longest, now))

    def _between(self, n_seqs: int, read: Callable[[Curve], float]) -> float:
        measured, curve = self._measured, self._curves.get(n_seqs)
        if curve is not None:  # as mostly
            return read(curve)
        if not n_seqs or not measured:
            return 0.0
        i = bisect_left(measured, n_seqs)
        above = measured[min(i, len(measured) - 1)]
        seconds = read(self._curves[above])
        if not i or above < n_seqs:
            return seconds
        below = measured[i - 1]
        low = read(self._curves[below])
        return low + (n_seqs - below) / (above - below) * (seconds - low)

    def points(self) -> dict[int, float]:
        """Return the seconds by length, for the smallest number of sequences measured."""
        return self._curves[self._measured[0]].points() if self._measured else {}


def _kept_as(size: int) -> int:
    """Return the size that a measurement is kept with."""
    return size if size <= 32 else -(-size // 8) * 8
