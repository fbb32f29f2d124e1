"""Importance matrices: how much the columns of each matrix matter, as llama.cpp writes it.

For every matrix the squares of what its columns were multiplied with were added up over a text, of
stacks for each matrix of the stack. Sources: llama.cpp's ``tools/imatrix`` and
``common/imatrix-loader`` (October 2026); files are GGUF, or of the form before that.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import msgspec
import numpy as np

from mtpcore.errors import ModelFileError
from mtpcore.gguf import ModelFile, open_model_file
from mtpcore.gguf.header import MetadataValue

__all__ = ["Importance", "read_importance"]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_MAX_NAME, _MAX_ENTRIES, _MAX_FILE_NAME = 512, 1 << 16, 127
_DAMAGED = "not an importance matrix, or a damaged one"
_FIX = "give a file of llama.cpp's imatrix program"


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
    try:
        with open(path, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        found = _read_gguf(path) if is_gguf else _read_old(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelFileError(
            "cannot open the importance matrix", where=str(path), got=error.strerror, fix=_FIX
        ) from error
    for name, weights in found.weights.items():
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ModelFileError(
                "weights that are not finite, or below 0",
                where=f"{path}: {name!r}",
                fix="make the importance matrix again",
            )
    if not found.weights:
        raise ModelFileError("no weights", where=str(path), fix=_FIX)
    return found


def _read_gguf(path: Path) -> Importance:
    with open_model_file(path, to_look_at=True) as file:
        if file.metadata.get("general.type") != "imatrix":
            raise ModelFileError(
                "not an importance matrix",
                where=f"{path}: metadata key 'general.type'",
                wanted="imatrix",
                got=file.metadata.get("general.type", "nothing"),
                fix=_FIX,
            )
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        weights = {name: _mean(file, name, path) for name in names}
        datasets = file.metadata.get("imatrix.datasets", [])
        n_chunks = file.metadata.get("imatrix.chunk_count", 0)
    known = tuple(str(name) for name in datasets) if isinstance(datasets, list) else ()
    return Importance(str(path), known, n_chunks if isinstance(n_chunks, int) else 0, weights)


def _mean(file: ModelFile, name: str, path: Path) -> np.ndarray:
    """Return the mean square of each column, of a matrix that saw no rows 1."""
    sums = file.tensors[name + _SUMS].array()
    if name + _COUNTS not in file.tensors:
        raise ModelFileError("sums without counts", where=f"{path}: {name + _COUNTS!r}", fix=_FIX)
    counts = file.tensors[name + _COUNTS].array().reshape(-1)
    sums = sums.reshape(-1, sums.shape[-1])
    if len(counts) != len(sums):
        raise ModelFileError(
            "sums and counts of different numbers of matrices",
            where=f"{path}: {name!r}",
            wanted=len(sums),
            got=len(counts),
            fix=_FIX,
        )
    seen = counts[:, None] > 0
    means = np.ones_like(sums)
    np.divide(sums, counts[:, None], out=means, where=seen)
    return np.ascontiguousarray(means, np.float32).reshape(-1)


def _read_old(data: bytes, where: str) -> Importance:
    """Read the form before GGUF: for each matrix its name, a number of calls, and sums."""
    at = 0

    def take(form: str) -> int:
        nonlocal at
        if at + struct.calcsize(form) > len(data):
            raise ModelFileError(
                "not an importance matrix, or a damaged one", where=where, fix=_FIX
            )
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(value)

    def take_bytes(n_bytes: int, most: int) -> bytes:
        nonlocal at
        if not 0 <= n_bytes <= min(most, len(data) - at):
            raise ModelFileError(
                "not an importance matrix, or a damaged one", where=where, fix=_FIX
            )
        at += n_bytes
        return data[at - n_bytes : at]

    weights = {}
    n_entries = take("<i")
    if not 0 < n_entries <= _MAX_ENTRIES:
        raise ModelFileError("not an importance matrix", where=where, got=data[:4], fix=_FIX)
    for _ in range(n_entries):
        name = take_bytes(take("<i"), _MAX_NAME).decode(errors="replace")
        n_calls, n_values = take("<i"), take("<i")
        sums = np.frombuffer(take_bytes(4 * n_values, len(data)), "<f4")
        weights[name] = (sums / n_calls if n_calls > 0 else np.ones_like(sums)).astype(np.float32)
    n_chunks, datasets = 0, []
    if at < len(data):
        n_chunks = take("<i")
        datasets = [take_bytes(take("<i"), _MAX_NAME).decode(errors="replace")]
    return Importance(where, tuple(datasets), n_chunks, weights)
