"""Pace: how many tokens a fit of so many minutes can learn from, measured before it begins."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import msgspec

from mtpcore.fitting.settings import Settings

__all__ = ["Pace", "time_per_token"]

_FOR_TOKENS = 0.9
"""Share of the time that grows with the tokens; the rest is for the first weights and measuring."""


class Pace(msgspec.Struct, frozen=True):
    """Seconds that a token takes: to be read, written, and learned from once."""

    reading: float
    writing: float
    training: float

    def tokens_within(self, minutes: float, settings: Settings) -> int:
        """Return how many tokens there is time for; those of one piece at least."""
        written = settings.written * self.writing
        each = self.reading + written + settings.epochs * self.training
        return max(int(_FOR_TOKENS * 60 * minutes / each), settings.window)


def time_per_token(work: Callable[[], int]) -> float:
    """Do work twice, and return how long a token of the second time took.

    Parameters
    ----------
    work : callable
        Returns how many tokens it was about.
    """
    work()
    begin = perf_counter()
    n = work()
    return (perf_counter() - begin) / n
