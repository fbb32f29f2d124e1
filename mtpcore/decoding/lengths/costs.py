"""What passes and drafts cost on this machine, learnt from the rounds as they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from statistics import median, median_low

__all__ = ["Costs", "Curve", "DraftCurves", "Passes"]

_KEPT = 9
"""Measurements of one size: their median stands against four slow rounds."""
_STALE = 64
"""Rounds without a measurement of a size after which only the newest of its old ones counts."""
_LEAST = 1e-9
"""Seconds of anything: a clock that is too coarse to see it must not make it free."""
_WELL_KNOWN, _AGREEING = 3, 5
"""Measurements of a size after which another one says how fast the machine is; the median of so
many such counts, against two slow rounds."""


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
        self._newest: dict[int, int] = {}
        self._cold: set[int] = set()  # sizes of which there is nothing better
        self._sizes: list[float] = []
        self._seconds: list[float] = []

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def largest(self) -> int:
        """The largest size that was measured."""
        return max(self._seen)

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
        # A whole list takes the place of the other, wherever a signal cuts this off.
        self._seen[kept] = [*seen, (size, max(seconds, _LEAST))][-_KEPT:]
        (self._cold.discard if is_warm else self._cold.add)(kept)
        self._newest[kept] = now
        self._sizes = []

    def n_seen(self, size: int) -> int:
        """Return how many measurements of a size are kept."""
        return len(self._seen.get(_kept_as(size), ()))

    def is_cold(self, size: int) -> bool:
        """Say whether nothing but the most that a size may cost is known."""
        return _kept_as(size) in self._cold

    def at(self, size: float) -> float:
        """Return the seconds of a size; there must be a measurement of some size."""
        if not self._sizes:
            self._fit()
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

    def at_least(self, size: float) -> float:
        """Return what a size costs if nothing costs more than the largest one measured."""
        seconds = self.at(size)
        return min(seconds, self._seconds[-1])

    def points(self) -> dict[int, float]:
        """Return the seconds of the sizes that were measured; of large ones by eights."""
        return {size: self.at(size) for size in sorted(self._seen)}

    def _fit(self) -> None:
        """Pool neighbours whose medians fall with size (isotonic regression)."""
        pools: list[tuple[float, int, list[float]]] = []  # mean, weight, sizes
        for kept in sorted(self._seen):
            seen = self._seen[kept]
            weight, sizes = len(seen), [sum(size for size, _ in seen) / len(seen)]
            mean = median_low([seconds for _, seconds in seen])
            while pools and pools[-1][0] > mean:
                before, n, below = pools.pop()
                mean = (mean * weight + before * n) / (weight + n)
                weight, sizes = weight + n, below + sizes
            pools.append((mean, weight, sizes))
        # Sizes last: without them there is no curve, wherever a signal cuts this off.
        self._seconds = [0.0] * self._anchored + [pool[0] for pool in pools for _ in pool[2]]
        self._sizes = [0] * self._anchored + [size for pool in pools for size in pool[2]]


class Passes(Curve):
    """Seconds of passes by rows, at one speed of the machine.

    A machine is slower at times: other programs run, or it is hot. If prices were seconds, those
    measured at different times could not be compared, and what was last tried in a fast moment
    would look cheap. So seconds are divided by ``slowness``, which follows what passes of a well
    known price take.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slowness = 1.0
        self._slowness = deque([1.0] * _AGREEING, maxlen=_AGREEING)

    def observe(self, size: int, seconds: float, now: int, *, is_warm: bool = True) -> None:
        """Take a pass of round ``now``, and what it says of the machine's speed."""
        if is_warm and self.n_seen(size) >= _WELL_KNOWN:
            self._slowness.append(max(seconds, _LEAST) / self.at(size))
            self.slowness = median(self._slowness)
        super().observe(size, seconds / self.slowness, now, is_warm=is_warm)


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
        curve = self._curves.get(n_seqs, Curve(anchored=True))
        curve.observe(longest, seconds, now, is_warm=is_warm)
        self._curves[n_seqs] = curve  # now that it has a measurement: a signal may come between
        self._measured = sorted(self._curves)

    def at(self, n_seqs: int, longest: int) -> float:
        """Return the seconds; nothing where nobody drafts or nothing was measured."""
        return self._between(Curve.at, n_seqs, longest)

    def at_least(self, n_seqs: int, longest: int) -> float:
        """Return what it costs if no length costs more than the longest one measured."""
        return self._between(Curve.at_least, n_seqs, longest)

    def points(self) -> dict[int, float]:
        """Return the seconds by length, for the smallest number of sequences measured."""
        return self._curves[self._measured[0]].points() if self._measured else {}

    def _between(self, read: Callable[[Curve, float], float], n_seqs: int, longest: int) -> float:
        measured = self._measured
        if not n_seqs or not measured:
            return 0.0
        i = bisect_left(measured, n_seqs)
        above = measured[min(i, len(measured) - 1)]
        seconds = read(self._curves[above], longest)
        if not i or above <= n_seqs:
            return seconds
        below = measured[i - 1]
        low = read(self._curves[below], longest)
        return low + (n_seqs - below) / (above - below) * (seconds - low)


class Costs:
    """Prices of a round's parts, at the speed of the machine that passes are priced at.

    ``passes`` is by rows of the target's pass, with everything that a round needs besides it.
    ``choosing`` is the choice of one token from its logits. ``catching_up`` is what a drafter takes
    to read a text that it has not read along.

    Parameters
    ----------
    passes : Passes, optional
        Prices of passes that several drafters share.
    """

    def __init__(self, passes: Passes | None = None) -> None:
        self.passes = Passes() if passes is None else passes
        self.drafts = DraftCurves()
        self.choosing = self.catching_up = 0.0
        self._made: dict[int, float] = {}

    @property
    def slowness(self) -> float:
        """How much longer everything takes now than its price says."""
        return self.passes.slowness

    def observe_draft(
        self, n_seqs: int, longest: int, seconds: float, now: int, *, is_warm: bool = True
    ) -> None:
        """Take a draft of ``n_seqs`` sequences together."""
        self.drafts.observe(n_seqs, longest, seconds / self.slowness, now, is_warm=is_warm)

    def observe_choices(self, tokens: int, seconds: float) -> None:
        """Take how long it took to choose ``tokens``."""
        each = seconds / self.slowness / tokens
        # A slow round is taken for twice the usual at most.
        self.choosing += 0.1 * (min(each, 2 * self.choosing) - self.choosing)
        self.choosing = self.choosing or each

    def observe_catching_up(self, texts: int, seconds: float) -> None:
        """Take how long it took to read ``texts`` anew; the latest measurements count most."""
        each = max(seconds / self.slowness / texts, 0.0)
        self.catching_up += 0.5 * (each - self.catching_up) if self.catching_up else each

    def observe_made(self, asked: int, drafted: int) -> None:
        """Take how many tokens a draft of a length asked for has: a tree more, a lookup fewer."""
        before = self._made.get(asked, drafted)
        self._made[asked] = before + 0.1 * (drafted - before)

    def rows(self, length: int) -> float:
        """Return how many rows a draft of a length adds to a pass."""
        drafted = self._made
        if not length or length in drafted or not drafted:
            return drafted.get(length, float(length))
        longest = max(drafted)
        return length * drafted[longest] / longest


def _kept_as(size: int) -> int:
    """Return the size that a measurement is kept with."""
    return size if size <= 32 else -(-size // 8) * 8
