"""Times of the parts of a round."""

from __future__ import annotations

from time import perf_counter

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds of things that follow each other; it runs from the beginning."""

    __slots__ = ("_begin", "_last")

    def __init__(self) -> None:
        self._begin = self._last = perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, and begin the next one."""
        before, self._last = self._last, perf_counter()
        return self._last - before

    @property
    def total(self) -> float:
        """Seconds of all laps together."""
        return self._last - self._begin
