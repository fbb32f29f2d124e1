"""From a model file to one with other tensor types."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION

from mtpcore.conversion.output import Report, write_checked
from mtpcore.conversion.types import OutType, TypeChoice
from mtpcore.errors import ModelFileError
from mtpcore.gguf import StreamedTensor, Tensor
from mtpcore.gguf.types import PLAIN
from mtpcore.gguf.writer import encode
from mtpcore.loading import find_model, load_model
from mtpcore.registry import Registry, registry

__all__ = ["quantize"]

_PIECE = 1 << 20  # values converted at once


def quantize(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    outtype: OutType,
    mtp_type: OutType | None = None,
    plugins: Registry | None = None,
    report: Report | None = None,
) -> None:
    """Write a model file's tensors in other types, a piece at a time.

    Parameters
    ----------
    source : path
        A GGUF file (of a split one the first part), or ``demo``.
    path : path
        The GGUF file to write; replaced where it exists.
    outtype : str
        Type of matrices: ``f32``, ``f16``, ``bf16``, ``q8_0`` or ``q4_0``.
    mtp_type : str, optional
        Type of the heads' matrices, which are all in a drafter with a file of its own; default:
        ``outtype``, but f16 for q8_0 and q8_0 for q4_0.
    plugins : Registry, optional
        Who may know the model; default: everybody who is installed.
    report : callable, optional

    Raises
    ------
    ModelFileError
        As ``load_model``; a type that cannot be read; both paths are the same file. No file is
        left behind.
    """
    known = registry() if plugins is None else plugins
    source, path = find_model(source), Path(path)
    if path.exists() and path.samefile(source):
        raise ModelFileError(
            "the file to write is the one to read", where=str(path), fix="give another name"
        )
    with load_model(source, plugins=known) as model:
        least = [pair for drafter in model.drafters for pair in drafter.min_types]
        least += model.spec.min_types if model.spec else ()
        first_head = model.hparams.n_layers if model.spec else None
        choice = TypeChoice(outtype, mtp_type, first_head, least)
        metadata = {k: v for k, v in model.metadata.items() if not k.startswith("split.")}
        metadata["general.file_type"] = choice.file_type
        metadata["general.quantization_version"] = GGML_QUANT_VERSION
        streamed = [_retyped(tensor, choice) for tensor in model.tensors.values()]
        write_checked(path, model.architecture, metadata, streamed, known, report)


def _retyped(tensor: Tensor, choice: TypeChoice) -> StreamedTensor:
    integer = tensor.type in PLAIN and PLAIN[tensor.type].kind == "i"
    kind = tensor.type if integer else choice.choose(tensor.name, tensor.shape)
    step = max(1, _PIECE // max(1, tensor.shape[-1] if tensor.shape else 1))

    def blocks() -> Iterator[np.ndarray]:
        raw = tensor.raw().reshape(tensor.n_rows, tensor.row_bytes)
        for begin in range(0, tensor.n_rows, step):
            end = min(begin + step, tensor.n_rows)
            if kind == tensor.type:
                yield raw[begin:end]
            else:
                yield encode(tensor.name, tensor.rows(begin, end), kind)[0]
        tensor.release()

    return StreamedTensor(tensor.name, tensor.shape, kind, blocks)
