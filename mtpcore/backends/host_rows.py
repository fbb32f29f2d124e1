"""Rows that wait between graphs, in the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["HostRows"]

F32 = NDArray[np.float32]


class HostRows:
    """Room for ``n_rows`` rows float32[width]; implements ``mtpcore.backends.base.RowBuffer``."""

    def __init__(self, n_rows: int, width: int) -> None:
        self._rows: F32 = np.empty((n_rows, width), np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def write(self, at: int, parts: Sequence[F32]) -> None:
        """Store rows from row ``at`` on; of several parts each fills its columns."""
        left = 0
        for part in parts:
            right = left + part.shape[1]
            self._rows[at : at + len(part), left:right] = part
            left = right

    def read(self, begin: int, end: int) -> F32:
        """Return a copy of rows [begin, end), float32[end - begin, width]."""
        return self._rows[begin:end].copy()
