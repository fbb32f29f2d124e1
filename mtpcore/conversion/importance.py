"""Importance matrices: how much the columns of each matrix matter, as llama.cpp weighs them.

The weight of a column is the mean square of what it was multiplied with over a text: files say it
in two forms (``importance_file``).
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from mtpcore.conversion.importance_file import mean_squares, read_sums
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue

__all__ = ["Importance", "read_importance"]

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_MAX_FILE_NAME = 127


class Importance(msgspec.Struct, frozen=True):
    """Weights of the columns of matrices.

    Attributes
    ----------
    path : str
    datasets : tuple of str
        What the text was.
    n_chunks : int
    weights : dict of str to float32 [n_matrices * n_columns]
        By names of tensors.
    """

    path: str
    datasets: tuple[str, ...]
    n_chunks: int
    weights: dict[str, np.ndarray]

    def described(self) -> dict[str, MetadataValue]:
        """Return what a quantised file says of it, in llama.cpp's keys."""
        said: dict[str, MetadataValue] = {
            "quantize.imatrix.file": self.path.encode()[:_MAX_FILE_NAME].decode(errors="ignore")
        }
        if self.datasets:
            name = self.datasets[0].encode()[:_MAX_FILE_NAME].decode(errors="ignore")
            said["quantize.imatrix.dataset"] = name
        said["quantize.imatrix.entries_count"] = len(self.weights)
        if self.n_chunks > 0:
            said["quantize.imatrix.chunks_count"] = self.n_chunks
        return said

    def of(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return float32 [n_matrices, n_columns] of a tensor, or None where there is nothing of it.

        Raises
        ------
        ModelFileError
            There are weights for another number of columns or matrices.
        """
        found = self.weights.get(name)
        n_matrices = math.prod(shape[:-2])
        if found is None or found.size == n_matrices * shape[-1]:
            return None if found is None else found.reshape(n_matrices, shape[-1])
        if name in _EMBEDDINGS:
            return None
        raise ModelFileError(
            "the importance matrix is of another model",
            where=f"{self.path}: {name!r}",
            wanted=f"{n_matrices} x {shape[-1]} weights",
            got=found.size,
            fix="make one of this model",
        )


def read_importance(path: Path) -> Importance:
    """Read an importance matrix.

    Raises
    ------
    ModelFileError
        It cannot be read, or a weight is not finite or below 0.
    """
    found = read_sums(path)
    weights = {name: mean_squares(found, name).reshape(-1) for name in found.sums}
    return Importance(str(path), found.datasets, found.n_chunks, weights)
