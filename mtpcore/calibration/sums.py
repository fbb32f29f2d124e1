"""Sums of squares: of a chunk of text in float64, of all chunks in float32.

Chunks are added one after the other, each rounded to float32: a run that goes on from a file makes
the bits of one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.conversion.importance_file import ImportanceSums
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.graph import ProductInput

__all__ = ["ChunkSums", "TotalSums", "sum_squares"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_ROWS = 64
"""Rows that are squared at once."""


def sum_squares(rows: F32) -> F64:
    """Return the sums of the squares of columns.

    Parameters
    ----------
    rows : float32[n, width]

    Returns
    -------
    float64[width]
    """
    total = np.zeros(rows.shape[-1])
    for begin in range(0, len(rows), _ROWS):
        piece = rows[begin : begin + _ROWS].astype(np.float64)
        total += np.square(piece, out=piece).sum(axis=0)
    return total


def _sums_by_matrix(read: ProductInput, rows: F32, ids: I32 | None) -> tuple[F64, I64]:
    """Return float64[n_matrices, width] and int64[n_matrices]: sums of squares, and rows."""
    width = rows.shape[-1]
    if read.read == "heads":
        sums = [sum_squares(rows[:, head]) for head in range(rows.shape[1])]
        return np.stack(sums), np.full(len(sums), len(rows))
    if ids is None:
        rows = rows.reshape(-1, width)
        return sum_squares(rows)[None], np.array([len(rows)])
    n = read.weights[0].shape[0]
    counts = np.bincount(ids.ravel(), minlength=n)
    order, ends = np.argsort(ids, axis=None, kind="stable"), np.cumsum(counts)
    sums_of_all, n_used = np.zeros((n, width)), ids.shape[1]
    for matrix in np.flatnonzero(counts):
        chosen = order[ends[matrix] - counts[matrix] : ends[matrix]]
        mine = rows[chosen // n_used] if rows.ndim == 2 else rows.reshape(-1, width)[chosen]
        sums_of_all[matrix] = sum_squares(mine)
    return sums_of_all, counts.astype(np.int64)


class ChunkSums:
    """Sums over the rows of a chunk, by what is read: what matrices share is summed once."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str, str | None], ProductInput] = {}
        self._sums: dict[tuple[str, str, str | None], tuple[F64, I64]] = {}

    def add(
        self, graph: str, read: ProductInput, rows: NDArray[Any], ids: NDArray[Any] | None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        graph : str
            Which graph was run.
        read : ProductInput
        rows : float32[n, width] or float32[n, n_used, width]
        ids : int32[n, n_used] or None
            By which matrices they are multiplied, where that differs.
        """
        key = graph, read.rows, read.ids
        sums, counts = _sums_by_matrix(read, rows, ids)
        if key in self._sums:
            before = self._sums[key]
            sums, counts = before[0] + sums, before[1] + counts
        self._read[key], self._sums[key] = read, (sums, counts)

    def by_matrix(self) -> Mapping[str, tuple[F64, I64]]:
        """Return sums and counts by tensor, of one that reads several rows their sums."""
        found: dict[str, tuple[F64, I64]] = {}
        for key, (sums, counts) in self._sums.items():
            for weight in self._read[key].weights:
                if weight.tensor in found:
                    before = found[weight.tensor]
                    found[weight.tensor] = before[0] + sums, before[1] + counts
                else:
                    found[weight.tensor] = sums, counts
        return found


class TotalSums:
    """Sums over chunks.

    Parameters
    ----------
    shapes : mapping of str to (int, int)
        How many matrices of how many columns a tensor has, by name.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self._shapes = shapes
        self.sums: dict[str, F32] = {}
        self.counts: dict[str, I64] = {}

    def merge(self, found: ImportanceSums, chunk_size: int, where: str) -> None:
        """Add what a file says; the old form's counts are chunks of ``chunk_size`` tokens.

        Raises
        ------
        ModelFileError
            It is of another model.
        """
        factor = chunk_size if found.form == "dat" else 1
        for name, sums in found.sums.items():
            counts = found.counts[name] * factor
            shape = self._shapes.get(name, self.sums.get(name, sums).shape)
            if sums.size != shape[0] * shape[1] or len(counts) not in (1, shape[0]):
                raise ModelFileError(
                    "an importance matrix of another model",
                    where=f"{where}: {name[:80]!r}",
                    wanted=f"{shape[0]} x {shape[1]} sums",
                    got=f"{sums.size} sums of {len(counts)} matrices",
                    fix="merge files that were made of one model",
                )
            self._add(name, np.float32(factor) * sums.reshape(shape), counts)

    def add(self, chunk: ChunkSums) -> None:
        """Add the sums of a chunk.

        Raises
        ------
        BatchError
            A sum is not finite; nothing is added.
        """
        found = chunk.by_matrix()
        fitted: dict[str, tuple[F32, I64]] = {}
        for name, (sums, counts) in found.items():
            if name not in self._shapes:
                continue  # a table that a head borrows of another file
            if sums.shape[0] != self._shapes[name][0]:  # heads' matrices lie in the file as one
                sums, counts = sums.sum(axis=0, keepdims=True), counts.sum(keepdims=True)
            fitted[name] = sums.astype(np.float32), counts
            total = fitted[name][0] + self.sums.get(name, np.float32(0))
            if not np.isfinite(total).all():
                raise BatchError(
                    "a matrix is multiplied with numbers that are not finite, or too large",
                    where=f"tensor {name!r}",
                    fix="take the model as it was published: this one computes NaN or infinity",
                )
        for name, (sums32, counts) in fitted.items():
            self._add(name, sums32, counts)

    def _add(self, name: str, sums: F32, counts: I64) -> None:
        if name not in self.sums:
            self.sums[name] = np.zeros(sums.shape, np.float32)
            self.counts[name] = np.zeros(len(sums), np.int64)
        self.sums[name] += sums
        self.counts[name] += counts
