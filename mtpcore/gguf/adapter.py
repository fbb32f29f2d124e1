"""Adapters: files with low-rank changes of a model's matrices (LoRA).

Beside a matrix W [out, in] an adapter has A [rank, in] and B [out, rank]; the adapted product is
W x + scale * alpha / rank * B (A x). The layout is that of llama.cpp's ``convert_lora_to_gguf.py``:
tensors ``<name>.lora_a`` and ``<name>.lora_b``, and one ``adapter.lora.alpha`` for all, where 0
stands for alpha / rank = 1. A vector [n] is a matrix of one row, with A [rank, n] and B [1, rank].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.copies import Uncopied
from mtpcore.errors import ModelFileError
from mtpcore.gguf.file import ModelFile, open_model_file
from mtpcore.gguf.held_tensor import HeldTensor
from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.types import is_float

__all__ = ["Adapter", "AdapterMatrix", "is_scale", "load_adapter"]

_A, _B = ".lora_a", ".lora_b"
_READ = ("general.architecture", "general.type", "adapter.type", "adapter.lora.alpha")
_TOLD = ("general.", "adapter.lora.task_name", "adapter.lora.prompt_prefix", "split.")
"""Keys that say what an adapter is, and change no number."""
_REFUSED = {
    "adapter.alora.invocation_tokens": "an adapter that begins to act after certain tokens (aLoRA)"
}
_MOST_RANK = 1 << 14
_EMBEDDINGS = "token_embd.weight"


class AdapterMatrix(NamedTuple):
    """What an adapter adds to one matrix: ``scale`` b a.

    ``a`` [rank, in], ``b`` [out, rank], of a stack of experts [experts, rank, in] and [experts,
    out, rank]; ``scale`` is alpha / rank.
    """

    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """The rank."""
        return self.a.shape[-2]

    def factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return float32 a, and b times the scale, which is rounded to float32 first.

        Raises
        ------
        ModelFileError
            Some are not finite: 0 times them would be no number, where rows do without the adapter.
        """
        a, b = self.a.array(), self.b.array() * np.float32(self.scale)
        for tensor, values in ((self.a, a), (self.b, b)):
            if not np.isfinite(values).all():
                raise ModelFileError(
                    "values that are not finite",
                    where=f"{tensor.path}: tensor {tensor.name!r}",
                    fix="write the adapter again",
                )
        return a, b


class Adapter(Uncopied):
    """An adapter file that is open; ``load_adapter`` makes one.

    Parameters
    ----------
    file : ModelFile

    Raises
    ------
    ModelFileError
        As ``load_adapter``.

    Attributes
    ----------
    path : Path
    name : str
        Of the task, as the file has it, or else the file's without its ending.
    architecture : str
        Of the models that it is for.
    matrices : mapping of str to AdapterMatrix
        By the name of the model's tensor.
    digest : str
        A hash of all that changes numbers, in hex.
    """

    _instead = "load it in each process: load_adapter(path)"

    def __init__(self, file: ModelFile) -> None:
        self.path, self.architecture = file.path, file.architecture
        self._file = file
        task = file.metadata.get("adapter.lora.task_name") or file.metadata.get("general.name")
        self.name = task if isinstance(task, str) and task else file.path.stem
        self.matrices: Mapping[str, AdapterMatrix] = MappingProxyType(_read_matrices(file))

    def __repr__(self) -> str:
        return f"Adapter({str(self.path)!r}, {self.architecture}, {len(self.matrices)} matrices)"

    @property
    def digest(self) -> str:
        """A hash of all that changes numbers, in hex."""
        hashed = hashlib.blake2b(self.architecture.encode(), digest_size=16)
        for name, matrix in sorted(self.matrices.items()):
            hashed.update(f"{name!r} {matrix.scale!r} ".encode())
            for tensor in (matrix.a, matrix.b):
                hashed.update(f"{tensor.shape} {tensor.type} ".encode() + tensor.raw().tobytes())
        return hashed.hexdigest()

    def close(self) -> None:
        """Close the file; contexts that were made with the adapter go on."""
        self._file.close()


def load_adapter(path: str | PathLike[str]) -> Adapter:
    """Open an adapter's GGUF file.

    Parameters
    ----------
    path : path

    Raises
    ------
    ModelFileError
        The file cannot be opened, is no adapter, one of a kind that is not supported, or damaged;
        the message says which tensor or key.
    """
    file = open_model_file(path)
    try:
        return Adapter(file)
    except BaseException:
        file.close()
        raise


def is_scale(value: object) -> bool:
    """Say whether a value is a number that float32 holds: a factor of what an adapter adds."""
    is_number = isinstance(value, int | float | np.floating | np.integer)
    if not is_number or isinstance(value, bool):
        return False
    return bool(abs(value) <= float(np.finfo(np.float32).max))  # type: ignore[arg-type]


def _read_matrices(file: ModelFile) -> dict[str, AdapterMatrix]:
    alpha = _read_alpha(file)
    found: dict[str, AdapterMatrix] = {}
    for name, tensor in file.tensors.items():
        stem, ending = name[: -len(_A)], name[-len(_A) :]
        if ending not in (_A, _B) or not stem:
            raise ModelFileError(
                "a tensor that is no half of a pair",
                where=f"{file.path}: tensor {name[:80]!r}",
                wanted=f"names that end in {_A} or {_B}",
                fix="write the adapter again: mtpcore convert ADAPTER_DIR --base HF_DIR",
            )
        other = file.tensors.get(stem + (_B if ending == _A else _A))
        if other is None:
            raise ModelFileError(
                "half of a pair is missing",
                where=f"{file.path}: tensor {name[:80]!r}",
                wanted=stem + (_B if ending == _A else _A),
                fix="write the adapter again",
            )
        if ending == _A:
            found[stem] = _pair(file, stem, tensor, other, alpha)
    if not found:
        raise ModelFileError("an adapter without tensors", where=str(file.path))
    return found


def _pair(file: ModelFile, stem: str, a: Tensor, b: Tensor, alpha: float) -> AdapterMatrix:
    where = f"{file.path}: tensor {stem[:80]!r}"
    # ggml leaves leading axes of 1 out: a rank of 1, or one output.
    n_axes = max(len(a.shape), len(b.shape), 2)
    shapes = [(1,) * (n_axes - len(t.shape)) + t.shape for t in (a, b)]
    if stem == _EMBEDDINGS and len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[1]:
        # A row of the table is a token's: the file has both halves the other way round.
        rank = a.shape[1]
        a, b = HeldTensor(b.name, b.array().T, b), a
        return AdapterMatrix(a, b, alpha / rank if alpha else 1.0)
    fits = n_axes in (2, 3) and shapes[0][-2] == shapes[1][-1] and shapes[0][:-2] == shapes[1][:-2]
    if not fits or not 0 < shapes[0][-2] <= _MOST_RANK:
        raise ModelFileError(
            "halves of a pair do not fit each other",
            where=where,
            wanted=f"[rank, in] and [out, rank], rank 1..{_MOST_RANK}",
            got=f"{a.shape} and {b.shape}",
            fix="write the adapter again",
        )
    for tensor in (a, b):
        if not is_float(tensor.type):
            raise ModelFileError(
                "halves of a pair that are no floating-point tensors",
                where=where,
                got=tensor.type_name,
            )
    return AdapterMatrix(
        _shaped(a, shapes[0]), _shaped(b, shapes[1]), alpha / shapes[0][-2] if alpha else 1.0
    )


def _shaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.shape == shape:
        return tensor
    other = tensor.called(tensor.name)
    other.shape = shape
    return other


def _read_alpha(file: ModelFile) -> float:
    metadata, where = file.metadata, str(file.path)
    kind = metadata.get("general.type")
    if kind != "adapter":
        raise ModelFileError(
            "the file is no adapter",
            where=f"{where}: general.type",
            wanted="adapter",
            got=kind or "none, as models have it",
            fix="give a model as MODEL, and adapters as --lora",
        )
    if (form := metadata.get("adapter.type")) != "lora":
        raise ModelFileError(
            "an adapter of an unknown kind",
            where=f"{where}: adapter.type",
            wanted="lora",
            got=form,
        )
    for key in _unread(metadata):
        raise ModelFileError(
            _REFUSED.get(key, "a key of adapters that is not known"),
            where=f"{where}: {key}",
            fix="merge it into the model with the tool that made it",
        )
    alpha = metadata.get("adapter.lora.alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 <= alpha < math.inf:
        raise ModelFileError(
            "no factor of the adapter",
            where=f"{where}: adapter.lora.alpha",
            wanted="a number, 0 or more",
            got=alpha,
            fix="write the adapter again",
        )
    return float(alpha)


def _unread(metadata: Mapping[str, object]) -> Iterator[str]:
    return (key for key in metadata if key not in _READ and not key.startswith(_TOLD))
