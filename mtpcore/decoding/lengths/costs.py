"""What passes and drafts cost on this machine, learnt from the rounds as they run."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from statistics import median_low

__all__ = ["Costs", "Curve"]

_KEPT = 9
"""Measurements of one size: their median stands against four slow rounds."""
_STALE = 64
"""After so many rounds what was measured at another time gives way to what is measured now."""
_LEAST = 1e-9
"""Seconds of anything: a clock that is too coarse to see it must not make it free."""
_MORE_ROW = 0.1
"""A further row over one, before anything but one size was measured."""


class Curve:
    """Seconds by size: medians of the latest measurements, never falling with size.

    Between sizes that were measured it is a line; beyond the largest the line from the smallest to
    the largest goes on. No shape is assumed: rows that share a kernel's tile or an expert cost
    little, the next one may cost much.

    Parameters
    ----------
    anchored : bool
        Size 0 costs nothing.
    """

    def __init__(self, *, anchored: bool = False) -> None:
        self._anchored = anchored
        self._seen: dict[int, deque[float]] = {}
        self._newest: dict[int, int] = {}
        self._sizes: list[int] = []
        self._seconds: list[float] = []

    def __len__(self) -> int:
        return len(self._seen)

    def observe(self, size: int, seconds: float, now: int) -> None:
        """Take a measurement of round ``now``."""
        seen = self._seen.setdefault(size, deque(maxlen=_KEPT))
        if now - self._newest.get(size, now) > _STALE:
            while len(seen) > 1:
                seen.popleft()
        seen.append(max(seconds, _LEAST))
        self._newest[size] = now
        self._sizes = []

    def n_seen(self, size: int) -> int:
        """Return how many measurements of a size are kept."""
        return len(self._seen.get(size, ()))

    def at(self, size: float) -> float:
        """Return the seconds of a size; there must be a measurement of some size."""
        if not self._sizes:
            self._fit()
        sizes, seconds = self._sizes, self._seconds
        i = bisect_right(sizes, size)
        if 0 < i < len(sizes):
            below, low = sizes[i - 1], seconds[i - 1]
            return low + (size - below) / (sizes[i] - below) * (seconds[i] - low)
        slope = _MORE_ROW * seconds[0] / max(sizes[0], 1)
        if len(sizes) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        end = -1 if i else 0
        return max(seconds[end] + slope * (size - sizes[end]), 0.1 * seconds[end])

    def at_least(self, size: float) -> float:
        """Return what a size costs if nothing costs more than the largest one measured."""
        return min(self.at(size), self.at(min(size, max(self._seen))))

    def points(self) -> dict[int, float]:
        """Return the seconds of the sizes that were measured."""
        return {size: self.at(size) for size in sorted(self._seen)}

    def _fit(self) -> None:
        """Pool neighbours whose medians fall with size (isotonic regression)."""
        pools: list[tuple[float, int, list[int]]] = []  # mean, weight, sizes
        for size in sorted(self._seen):
            seen = self._seen[size]
            mean, weight, sizes = median_low(seen), len(seen), [size]
            while pools and pools[-1][0] > mean:
                before, n, below = pools.pop()
                mean = (mean * weight + before * n) / (weight + n)
                weight, sizes = weight + n, below + sizes
            pools.append((mean, weight, sizes))
        # Sizes last: without them there is no curve, wherever a signal cuts this off.
        self._seconds = [0.0] * self._anchored + [pool[0] for pool in pools for _ in pool[2]]
        self._sizes = [0] * self._anchored + [size for pool in pools for size in pool[2]]


class Costs:
    """Prices of a round's parts.

    ``passes`` is by rows of the target's pass, with everything that a round needs besides it.
    Drafts are by how many tokens in a row the longest has, for each number of sequences that draft
    together: these share a step. ``choosing`` is the choice of one token from its logits.
    """

    def __init__(self) -> None:
        self.passes = Curve()
        self.choosing = 0.0
        self._drafts: dict[int, Curve] = {}
        self._made: dict[int, float] = {}

    def observe_pass(self, rows: int, seconds: float, now: int) -> None:
        """Take a pass."""
        self.passes.observe(_size(rows), seconds, now)

    def n_passes(self, rows: int) -> int:
        """Return how many passes of so many rows are known."""
        return self.passes.n_seen(_size(rows))

    def observe_choices(self, tokens: int, seconds: float) -> None:
        """Take the choice of so many tokens."""
        each = seconds / tokens
        # A slow round is taken for twice the usual at most.
        self.choosing += 0.1 * (min(each, 2 * self.choosing) - self.choosing)
        self.choosing = self.choosing or each

    def observe_draft(self, n_seqs: int, longest: int, seconds: float, now: int) -> None:
        """Take a draft of ``n_seqs`` sequences together."""
        curve = self._drafts.setdefault(n_seqs, Curve(anchored=True))
        curve.observe(longest, seconds, now)

    def observe_made(self, asked: int, drafted: int) -> None:
        """Take how many tokens a draft of a length asked for has: a tree more, a lookup fewer."""
        before = self._made.get(asked, drafted)
        self._made[asked] = before + 0.1 * (drafted - before)

    def drafts(self, n_seqs: int) -> Curve | None:
        """Return the prices by length of the nearest number of sequences that was measured."""
        if n_seqs in self._drafts:
            return self._drafts[n_seqs]
        if not self._drafts:
            return None
        return self._drafts[min(self._drafts, key=lambda n: abs(n - n_seqs))]

    def rows(self, length: int) -> float:
        """Return how many rows a draft of a length adds to a pass."""
        drafted = self._made
        if not length or length in drafted or not drafted:
            return drafted.get(length, float(length))
        longest = max(drafted)
        return length * drafted[longest] / longest


def _size(rows: int) -> int:
    """Return as what a number of rows is kept: many rows by eights."""
    return rows if rows <= 32 else -(-rows // 8) * 8
