"""Measurements, kept as JSON; later measurements of a cell replace earlier ones."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Found", "Ratio", "Results", "key_of"]


class Ratio(msgspec.Struct, frozen=True):
    """Of pairs of measurements: the middle ratio, the least and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, over: list[float], under: list[float]) -> Ratio:
        """Divide measurement by measurement."""
        ratios = [a / b for a, b in zip(over, under, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


class Found(msgspec.Struct):
    """One cell of one file: seconds by turn.

    ``theirs`` holds the setting of llama.cpp that was best in this cell (or several). ``more``
    are further figures by name, ``n_tokens`` the tokens of one measurement.
    """

    file: str
    cell: str
    n_tokens: int
    ours: list[float]
    theirs: dict[str, list[float]] = {}
    more: dict[str, float] = {}
    run: int = 0

    @property
    def seconds(self) -> float:
        """Our median."""
        return statistics.median(self.ours)

    @property
    def best(self) -> str | None:
        """The setting of llama.cpp whose median is least."""
        return min(self.theirs, key=lambda name: statistics.median(self.theirs[name]), default=None)

    @property
    def their_seconds(self) -> float | None:
        """The median of llama.cpp's best setting."""
        return statistics.median(self.theirs[self.best]) if self.best else None

    @property
    def ratio(self) -> Ratio | None:
        """llama.cpp's time over ours: above one we are faster."""
        return Ratio.of(self.theirs[self.best], self.ours) if self.best else None


class Results(msgspec.Struct):
    """All that was measured on one machine, and in which runs."""

    machine: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    cells: list[Found] = []

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read the file, or begin anew where there is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Write the file, a cell a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        used = {found.run for found in self.cells}
        parts = [
            '{"machine": ' + _json(self.machine),
            '"runs": [\n' + ",\n".join(map(_json, self.runs)) + "]",
            '"cells": [\n' + ",\n".join(map(_json, self.cells)) + "]}",
        ]
        assert used <= set(range(len(self.runs)))
        path.write_text(",\n".join(parts) + "\n", "utf-8")

    def add(self, found: Found) -> None:
        """Keep a measurement of the newest run."""
        found.run = len(self.runs) - 1
        self.cells = [old for old in self.cells if key_of(old) != key_of(found)] + [found]

    def find(self, file: str, cell: str) -> Found | None:
        """Return a measurement, if there is one."""
        return next((one for one in self.cells if key_of(one) == (file, cell)), None)


def key_of(found: Found) -> tuple[str, str]:
    """Return by what measurements replace each other."""
    return found.file, found.cell


def _json(value: Any) -> str:
    """Return JSON with as many digits as mean anything."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(value))).decode()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
