"""Writing model files tensor by tensor, for files larger than memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
from gguf import GGUFWriter

from mtpcore.boundary.atomic import replacing
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue, StoredValue
from mtpcore.gguf.types import BLOCKS
from mtpcore.gguf.writer import FileWriter, add_value

__all__ = ["StreamedFile", "StreamedTensor", "stream_model_files"]


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
        ``blocks()`` yields arrays whose bytes, one after the other, are the tensor's.
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


class StreamedFile(msgspec.Struct, frozen=True):
    """A model file to write.

    Attributes
    ----------
    path : Path
        Replaced where it exists as a regular file.
    architecture : str
        Empty: the file names none, as the parts of a split model but the first.
    metadata : mapping
        As ``write_model_file`` takes it; values may be as another file has them. The architecture
        comes first where it is not among them.
    tensors : sequence of StreamedTensor
    """

    path: Path
    architecture: str
    metadata: Mapping[str, MetadataValue | StoredValue]
    tensors: Sequence[StreamedTensor]


def stream_model_files(
    files: Sequence[StreamedFile],
    *,
    check: Callable[..., None] | None = None,
    written: Callable[[int], None] | None = None,
) -> None:
    """Write GGUF files that belong together, holding one array of one tensor at a time.

    They grow under other names and take their own when all of them are whole: after a failure the
    old files are there, and nothing else.

    Parameters
    ----------
    files : sequence of StreamedFile
    check : callable, optional
        ``check(*parts)`` may open the unfinished files, whose headers are complete and whose
        tensors are zeros; what it raises ends the writing.
    written : callable, optional
        ``written(n_bytes)`` is called after each array.

    Raises
    ------
    ModelFileError
        A file cannot be written.
    """
    with ExitStack() as stack:
        parts, offsets = [], []
        for file in files:
            stack.enter_context(_naming(file.path))
            if file.path.exists() and not file.path.is_file():  # a folder, a pipe or a device
                raise _irregular(file.path)
            parts.append(stack.enter_context(replacing(file.path)))
            with _naming(file.path):
                offsets.append(_write_header(parts[-1], file))
        if check is not None:
            check(*parts)
        for file, part, begins in zip(files, parts, offsets, strict=True):
            with _naming(file.path):
                _write_data(part, file.tensors, begins, written or (lambda n_bytes: None))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say of which file the system's errors are."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(
            "cannot write the file",
            where=str(path),
            got=error.strerror or error,
            fix="give a path in a folder that exists, can be written, and has room",
        ) from error


def _irregular(path: Path) -> ModelFileError:
    return ModelFileError(
        "not a regular file: it cannot be written anew",
        where=str(path),
        fix="give the name of the file to write",
    )


def _write_header(part: Path, file: StreamedFile) -> list[int]:
    """Write all but the data, for which zeros stand; return where each tensor begins."""
    writer = FileWriter(part, file.architecture)
    try:
        if "general.architecture" in file.metadata or not file.architecture:
            writer.kv_data[0].clear()  # it has its place there, or none
        for key, value in file.metadata.items():
            add_value(writer, key, value)
        for tensor in file.tensors:
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype("f4"), tensor.n_bytes, raw_dtype=tensor.type
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        begin = os.path.getsize(part)
    finally:
        writer.close()
    offsets, end = [], begin
    for tensor in file.tensors:
        offsets.append(GGUFWriter.ggml_pad(end, writer.data_alignment))
        end = offsets[-1] + tensor.n_bytes
    os.truncate(part, GGUFWriter.ggml_pad(end, writer.data_alignment))
    return offsets


def _write_data(
    part: Path,
    tensors: Sequence[StreamedTensor],
    offsets: Sequence[int],
    written: Callable[[int], None],
) -> None:
    with open(part, "r+b") as file:
        for tensor, offset in zip(tensors, offsets, strict=True):
            file.seek(offset)
            for block in tensor.blocks():
                file.write(np.ascontiguousarray(block).data)
                written(block.nbytes)
            if file.tell() - offset != tensor.n_bytes:
                raise ModelFileError(
                    "the data is not as long as the shape says",
                    where=f"tensor {tensor.name!r}",
                    wanted=f"{tensor.n_bytes} bytes",
                    got=file.tell() - offset,
                )
        file.flush()
        os.fsync(file.fileno())  # before any file of several takes its name
