"""A published checkpoint: a folder with configuration and tensors, read as they are needed."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from mtpcore.boundary.paths import choose_fix, open_regular, read_regular
from mtpcore.conversion.float8 import e4m3_values
from mtpcore.errors import ModelFileError

__all__ = [
    "NO_FILE_HOLDS_IT",
    "PublishedTensor",
    "check_folder",
    "check_small_files",
    "convert_json",
    "read_json",
    "read_tensors",
    "tokenizer_error",
]

log = logging.getLogger("mtpcore")

T = TypeVar("T")

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_LONGEST = 64 << 20  # bytes of a JSON file; the largest published tokenizers need about 35 MB
_LONGEST_TEXT = 4 << 20  # bytes of a model card, a template, merges
_SMALL_FILES = (
    "README.md",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "merges.txt",
)
NO_FILE_HOLDS_IT = "take a model with another tokenizer: a model file cannot hold this one"
"""What to do where a tokenizer is sound."""
_FIX = "give the folder that holds it, as the model was published"
_PUBLISHED = re.compile(r"(?:https:/{1,2}huggingface\.co/)?([\w-][\w.-]*/[\w-][\w.-]*?)/?")
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
        data = self._read(begin * width * item, (end - begin) * width * item)
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
        steps = range(0, self.n_bytes, 1 << 20)
        return all(self._read(at, 1 << 20) == other._read(at, 1 << 20) for at in steps)

    def _read(self, begin: int, n_bytes: int) -> bytes:
        """Return bytes of the tensor, as many as there are up to its end."""
        n_bytes = min(n_bytes, self.n_bytes - begin)
        with open_regular(self.file, fix=_FIX) as file:
            file.seek(self.begin + begin)
            data = file.read(n_bytes)
        if len(data) < n_bytes:
            raise ModelFileError(
                "the file has become shorter",
                where=f"{self.file}: tensor {self.name!r}",
                fix="leave the checkpoint alone while it is read, and convert it again",
            )
        return data


def check_folder(folder: Path) -> None:
    """Raise where what was given is no folder, and say what it is instead.

    Raises
    ------
    ModelFileError
        A file, or a name of a published model that is not downloaded.
    """
    if folder.is_dir():
        return
    name = str(folder)
    what, fix = "no such folder", "give the folder of a published model: config.json, tensors"
    if folder.is_file():
        what, fix = (
            "a file, not the folder of a published model",
            f"give its folder: {folder.parent}",
        )
        with open_regular(folder, fix=fix) as file:
            is_model = file.read(4) == b"GGUF"
        if is_model:
            what = "a model file already"
            fix = f"run it: mtpcore run {name}; for smaller types: mtpcore quantize {name}"
    elif published := _PUBLISHED.fullmatch(name):
        owned = published[1]
        what = "no such folder; it is the name of a published model"
        here = owned.partition("/")[2]
        fix = f"hf download {owned} --local-dir {here}, then mtpcore convert {here}"
    raise ModelFileError(what, where=name, wanted="a folder", fix=fix)


def read_json(path: Path, type: type[T] = dict[str, Any]) -> T:  # type: ignore[assignment]
    """Return what a JSON file holds, an object or a struct.

    Raises
    ------
    ModelFileError
        It cannot be read, is too long, or holds something else.
    """
    parsed = _parse(read_regular(path, _LONGEST, fix=_FIX), path)
    if not isinstance(parsed, dict):
        raise ModelFileError(
            "not an object",
            where=str(path),
            wanted="{...}",
            got=parsed.__class__.__name__,
            fix="fetch the file again",
        )
    return convert_json(parsed, type, str(path))


def _parse(data: bytes, path: Path) -> object:
    """Return what a JSON file's bytes say."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            "not JSON",
            where=str(path),
            got=str(error)[:80],
            fix=choose_fix(data, "fetch the file again"),
        ) from error


def convert_json(value: object, type: type[T], where: str) -> T:
    """Return a value that came from JSON as the type that it must have.

    Raises
    ------
    ModelFileError
        It is of another, or a number is out of range.
    """
    try:
        return msgspec.convert(value, type)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:  # or broken text
        raise ModelFileError(
            f"malformed: {str(error)[:200]}",
            where=where,
            fix="fetch the file again, as it was published",
        ) from error


def check_small_files(folder: Path) -> None:
    """Raise where a file that the ``gguf`` package will read has no end, is none, or not JSON.

    Raises
    ------
    ModelFileError
        Naming the file.
    """
    for pattern in _SMALL_FILES:
        for path in folder.glob(pattern):
            fix = "correct the file, or remove it: it is optional"
            data = read_regular(path, _LONGEST_TEXT, fix=fix)
            if path.suffix == ".json":
                _parse(data, path)


def tokenizer_error(
    path: Path,
    what: str,
    wanted: object,
    got: object,
    fix: str = "take the tokenizer's files from the published model",
) -> ModelFileError:
    """Make an error that says why a tokenizer cannot be converted."""
    what = f"the tokenizer cannot be converted: {what}"
    return ModelFileError(what, where=str(path), wanted=wanted, got=got, fix=fix)


def read_tensors(folder: str | PathLike[str], named: object = None) -> dict[str, PublishedTensor]:
    """Return the tensors of a checkpoint by name, without reading them.

    Where there is an index (``model.safetensors.index.json``), the files that it names are read,
    else ``model.safetensors``, else all ``.safetensors`` files of the folder. ``named`` is what the
    configuration calls the index or the file (``transformers_weights``); it goes before, if it is
    there: a folder may hold a model in two layouts.

    Raises
    ------
    ModelFileError
        No such file, one that is malformed or missing, a tensor in two files, a type that cannot
        be read.
    """
    folder = Path(folder)
    tensors: dict[str, PublishedTensor] = {}
    for path in _files(folder, named):
        for tensor in _read_file(path):
            if tensor.name in tensors:
                raise ModelFileError(
                    f"the tensor is also in {tensors[tensor.name].file.name}",
                    where=f"{path}: tensor {tensor.name!r}",
                    fix="remove the file that is not the published model's",
                )
            tensors[tensor.name] = tensor
    return tensors


def _files(folder: Path, named: object) -> list[Path]:
    there = sorted(folder.glob("*.safetensors"))
    own = named if isinstance(named, str) and _is_inside(named) else ""
    if folder / own in there:
        return [folder / own]
    is_index = own.endswith(".json") and os.path.lexists(folder / own)
    index = folder / (own if is_index else _INDEX)
    if not os.path.lexists(index):
        if folder / _WHOLE in there:
            _say_not_read({*there} - {folder / _WHOLE}, f"is beside the whole model, {_WHOLE}")
            return [folder / _WHOLE]
        if not there:
            raise ModelFileError(
                "no tensors in this folder",
                where=str(folder),
                wanted="files *.safetensors",
                got=", ".join(sorted(p.name for p in folder.glob("*"))[:9]) or "nothing",
                fix="download the model's .safetensors files; others are not read",
            )
        return there
    names = read_json(index, _Index).weight_map
    for name in sorted({*names.values()}):
        if not _is_inside(name):
            raise ModelFileError(
                "the index names a file outside its folder",
                where=str(index),
                wanted="names without a path",
                got=repr(name)[:80],
                fix="fetch the file again, as it was published",
            )
    listed = sorted({folder / name for name in names.values()})
    for path in listed:
        if not os.path.lexists(path):
            raise ModelFileError(
                "a file of the checkpoint is missing", where=str(path), fix="download it as well"
            )
    _say_not_read({*there} - {*listed}, "is not in the index")
    held = {tensor.name for path in listed for tensor in _read_file(path)}
    if lacking := sorted(set(names) - held):
        raise ModelFileError(
            "tensors of the index are in no file",
            where=str(index),
            got=", ".join(lacking),
            fix="download the files again",
        )
    return listed


def _say_not_read(paths: Iterable[Path], why: str) -> None:
    for path in sorted(paths):
        log.warning("%s %s: not read", path, why)


def _is_inside(name: str) -> bool:
    """Say whether a name is that of a file in the folder."""
    return name not in ("", ".", "..") and "\0" not in name and "/" not in name


class _Index(msgspec.Struct):
    """Which file holds which tensor."""

    weight_map: dict[str, str]


def _read_file(path: Path) -> Iterator[PublishedTensor]:
    """Yield the tensors of one file; ``safetensors`` checks its header."""
    fix = "the file is damaged or incomplete: download it again"
    try:
        with open_regular(path, fix="download the file again") as raw:
            fix = choose_fix(raw.read(32), fix)
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
                        fix="take a checkpoint whose tensors are of these types",
                    )
                tensor = PublishedTensor(name, path, kind, shape, begin)
                begin += tensor.n_bytes
                yield tensor
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            "not a safetensors file",
            where=str(path),
            got=error,
            fix=fix,
        ) from error
