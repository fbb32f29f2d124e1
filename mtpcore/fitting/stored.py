"""Arrays in files that are written as a whole, and read only where they are what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mtpcore.boundary.atomic import replacing
from mtpcore.errors import ModelFileError

__all__ = ["read_arrays", "read_rows", "write_arrays"]

NamedArrays = Mapping[str, NDArray[Any]]


def write_arrays(path: Path, arrays: NamedArrays) -> None:
    """Write arrays with a hash of their bytes; the folder is made where there is none.

    Raises
    ------
    ModelFileError
        They cannot be written; what was there still is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(save(dict(arrays), {"blake2b": _hash(arrays)}))
    except OSError as error:
        raise ModelFileError(
            "cannot write what a later run would reuse",
            where=str(path),
            got=error.strerror or error,
            fix="name a folder that can be written: --work FOLDER",
        ) from error


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what ``write_arrays`` wrote.

    Raises
    ------
    ModelFileError
        It cannot be read, or is something else.
    """
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            wanted = (file.metadata() or {}).get("blake2b")
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error
    if wanted != _hash(arrays):
        raise _damaged(path, "other bytes than were written")
    return arrays


def read_rows(path: Path, names: tuple[str, ...], begin: int, end: int) -> list[NDArray[Any]]:
    """Read some rows of some arrays of a file that was checked before; the others stay on disk.

    Raises
    ------
    ModelFileError
        It can no longer be read.
    """
    try:
        with safe_open(path, "numpy") as file:
            return [file.get_slice(name)[begin:end] for name in names]
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _hash(arrays: NamedArrays) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def _damaged(path: Path, got: object) -> ModelFileError:
    return ModelFileError(
        "a file that an earlier run left for this one is damaged",
        where=str(path),
        got=got,
        fix="delete the file: what it held is made again",
    )
