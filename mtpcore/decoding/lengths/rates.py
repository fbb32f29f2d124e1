"""How often draft 1, 2, ... is accepted, as estimated from what happened lately."""

from __future__ import annotations

__all__ = ["Rates"]

_PRIOR = 6.0
"""Trials that an estimate made without any counts for."""
_HIGHEST = 0.98


class Rates:
    """The rate at which draft i is accepted when all before it were, by position.

    A rate is accepted over tried ones, both fading with every trial, so that the estimate follows
    the text. A few trials' worth of expectation is mixed in. For the first draft that is what was
    expected to begin with. For a later one it is the rate of the draft before it, times what one
    step deeper costs in the texts written so far (``pool``); so rates of drafts that were never
    made are extrapolated.

    Parameters
    ----------
    first : float
        What is expected of first drafts, where there is no pool.
    memory : float
        Trials after which one counts for 1/e.
    pool : Rates, optional
        The rates of all texts together.
    """

    def __init__(self, first: float, memory: float, pool: Rates | None = None) -> None:
        self._first, self._keep, self._pool = first, 1.0 - 1.0 / memory, pool
        self._expected: list[float] = []
        self._accepted: list[float] = []
        self._tried: list[float] = []

    def observe(self, asked: int, accepted: int) -> None:
        """Count a draft of ``asked`` tokens in a row; one that was not made is not accepted."""
        tried, keep = self._tried, self._keep
        for i in range(min(accepted + 1, asked)):
            if i == len(tried):
                self._accepted.append(0.0)
                tried.append(0.0)
            tried[i] = tried[i] * keep + 1.0
            self._accepted[i] = self._accepted[i] * keep + (i < accepted)

    def doubt(self) -> None:
        """Keep estimates only as expectations, since the text may be another now."""
        self._expected = self.rates(max(len(self._tried), len(self._expected)))
        self._accepted, self._tried = [], []

    def rates(self, n: int) -> list[float]:
        """Return the rates of drafts 1 .. n, each where all before it were accepted."""
        pool = self._pool.rates(n) if self._pool else None
        rates: list[float] = []
        for i in range(n):
            if i < len(self._expected):
                expected = self._expected[i]
            elif not i:
                expected = pool[0] if pool else self._first
            else:
                deeper = pool[i] / max(pool[i - 1], 1e-9) if pool else 1.0
                expected = min(rates[-1] * deeper, _HIGHEST)
            if i < len(self._tried):
                accepted = self._accepted[i] + _PRIOR * expected
                expected = accepted / (self._tried[i] + _PRIOR)
            rates.append(expected)
        return rates

    def reach(self, n: int) -> list[float]:
        """Return the share of steps in which draft 1 .. n is accepted, all before it included."""
        shares, share = [], 1.0
        for rate in self.rates(n):
            share *= rate
            shares.append(share)
        return shares
