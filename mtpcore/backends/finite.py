"""Which rows hold NaN or infinity, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["find_not_finite"]


def find_not_finite(parts: Sequence[Any]) -> list[int]:
    """Return which rows hold NaN or infinity in any of their parts, ascending.

    Parts are float32[n, *], of a caller or of plans. Those on a device are looked at there, and the
    host waits for it once.
    """
    there = [part for part in parts if not isinstance(part, np.ndarray)]
    bad = set(there[0].find_not_finite(there[1:])) if there else set[int]()
    for part in parts:
        if isinstance(part, np.ndarray):
            finite = np.isfinite(part)
            if not finite.all():
                bad.update(np.flatnonzero(~finite.all(axis=1)).tolist())
    return sorted(bad)
