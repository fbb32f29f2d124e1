"""A folder as models are published: configuration and tensors, read as they are needed."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from mtpcore.conversion.float8 import e4m3_values
from mtpcore.errors import ModelFileError

__all__ = ["PublishedTensor", "read_json", "read_tensors"]

log = logging.getLogger("mtpcore")

_INDEX = "model.safetensors.index.json"
_PLAIN = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
}
_WIDTHS = {kind: np.dtype(code).itemsize for kind, code in _PLAIN.items()} | {
    "BF16": 2,
    "F8_E4M3": 1,
}


class PublishedTensor(msgspec.Struct, frozen=True):
    """One tensor of a checkpoint.

    Attributes
    ----------
    name : str
    file : Path
    kind : str
        As safetensors spells types: ``F32``, ``BF16``, ``F8_E4M3``, ``I64``, ...
    shape : tuple of int
    begin : int
        Where its bytes begin in the file.
    """

    name: str
    file: Path
    kind: str
    shape: tuple[int, ...]
    begin: int

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers (or truth values)."""
        return self.kind in ("I64", "I32", "I16", "I8", "U8", "BOOL")

    @property
    def n_rows(self) -> int:
        """Number of rows: the outermost axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * _WIDTHS[self.kind]

    def rows(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return rows of the outermost axis: float32, or integers as they are stored."""
        end = self.n_rows if end is None else end
        width = math.prod(self.shape[1:])
        item = _WIDTHS[self.kind]
        # Read, not mapped: pages of a map would count as this process's memory.
        with open(self.file, "rb") as file:
            file.seek(self.begin + begin * width * item)
            data = file.read((end - begin) * width * item)
        shape = (end - begin, *self.shape[1:]) if self.shape else ()
        if self.kind == "BF16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32)
            return (bits << 16).view(np.float32).reshape(shape)
        if self.kind == "F8_E4M3":
            return e4m3_values(np.frombuffer(data, np.uint8)).reshape(shape)
        values = np.frombuffer(data, _PLAIN[self.kind]).reshape(shape)
        if self.is_integer:
            return values
        with np.errstate(over="ignore"):
            return values.astype(np.float32)

    def equals(self, other: PublishedTensor) -> bool:
        """Say whether both hold the same bytes, reading a little at a time."""
        if (self.kind, self.shape) != (other.kind, other.shape):
            return False
        with open(self.file, "rb") as mine, open(other.file, "rb") as theirs:
            mine.seek(self.begin)
            theirs.seek(other.begin)
            left = self.n_bytes
            while left:
                step = min(left, 1 << 20)
                if mine.read(step) != theirs.read(step):
                    return False
                left -= step
        return True


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises
    ------
    ModelFileError
        It cannot be read, or is no object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(
            "cannot read the file",
            where=str(path),
            got=reason,
            fix="give the folder that holds it, as the model was published",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            "not JSON", where=str(path), got=str(error)[:80], fix="fetch the file again"
        ) from error
    if not isinstance(found, dict):
        raise ModelFileError("not an object", where=str(path), got=type(found).__name__)
    return found


def read_tensors(folder: str | PathLike[str]) -> dict[str, PublishedTensor]:
    """Return the tensors of a checkpoint by name, without reading them.

    Where there is an index (``model.safetensors.index.json``), the files that it names are read,
    else all ``.safetensors`` files of the folder.

    Raises
    ------
    ModelFileError
        No such file, one that is malformed or missing, a tensor in two files, a type that cannot
        be read.
    """
    folder = Path(folder)
    tensors: dict[str, PublishedTensor] = {}
    for path in _files(folder):
        for tensor in _read_file(path):
            if tensor.name in tensors:
                raise ModelFileError(
                    f"the tensor is also in {tensors[tensor.name].file.name}",
                    where=f"{path}: tensor {tensor.name!r}",
                )
            tensors[tensor.name] = tensor
    return tensors


def _files(folder: Path) -> list[Path]:
    there = sorted(folder.glob("*.safetensors"))
    index = folder / _INDEX
    if not index.exists():
        if not there:
            raise ModelFileError(
                "no tensors in this folder",
                where=str(folder),
                wanted="files *.safetensors",
                got=", ".join(sorted(p.name for p in folder.glob("*"))[:9]) or "nothing",
                fix="download the model's .safetensors files; others are not read",
            )
        return there
    names = read_json(index).get("weight_map")
    if not isinstance(names, Mapping) or not all(isinstance(n, str) for n in names.values()):
        raise ModelFileError("not an index of tensors", where=str(index), wanted="a weight_map")
    listed = sorted({folder / Path(name).name for name in names.values()})
    for path in listed:
        if not path.exists():
            raise ModelFileError(
                "a file of the checkpoint is missing", where=str(path), fix="download it as well"
            )
    for path in sorted(set(there) - set(listed)):
        log.warning("%s is not in the index: not read", path)
    held = {tensor.name for path in listed for tensor in _read_file(path)}
    if lacking := sorted(set(names) - held):
        raise ModelFileError(
            "tensors of the index are in no file",
            where=str(index),
            got=", ".join(lacking),
            fix="download the files again",
        )
    return listed


def _read_file(path: Path) -> Iterator[PublishedTensor]:
    """Yield the tensors of one file; ``safetensors`` checks its header."""
    try:
        with safe_open(path, "numpy") as file:
            with open(path, "rb") as raw:
                begin = 8 + int.from_bytes(raw.read(8), "little")
            for name in file.offset_keys():  # in the order of the data, which has no gaps
                view = file.get_slice(name)
                kind, shape = view.get_dtype(), tuple(view.get_shape())
                if kind not in _WIDTHS:
                    raise ModelFileError(
                        "no conversion from this type is known",
                        where=f"{path}: tensor {name!r}",
                        wanted=", ".join(_WIDTHS),
                        got=kind,
                    )
                tensor = PublishedTensor(name, path, kind, shape, begin)
                begin += tensor.n_bytes
                yield tensor
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            "not a safetensors file",
            where=str(path),
            got=error,
            fix="the file is damaged or incomplete: download it again",
        ) from error
