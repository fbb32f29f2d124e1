"""Adapters merged into a model's matrices: W + scale * alpha / rank * B A, in the type of W.

Sums are in float32, in the order of the rank and then of the adapters, so that they are the same on
every machine. What is written is the nearest that the type holds: another model than the one with
the adapters beside it, which reads W as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mtpcore.errors import ModelFileError, spell
from mtpcore.gguf.adapter import Adapter, is_scale
from mtpcore.gguf.held_tensor import HeldTensor
from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.writer import can_write, encode

__all__ = ["Merging", "add_product", "merge_adapters", "pieces_of", "read_merged"]

_PIECE = 1 << 18  # values that are changed at once


class Merging:
    """What adapters change in the matrices of a model.

    Parameters
    ----------
    adapters : iterable of (Adapter, float)
        With their scales, in the order in which they add.
    tensors : mapping of str to Tensor
        The model's.
    architecture : str
        The model's.

    Raises
    ------
    ModelFileError
        An adapter for other models, or of a matrix that there is not, of another shape, or of a
        type that is not written.
    """

    def __init__(
        self,
        adapters: Iterable[tuple[Adapter, float]],
        tensors: Mapping[str, Tensor],
        architecture: str,
    ) -> None:
        self._changes: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for adapter, scale in adapters:
            if adapter.architecture != architecture:
                raise ModelFileError(
                    "an adapter for models of another architecture",
                    where=str(adapter.path),
                    wanted=architecture,
                    got=adapter.architecture,
                    fix="give the adapter of this model",
                )
            for name, matrix in adapter.matrices.items():
                a, b = matrix.factors()
                tensor = tensors.get(name)
                if len(b) == 1 and tensor is not None and tensor.shape[-2:] == (a.shape[-1], 1):
                    a, b = b.T, a.T  # a vector, which the file holds as a column
                shape = (*b.shape[:-1], a.shape[-1])
                self._check(adapter, name, shape, tensor)
                self._changes.setdefault(name, []).append((a, b * np.float32(scale)))

    @staticmethod
    def _check(adapter: Adapter, name: str, shape: tuple[int, ...], tensor: Tensor | None) -> None:
        where = f"{adapter.path}: {name[:80]!r}"
        if tensor is None or _without_ones(tensor.shape) != _without_ones(shape):
            raise ModelFileError(
                "an adapter of a matrix that the model does not have in this shape",
                where=where,
                wanted="none" if tensor is None else tensor.shape,
                got=shape,
                fix="give the adapter that was made for this model; of a model that shares its "
                "table of embeddings with its output an adapter of the output stays beside it "
                "(--lora)",
            )
        if not can_write(tensor.type):
            raise ModelFileError(
                "a matrix of a type that is read and not written",
                where=where,
                got=tensor.type_name,
                fix="keep the adapter beside the model (--lora), or merge it into a larger file",
            )

    def __contains__(self, name: str) -> bool:
        return name in self._changes

    def rows(self, tensor: Tensor, begin: int, end: int) -> np.ndarray:
        """Return rows of a tensor with what is added to them, float32[end - begin, width].

        They are of one matrix, where the tensor is a stack.
        """
        values = tensor.rows(begin, end).astype(np.float32)
        n_rows = _rows_of_matrix(tensor)
        first = begin // n_rows * n_rows
        for a, b in self._changes.get(tensor.name, ()):
            if a.ndim > 2:
                a, b = a[begin // n_rows], b[begin // n_rows]
            add_product(values, a, b[begin - first : end - first])
        return values

    def merge(self, tensor: Tensor) -> Tensor:
        """Return a tensor with what is added to it, in its type, in memory."""
        n_rows = _rows_of_matrix(tensor)
        step = max(1, _PIECE // tensor.shape[-1])
        blocks = [
            encode(tensor.name, self.rows(tensor, begin, end), tensor.type)[0].view(np.uint8)
            for begin, end in pieces_of(tensor.n_rows, n_rows, step)
        ]
        whole = np.concatenate([piece.reshape(-1, tensor.row_bytes) for piece in blocks])
        tensor.release()
        return HeldTensor.of_blocks(whole, tensor)

    def names(self) -> Sequence[str]:
        """Return the names of what is changed."""
        return [*self._changes]


def add_product(values: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Add b a to float32 values [rows, width], of a [rank, width] and b [rows, rank].

    Sums are in the order of the rank, so that they are the same on every machine.
    """
    for low, high in zip(a, b.T, strict=True):
        values += np.multiply.outer(high, low)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as ggml has it: without leading axes of 1, but for the last."""
    return _without_ones(shape[1:]) if len(shape) > 1 and shape[0] == 1 else shape


def _rows_of_matrix(tensor: Tensor) -> int:
    return tensor.shape[-2] if len(tensor.shape) > 1 else 1


def pieces_of(n_rows: int, n_of_matrix: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of pieces of at most ``step`` rows that reach over no matrix."""
    for first in range(0, n_rows, n_of_matrix):
        for begin in range(first, first + n_of_matrix, step):
            yield begin, min(begin + step, first + n_of_matrix)


def read_merged(given: Iterable[tuple[Adapter, float]]) -> list[tuple[Adapter, float]]:
    """Return adapters and scales that a caller gave to be merged.

    Raises
    ------
    ModelFileError
        They are no pairs of an adapter and a finite number.
    """
    cause: Exception | None = None
    pairs: list[tuple[Adapter, float]] = []
    try:
        pairs = [(adapter, scale) for adapter, scale in given]
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's own raises
        cause = error
    fit = [isinstance(adapter, Adapter) and is_scale(scale) for adapter, scale in pairs]
    if cause is not None or not all(fit):
        raise ModelFileError(
            "adapters to merge come with their scales",
            wanted="pairs of what load_adapter() returned and a finite number",
            got=spell(given),
        ) from cause
    return pairs


def merge_adapters(
    adapters: Iterable[tuple[Adapter, float]], tensors: Mapping[str, Tensor], architecture: str
) -> dict[str, Tensor]:
    """Return the tensors that adapters change, with these changes, in memory.

    Parameters
    ----------
    adapters : iterable of (Adapter, float)
        With their scales.
    tensors : mapping of str to Tensor
        The model's.
    architecture : str
        The model's.

    Raises
    ------
    ModelFileError
        As ``Merging``.
    """
    merging = Merging(adapters, tensors, architecture)
    return {name: merging.merge(tensors[name]) for name in merging.names()}
