"""Model files split into parts, and parts joined, as llama.cpp's ``gguf-split`` does, by bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np
from gguf import GGUFValueType

from mtpcore.boundary.paths import take_path
from mtpcore.errors import ModelFileError
from mtpcore.gguf.file import open_model_file
from mtpcore.gguf.header import MetadataValue, StoredValue, stored_metadata
from mtpcore.gguf.stream import StreamedFile, StreamedTensor, stream_model_files
from mtpcore.gguf.tensor import MappedFile, Tensor
from mtpcore.gguf.types import BLOCKS

__all__ = [
    "SplitPart",
    "join_parts",
    "part_keys",
    "part_path",
    "plan_parts",
    "split_file",
    "split_prefix",
]

_PAD = 32
"""Bytes: tensors begin at multiples of it, whatever ``general.alignment`` said of the source."""
_PIECE = 16 << 20
"""Bytes copied at once."""
_MOST = (1 << 16) - 1


class SplitPart(msgspec.Struct, frozen=True):
    """A part of a split model.

    Attributes
    ----------
    path : Path
    tensors : tuple of str
    n_bytes : int
        Of the tensors.
    """

    path: Path
    tensors: tuple[str, ...]
    n_bytes: int


def split_prefix(path: Path) -> Path:
    """Return what the parts of a split model are called before their numbers."""
    return path.with_suffix("") if path.suffix == ".gguf" else path


def part_path(prefix: Path, number: int, count: int) -> Path:
    """Return what a part is called, counted from 0.

    Raises
    ------
    ModelFileError
        A folder, which has no name of its own.
    """
    if not prefix.name:
        raise ModelFileError(
            "parts have no name", where=str(prefix), fix="give the name of a file to write"
        )
    return prefix.with_name(f"{prefix.name}-{number + 1:05}-of-{count:05}.gguf")


def part_keys(number: int, count: int, n_tensors: int) -> dict[str, MetadataValue | StoredValue]:
    """Return what a part says of itself, in the types that llama.cpp has for it."""
    return {
        "split.no": StoredValue(struct.pack("<IH", GGUFValueType.UINT16, number)),
        "split.count": StoredValue(struct.pack("<IH", GGUFValueType.UINT16, count)),
        "split.tensors.count": StoredValue(struct.pack("<Ii", GGUFValueType.INT32, n_tensors)),
    }


def plan_parts(
    sizes: Sequence[int],
    *,
    max_tensors: int | None = None,
    max_bytes: int | None = None,
    empty_first: bool = False,
) -> list[range]:
    """Return which tensors go into which part.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each tensor, in the order of the file.
    max_tensors : int, optional
        Tensors of a part; default: 128, where no size is given.
    max_bytes : int, optional
        Bytes of a part's tensors; a tensor that is larger has a part of its own.
    empty_first : bool
        Whether the first part has the metadata alone.

    Raises
    ------
    ModelFileError
        Both limits are given, one is not above 0, or the first tensor is larger than a part.
    """
    if max_tensors is not None and max_bytes is not None:
        raise ModelFileError(
            "two limits of a part", got=f"{max_tensors} tensors, {max_bytes} bytes", fix="give one"
        )
    if max_tensors is None and max_bytes is None:
        max_tensors = 128
    if (max_tensors or max_bytes or 0) < 1:
        raise ModelFileError("a part holds at least one tensor", got=max_tensors or max_bytes)
    bounds, held = [0, 0] if empty_first else [0], 0
    for i, size in enumerate(sizes):
        padded = -(-size // _PAD) * _PAD
        held += padded
        is_over = held > max_bytes if max_bytes is not None else i and i % (max_tensors or 1) == 0
        if is_over:
            if i == 0:
                raise ModelFileError(
                    "the first tensor is larger than a part",
                    wanted=f"at most {max_bytes} bytes",
                    got=f"{padded} bytes",
                    fix="make parts larger",
                )
            bounds.append(i)
            held = padded
    if len(bounds) > _MOST:
        raise ModelFileError(
            "too many parts", wanted=f"at most {_MOST}", got=len(bounds), fix="make parts larger"
        )
    return [range(*pair) for pair in zip(bounds, [*bounds[1:], len(sizes)], strict=True)]


def split_file(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    max_tensors: int | None = None,
    max_bytes: int | None = None,
    empty_first: bool = False,
    dry_run: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> list[SplitPart]:
    """Write the parts of a model file: ``name-00001-of-00003.gguf`` and so on.

    Parameters
    ----------
    source : path
        A GGUF file that is not split.
    path : path
        What the parts are called before their numbers; ``.gguf`` at its end is left out. Parts are
        replaced where they exist.
    max_tensors, max_bytes, empty_first
        As in ``plan_parts``.
    dry_run : bool
        Whether to plan only.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while data is written.

    Raises
    ------
    ModelFileError
        As ``open_model_file`` and ``plan_parts``; the source is split already; a part cannot be
        written. No part is left behind.
    """
    source, prefix = take_path(source), split_prefix(take_path(path))
    with open_model_file(source, to_look_at=True) as file:
        if len(file.files) > 1:
            raise ModelFileError(
                "the model is split already", where=str(source), fix="join its parts first"
            )
        tensors = [_as_it_is(tensor) for tensor in file.tensors.values()]
        planned = plan_parts(
            [one.n_bytes for one in tensors],
            max_tensors=max_tensors,
            max_bytes=max_bytes,
            empty_first=empty_first,
        )
        count = len(planned)
        metadata = _stored(source)
        files = []
        for number, places in enumerate(planned):
            said = part_keys(number, count, len(tensors))
            said["split.count"] = said.pop("split.count")  # as gguf-split does, which sets it last
            kept = {key: value for key, value in metadata.items() if key not in said}
            whole = {**(kept if number == 0 else {}), **said}
            own = [tensors[i] for i in places]
            files.append(StreamedFile(part_path(prefix, number, count), "", whole, own))
        if not dry_run:
            _write(files, report)
    return [
        SplitPart(one.path, tuple(t.name for t in one.tensors), sum(t.n_bytes for t in one.tensors))
        for one in files
    ]


def join_parts(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    report: Callable[[int, int], None] | None = None,
) -> None:
    """Write the parts of a split model as one file.

    The parts' count is 0 in it, as ``gguf-split`` writes it.

    Parameters
    ----------
    source : path
        The first part.
    path : path
        The file to write; replaced where it exists.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while data is written.

    Raises
    ------
    ModelFileError
        As ``open_model_file``; the model is not split; the file cannot be written. No file is left
        behind.
    """
    source, path = take_path(source), take_path(path)
    with open_model_file(source, to_look_at=True) as file:
        if "split.count" not in file.metadata:
            raise ModelFileError(
                "the model is not split",
                where=str(source),
                wanted="metadata key 'split.count'",
                fix="give the first part of a split model",
            )
        if path.exists() and any(path.samefile(one.path) for one in file.files):
            raise ModelFileError(
                "the file to write is one of those to read", where=str(path), fix="give another"
            )
        metadata = _stored(source)
        metadata.pop("split.count")
        said = metadata | {"split.count": part_keys(0, 0, 0)["split.count"]}
        tensors = [_as_it_is(tensor) for tensor in file.tensors.values()]
        _write([StreamedFile(path, "", said, tensors)], report)


def _stored(path: Path) -> dict[str, MetadataValue | StoredValue]:
    """Return a file's metadata as it is stored, without an alignment: the new file has ours."""
    mapped = MappedFile(path)
    try:
        stored = stored_metadata(mapped.data or b"", str(path))
    finally:
        mapped.close()
    return {key: value for key, value in stored.items() if key != "general.alignment"}


def _as_it_is(tensor: Tensor) -> StreamedTensor:
    if tensor.type not in BLOCKS:
        raise ModelFileError(
            "a tensor of a type that is not known: its bytes cannot be copied",
            where=f"{tensor.path}: tensor {tensor.name!r}",
            got=tensor.type_name,
        )

    def pieces() -> Iterator[np.ndarray]:
        flat = tensor.raw().reshape(-1)
        for begin in range(0, flat.size, _PIECE):
            yield flat[begin : begin + _PIECE]
        tensor.release()

    return StreamedTensor(tensor.name, tensor.shape, tensor.type, pieces)


def _write(files: Sequence[StreamedFile], report: Callable[[int, int], None] | None) -> None:
    total, done = sum(tensor.n_bytes for file in files for tensor in file.tensors), 0

    def written(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if report is not None:
            report(done, total)

    stream_model_files(files, written=written)
