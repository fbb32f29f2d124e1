"""Writing model files tensor by tensor, for files larger than memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import take_path
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import Value
from mtpcore.gguf.types import BLOCKS
from mtpcore.gguf.writer import add_value

__all__ = ["StreamedTensor", "stream_model_file"]


class StreamedTensor(msgspec.Struct, frozen=True):
    """A tensor whose data is computed when it is written.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Outermost axis first.
    type : int
        Type id of ggml.
    blocks : callable
        ``blocks()`` yields arrays whose bytes, one behind the other, are the tensor's.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    blocks: Callable[[], Iterable[np.ndarray]]

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        n_values, n_bytes = BLOCKS[self.type]
        return int(math.prod(self.shape) // n_values * n_bytes)


def stream_model_file(
    path: str | PathLike[str],
    architecture: str,
    metadata: Mapping[str, Value],
    tensors: Sequence[StreamedTensor],
    *,
    check: Callable[[Path], None] | None = None,
    written: Callable[[int], None] | None = None,
) -> None:
    """Write a GGUF file, holding one array of one tensor at a time.

    Nothing is left behind by a failure: the file grows under another name, ``<path>.part``.

    Parameters
    ----------
    path : path
        Replaced where it exists as a regular file.
    architecture : str
    metadata : mapping
        As ``write_model_file`` takes it.
    tensors : sequence of StreamedTensor
    check : callable, optional
        ``check(part)`` may open the unfinished file, whose header is complete and whose tensors
        are zeros; what it raises ends the writing.
    written : callable, optional
        ``written(n_bytes)`` is called after each array.

    Raises
    ------
    ModelFileError
        If the file cannot be written.
    """
    path = take_path(path)
    try:
        if path.exists() and not path.is_file():  # a folder, a pipe or a device cannot be replaced
            raise _irregular(path)
        with replacing(path) as part:
            offsets, n_bytes = _write_header(part, architecture, metadata, tensors)
            os.truncate(part, n_bytes)
            if check is not None:
                check(part)
            with open(part, "r+b") as file:
                for tensor, offset in zip(tensors, offsets, strict=True):
                    file.seek(offset)
                    for block in tensor.blocks():
                        file.write(np.ascontiguousarray(block).data)
                        if written is not None:
                            written(block.nbytes)
                    if file.tell() - offset != tensor.n_bytes:
                        raise ModelFileError(
                            "the data is not as long as the shape says",
                            where=f"tensor {tensor.name!r}",
                            wanted=f"{tensor.n_bytes} bytes",
                            got=file.tell() - offset,
                        )
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(
            "cannot write the file",
            where=str(path),
            got=reason,
            fix="give a path in a folder that exists, can be written, and has room",
        ) from error


def _irregular(path: Path) -> ModelFileError:
    return ModelFileError(
        "not a regular file: it cannot be written anew",
        where=str(path),
        fix="give the name of the file to write",
    )


def _write_header(
    part: Path, architecture: str, metadata: Mapping[str, Value], tensors: Sequence[StreamedTensor]
) -> tuple[list[int], int]:
    """Write all but the data; return where each tensor begins, and the length of the file."""
    writer = GGUFWriter(part, architecture)
    try:
        for key, value in metadata.items():
            if key != "general.architecture":
                add_value(writer, key, value)
        for tensor in tensors:
            kind = GGMLQuantizationType(tensor.type)
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=kind
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        begin = os.path.getsize(part)
    finally:
        writer.close()
    offsets, end = [], begin
    for tensor in tensors:
        offsets.append(GGUFWriter.ggml_pad(end, writer.data_alignment))
        end = offsets[-1] + tensor.n_bytes
    return offsets, GGUFWriter.ggml_pad(end, writer.data_alignment)
