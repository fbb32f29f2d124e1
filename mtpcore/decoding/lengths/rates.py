"""How often drafts are accepted: by what their drafter knows of them, and by text."""

from __future__ import annotations

__all__ = ["PRIOR", "Calibration", "Rates"]

PRIOR = 12.0
"""Trials that an expectation counts for."""
_MEMORY, _TEXT_MEMORY = 1024.0, 128.0
"""Rounds after which a trial counts for 1/e: of all texts together, and of one."""
_HIGHEST = 0.99
_LEAST = 0.05
"""Drafts that are reached more rarely are not looked at."""


class Rates:
    """The rate at which draft 1, 2, ... is accepted when all before it were, in all texts.

    A rate is accepted over tried ones; both fade, so that the estimate follows what is written. A
    few trials' worth of expectation is mixed in: for the first draft what the drafter says of it,
    for a later one the rate of the draft before it.

    Parameters
    ----------
    first : float
        What is expected of first drafts.
    """

    def __init__(self, first: float) -> None:
        self._first, self._now = first, 0
        self._trials: list[tuple[float, float]] = []  # accepted and tried ones, by position
        self._rates: tuple[int, list[float]] = (0, [])  # as they are in a round

    def observe(self, tried: int, accepted: int, now: int) -> None:
        """Count a draft of ``tried`` tokens in round ``now``, ``accepted`` of them in a row."""
        fade = (1.0 - 1.0 / _MEMORY) ** (now - self._now)
        trials = [(good * fade, all_ * fade) for good, all_ in self._trials]
        for i in range(min(accepted + 1, tried)):
            if i == len(trials):
                trials.append((0.0, 0.0))
            trials[i] = trials[i][0] + (i < accepted), trials[i][1] + 1.0
        self._trials, self._now, self._rates = trials, now, (now, [])

    def rates(self, n: int, now: int) -> list[float]:
        """Return the rates of drafts 1 .. n in round ``now``."""
        at, rates = self._rates
        if at != now or len(rates) < n:
            fade = (1.0 - 1.0 / _MEMORY) ** (now - self._now)
            rates, expected = [], self._first
            for i in range(n):
                good, tried = self._trials[i] if i < len(self._trials) else (0.0, 0.0)
                expected = (good * fade + PRIOR * expected) / (tried * fade + PRIOR)
                rates.append(min(expected, _HIGHEST))
            self._rates = now, rates
        return rates[:n]


class Calibration:
    """How much more often drafts of one text are accepted than such drafts are in all texts.

    It is a factor of the odds, so that what is sure stays sure: one of first drafts, and one of
    those after accepted ones.
    """

    def __init__(self) -> None:
        self._now = 0
        self._first = self._later = (0.0, 0.0, 0.0)  # accepted, expected to be, tried

    def observe(self, rates: list[float], accepted: int, now: int) -> None:
        """Count a draft of which draft 1, 2, ... is accepted at these rates in all texts."""
        fade, later = self._fade(now), max(accepted - 1, 0)
        self._first, self._later, self._now = (
            _counted(self._first, fade, rates[:1], accepted - later),
            _counted(self._later, fade, rates[1 : accepted + 1], later),
            now,
        )

    def reach(self, rates: list[float], now: int) -> list[float]:
        """Return the share of rounds in which draft 1, 2, ... is accepted, all before it too."""
        fade = self._fade(now)
        odds, later = _odds(self._first, fade), _odds(self._later, fade)
        share, shares = 1.0, list[float]()
        for rate in rates:
            share *= rate * odds / (1.0 + rate * (odds - 1.0))
            if share < _LEAST:
                break
            shares.append(share)
            odds = later
        return shares

    def _fade(self, now: int) -> float:
        return float((1.0 - 1.0 / _TEXT_MEMORY) ** (now - self._now))


Seen = tuple[float, float, float]


def _counted(seen: Seen, fade: float, rates: list[float], accepted: int) -> Seen:
    """Return what was seen and faded, and further drafts: their rates, and how many are good."""
    good, expected, n = seen
    return good * fade + accepted, expected * fade + sum(rates), n * fade + len(rates)


def _odds(seen: Seen, fade: float) -> float:
    """Return the odds of acceptance over those expected, with a few trials as expected."""
    good, expected, n = seen[0] * fade, seen[1] * fade, seen[2] * fade
    odds = (good + PRIOR) / (expected + PRIOR)
    return odds * (n - expected + PRIOR) / (n - good + PRIOR)
