"""Model files: one file, a split one, and a trunk completed by its head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType

from mtpcore.acts.closing import Closing
from mtpcore.boundary.copies import Uncopied
from mtpcore.boundary.paths import take_path
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import Metadata, TensorInfo, parse_header
from mtpcore.gguf.other_kinds import refuse_other_kinds
from mtpcore.gguf.tensor import MappedFile, Tensor

__all__ = ["ModelFile", "open_model_file"]

_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_ALL_SPLITS = "put all parts into one folder and open the first"


class ModelFile(Closing, Uncopied):
    """Metadata and tensors of one model, mapped read-only; usable as a context manager.

    Attributes
    ----------
    path : Path
        The file that was opened, the first of several.
    metadata : dict
        Key to bool, int, float, str, list of str, NumPy array, or list of arrays.
    architecture : str
        ``general.architecture``; empty where a file to look at has none.
    tensors : mapping of str to Tensor
        In the order of the file.
    files : tuple of MappedFile
    parts : tuple of ModelFile
        The file and its companion, each as it is, of a model that comes in two; empty for others.
    head_only : frozenset of str
        Tensors that a head's file brought: no graph of the trunk sees them.
    """

    _instead = "open the file in each process: open_model_file(path)"

    def __init__(
        self,
        metadata: Metadata,
        tensors: Mapping[str, Tensor],
        files: tuple[MappedFile, ...],
        *,
        parts: tuple[ModelFile, ...] = (),
        head_only: frozenset[str] = frozenset(),
        to_look_at: bool = False,
    ) -> None:
        self.path, self.files, self.parts = files[0].path, files, parts
        self.head_only = head_only
        self.metadata = metadata
        self.tensors: Mapping[str, Tensor] = MappingProxyType(dict(tensors))
        architecture = metadata.get("general.architecture")
        if to_look_at and not isinstance(architecture, str):
            architecture = ""
        if not isinstance(architecture, str):
            refuse_other_kinds(metadata, str(self.path))
            raise ModelFileError(
                "the file does not name an architecture",
                where=f"{self.path}: metadata key 'general.architecture'",
                wanted="a string",
                got=architecture,
                fix="convert the model again",
            )
        self.architecture = architecture

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r}, {self.architecture}, {len(self.tensors)} tensors)"

    def change(self, tensors: Mapping[str, Tensor]) -> None:
        """Let these tensors stand in place of those of their names."""
        self.tensors = MappingProxyType({**self.tensors, **tensors})

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def close(self) -> None:
        """Give the maps up; arrays that were taken from them stay valid."""
        for file in self.files:
            file.close()


def open_model_file(path: str | PathLike[str], *, to_look_at: bool = False) -> ModelFile:
    """Map a GGUF file, with its other parts where it is split.

    Parameters
    ----------
    path : path
        The file; of a split model the first part (``name-00001-of-00003.gguf``).
    to_look_at : bool
        Whether it is enough that the file can be listed: it may name no architecture, and hold
        tensors of types that are not known.

    Raises
    ------
    ModelFileError
        If a file is missing, malformed or not part of the same model.
    """
    first, metadata, infos = _read(take_path(path), to_look_at)
    files = [first]
    tensors = {info.name: Tensor(first, info) for info in infos}
    count = _split_number(metadata, "split.count", first.path, 1)
    if count > 1:
        for no, part in enumerate(_split_paths(first.path, metadata, count)[1:], 1):
            file, part_metadata, infos = _read(part, to_look_at)
            for key, wanted in (("split.no", no), ("split.count", count)):
                got = _split_number(part_metadata, key, part)
                if got != wanted:
                    raise _split_error("wrong part of a split model", part, key, wanted, got)
            for info in infos:
                if info.name in tensors:
                    raise ModelFileError(
                        f"the tensor is also in {tensors[info.name].path.name}",
                        where=f"{part}: tensor {info.name[:80]!r}",
                        fix=_ALL_SPLITS,
                    )
                tensors[info.name] = Tensor(file, info)
            files.append(file)
        n_tensors = _split_number(metadata, "split.tensors.count", first.path, len(tensors))
        if n_tensors != len(tensors):
            key = "split.tensors.count"
            raise _split_error("tensors missing", first.path, key, n_tensors, len(tensors))
    return ModelFile(metadata, tensors, tuple(files), to_look_at=to_look_at)


def _read(path: Path, to_look_at: bool) -> tuple[MappedFile, Metadata, list[TensorInfo]]:
    file = MappedFile(path)
    assert file.data is not None
    header = parse_header(file.data, str(path), any_type=to_look_at)
    return file, header.metadata, header.tensors


def _split_paths(first: Path, metadata: Metadata, count: int) -> list[Path]:
    """Name the parts of a split model, given the first; all must exist."""
    match = _SPLIT_NAME.fullmatch(first.name)
    if match is None or int(match[3]) != count:
        wanted = f"name-00001-of-{count:05}.gguf"
        raise _split_error("name of a split model", first, "split.count", wanted, first.name)
    paths = [first.with_name(f"{match[1]}-{i:05}-of-{match[3]}.gguf") for i in range(1, count + 1)]
    no = _split_number(metadata, "split.no", first)
    if no != 0 or int(match[2]) != 1:
        raise ModelFileError(
            "not the first part of a split model",
            where=f"{first}: metadata key 'split.no'",
            wanted=0,
            got=no,
            fix=f"open {paths[0]}",
        )
    for path in paths:
        if not path.exists():
            raise ModelFileError(
                "a part of the split model is missing", where=str(path), fix=_ALL_SPLITS
            )
    return paths


def _split_number(metadata: Metadata, key: str, path: Path, default: int | None = None) -> int:
    value = metadata.get(key, default)
    if type(value) is not int or not 0 <= value <= 1 << 31:
        raise _split_error("bad number of a split model", path, key, "a count", value)
    return value


def _split_error(what: str, path: Path, key: str, wanted: object, got: object) -> ModelFileError:
    where = f"{path}: metadata key {key!r}"
    return ModelFileError(what, where=where, wanted=wanted, got=got, fix=_ALL_SPLITS)
