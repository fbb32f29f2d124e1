"""Statistics of importance matrices: how unevenly the columns of each matrix matter.

As llama.cpp's program has them (``tools/imatrix``, ``--show-statistics``, October 2026).
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.conversion.importance_file import ImportanceSums, mean_squares

__all__ = ["MatrixStatistics", "matrix_statistics"]

_INACTIVE = 1e-5


class MatrixStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of the mean squares of a tensor's columns, those of matrices that saw rows.

    Attributes
    ----------
    name : str
    n : int
        How many there are.
    total, least, most, mean, deviation : float
    active : float
        Share of them above 1e-5.
    entropy : float
        Of their shares in the total, in bits; log2(n) where all are equal.
    outliers : float
        Share of them that lie more than a standard deviation above the mean.
    similarity : float or None
        Cosine of the angle to the same tensor of the layer before; None where there is none.
    """

    name: str
    n: int
    total: float
    least: float
    most: float
    mean: float
    deviation: float
    active: float
    entropy: float
    outliers: float
    similarity: float | None


def matrix_statistics(found: ImportanceSums) -> list[MatrixStatistics]:
    """Return statistics of the tensors of a file that saw rows, in the order of their names."""
    return [_statistics(found, name) for name in sorted(found.sums) if found.counts[name].any()]


def _statistics(found: ImportanceSums, name: str) -> MatrixStatistics:
    seen = found.counts[name] > 0
    values = mean_squares(found, name)[seen].astype(np.float64).ravel()
    total, mean, deviation = float(values.sum()), float(values.mean()), float(values.std())
    shares = values[values > 0] / total if total else values[:0]
    return MatrixStatistics(
        name=name,
        n=len(values),
        total=total,
        least=float(values.min()),
        most=float(values.max()),
        mean=mean,
        deviation=deviation,
        active=float((values > _INACTIVE).mean()),
        entropy=abs(float((shares * np.log2(shares)).sum())),
        outliers=float((values > mean + deviation).mean()) if deviation else 0.0,
        similarity=_similarity(found.sums, name),
    )


def _similarity(sums: dict[str, NDArray[np.float32]], name: str) -> float | None:
    block = re.search(r"blk\.(\d+)\.", name)
    if block is None:
        return None
    before = name[: block.start(1)] + str(int(block[1]) - 1) + name[block.end(1) :]
    if before not in sums or sums[before].size != sums[name].size:
        return None
    a, b = (sums[one].astype(np.float64).ravel() for one in (name, before))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else None
