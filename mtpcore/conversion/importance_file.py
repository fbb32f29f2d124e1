"""Files of importance matrices, in both forms: sums of squares, and how many rows they are of.

For every matrix the squares of what its columns were multiplied with were added up over a text, of
stacks for each matrix of the stack. Sources: llama.cpp's ``tools/imatrix`` and
``common/imatrix-loader`` (October 2026); files are GGUF, or of the form before that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.atomic import replacing
from mtpcore.errors import ModelFileError
from mtpcore.gguf import (
    ModelFile,
    StreamedFile,
    StreamedTensor,
    open_model_file,
    stream_model_files,
)
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.types import F32

__all__ = ["FileForm", "ImportanceSums", "mean_squares", "read_sums", "write_sums"]

FileForm = Literal["gguf", "dat"]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME, _MAX_ENTRIES = 512, 1 << 16
_FIX = "give a file of mtpcore imatrix, or of llama.cpp's imatrix program"


class ImportanceSums(msgspec.Struct, frozen=True):
    """What a file says of the columns of matrices.

    Attributes
    ----------
    sums : dict of str to float32 [n_matrices, n_columns]
        By names of tensors, the sums of squares of what each column was multiplied with. In a file
        of the old form, which does not say how many matrices there are, one row.
    counts : dict of str to int64 [n_matrices]
        Of how many rows they are; in a file of the old form of how many chunks.
    datasets : tuple of str
        What the text was.
    n_chunks, chunk_size : int
        How many chunks of a text were read, and of how many tokens; 0 where that is not said.
    form : {"gguf", "dat"}
        ``dat`` is the form before GGUF.
    said : mapping
        Further metadata.
    """

    sums: dict[str, NDArray[np.float32]]
    counts: dict[str, NDArray[np.int64]]
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_size: int = 0
    form: FileForm = "gguf"
    said: Mapping[str, MetadataValue | np.generic] = {}


def read_sums(path: Path) -> ImportanceSums:
    """Read a file.

    Raises
    ------
    ModelFileError
        It cannot be read, is no importance matrix, or a sum is not finite or below 0.
    """
    try:
        with open(path, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        found = _read_gguf(path) if is_gguf else _read_old(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelFileError(
            "cannot open the importance matrix", where=str(path), got=error.strerror, fix=_FIX
        ) from error
    for name, sums in found.sums.items():
        if not (np.isfinite(sums).all() and (sums >= 0).all()):
            raise ModelFileError(
                "weights that are not finite, or below 0",
                where=f"{path}: {name!r}",
                fix="make the importance matrix again",
            )
    if not found.sums:
        raise ModelFileError("no weights", where=str(path), fix=_FIX)
    return found


def _read_gguf(path: Path) -> ImportanceSums:
    with open_model_file(path, to_look_at=True) as file:
        said = dict(file.metadata)
        if said.get("general.type") != "imatrix":
            raise ModelFileError(
                "not an importance matrix",
                where=f"{path}: metadata key 'general.type'",
                wanted="imatrix",
                got=said.get("general.type", "nothing"),
                fix=_FIX,
            )
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        pairs = {name: _pair(file, name, path) for name in names}
    datasets = said.get("imatrix.datasets", [])
    return ImportanceSums(
        {name: sums for name, (sums, _) in pairs.items()},
        {name: counts for name, (_, counts) in pairs.items()},
        tuple(str(name) for name in datasets) if isinstance(datasets, list) else (),
        _whole(said.get("imatrix.chunk_count")),
        _whole(said.get("imatrix.chunk_size")),
        said=said,
    )


def _whole(value: MetadataValue | None) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _pair(file: ModelFile, name: str, path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
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
    if not (np.abs(counts) < 1 << 62).all():  # NaN is not either
        raise ModelFileError("counts that are none", where=f"{path}: {name + _COUNTS!r}", fix=_FIX)
    return np.array(sums, np.float32), counts.astype(np.int64)


def _read_old(data: bytes, where: str) -> ImportanceSums:
    """Read the form before GGUF: for each matrix its name, a number of chunks, and sums."""
    at = 0
    damaged = ModelFileError("not an importance matrix, or a damaged one", where=where, fix=_FIX)

    def take(form: str) -> int:
        nonlocal at
        if at + struct.calcsize(form) > len(data):
            raise damaged
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(value)

    def take_bytes(n_bytes: int, most: int) -> bytes:
        nonlocal at
        if not 0 <= n_bytes <= min(most, len(data) - at):
            raise damaged
        at += n_bytes
        return data[at - n_bytes : at]

    sums, counts = {}, {}
    n_entries = take("<i")
    if not 0 < n_entries <= _MAX_ENTRIES:
        raise ModelFileError("not an importance matrix", where=where, got=data[:4], fix=_FIX)
    for _ in range(n_entries):
        name = take_bytes(take("<i"), _MAX_NAME).decode(errors="replace")
        n_calls, n_values = take("<i"), take("<i")
        values = np.frombuffer(take_bytes(4 * n_values, len(data)), "<f4")
        sums[name] = values.astype(np.float32)[None]
        counts[name] = np.array([max(n_calls, 0)])
    n_chunks, datasets = 0, []
    if at < len(data):
        n_chunks = take("<i")
        datasets = [take_bytes(take("<i"), _MAX_NAME).decode(errors="replace")]
    return ImportanceSums(sums, counts, tuple(datasets), n_chunks, form="dat")


def write_sums(path: Path, found: ImportanceSums) -> None:
    """Write a file in its form, as a whole or not at all.

    Raises
    ------
    ModelFileError
        It cannot be written.
    """
    if found.form == "gguf":
        _write_gguf(path, found)
        return
    try:
        with replacing(path) as part:
            part.write_bytes(b"".join(_old_form(found)))
    except OSError as error:
        raise ModelFileError(
            "cannot write the importance matrix",
            where=str(path),
            got=error.strerror,
            fix="give a path in a folder that exists, can be written, and has room",
        ) from error


def _write_gguf(path: Path, found: ImportanceSums) -> None:
    said: dict[str, MetadataValue | np.generic] = {
        "general.type": "imatrix",
        "imatrix.datasets": list(found.datasets),
        "imatrix.chunk_count": np.uint32(found.n_chunks),
        "imatrix.chunk_size": np.uint32(found.chunk_size),
    }
    tensors = []
    for name in sorted(found.sums):
        counts = found.counts[name].astype(np.float32)[:, None]
        for suffix, values in ((_SUMS, found.sums[name]), (_COUNTS, counts)):
            tensors.append(StreamedTensor(name + suffix, values.shape, F32, partial(_once, values)))
    metadata = said | {key: value for key, value in found.said.items() if key not in said}
    stream_model_files([StreamedFile(path, "", metadata, tensors)])  # type: ignore[arg-type]


def _once(values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [values]


def _old_form(found: ImportanceSums) -> Iterator[bytes]:
    """Yield the bytes of the form before GGUF, which has no counts by matrix.

    Sums are those of so many rows as there are chunks; of a matrix that saw none they are those of
    ones. Without any rows there is no entry.
    """
    seen = [name for name in sorted(found.sums) if found.counts[name].any()]
    yield struct.pack("<i", len(seen))
    for name in seen:
        counts, spelled = found.counts[name], name.encode()
        n_calls = -(-int(counts.max()) // max(found.chunk_size, 1))
        values = mean_squares(found, name) * np.float32(n_calls)
        yield struct.pack("<i", len(spelled)) + spelled
        yield struct.pack("<ii", n_calls, values.size) + values.astype("<f4").tobytes()
    spelled = found.datasets[-1].encode() if found.datasets else b""
    yield struct.pack("<ii", found.n_chunks, len(spelled)) + spelled


def mean_squares(found: ImportanceSums, name: str) -> NDArray[np.float32]:
    """Return the mean square of each column, float32 [n_matrices, n_columns].

    Of a matrix that saw no rows it is 1.
    """
    sums, counts = found.sums[name], found.counts[name]
    means = np.ones_like(sums)
    np.divide(sums, counts[:, None].astype(np.float32), out=means, where=counts[:, None] > 0)
    return means
