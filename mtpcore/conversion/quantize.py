"""From a model file to one with other tensor types, or with a part of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_VERSION

from mtpcore.boundary.paths import take_path
from mtpcore.conversion.output import Report, write_checked
from mtpcore.conversion.parts import MTP, check_parts, left_out_of
from mtpcore.conversion.types import OutType, TypeChoice
from mtpcore.discovery.companions import companion_path, unread
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import StreamedFile, StreamedTensor, Tensor
from mtpcore.gguf.types import PLAIN
from mtpcore.gguf.writer import encode
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.model import Model

__all__ = ["quantize"]

_PIECE = 1 << 20  # values converted at once


def quantize(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    outtype: OutType,
    mtp_type: OutType | None = None,
    mtp: MTP = "keep",
    plugins: Registry | None = None,
    report: Report | None = None,
) -> dict[str, str]:
    """Write a model file's tensors in other types, a piece at a time.

    Parameters
    ----------
    source : path
        A GGUF file (of a split one the first part), or ``demo``.
    path : path
        The GGUF file to write; replaced where it exists. The companion of a model that has one is
        written beside it, as ``convert`` does; what is in it besides the model keeps its type.
    outtype : str
        Type of matrices: ``f32``, ``f16``, ``bf16``, ``q8_0`` or ``q4_0``.
    mtp_type : str, optional
        Type of the heads' matrices, which are all in a drafter with a file of its own; default:
        ``outtype``, but f16 for q8_0 and q8_0 for q4_0.
    mtp : str
        ``keep`` what the file holds, ``only`` the heads (with the tables that they share with the
        trunk), or ``drop`` the heads.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while the data is written.

    Returns
    -------
    dict of str to str
        The tensors that the new file does without, each with the reason.

    Raises
    ------
    ModelFileError
        As ``load_model``; a type that cannot be read; a part that the file does not hold; both
        paths are the same file. No file is left behind.
    """
    known = registry() if plugins is None else plugins
    source, path = find_model(source), take_path(path)
    with load_model(source, sidecars=False, plugins=known) as model:
        _refuse_own_file(model, path)
        n_layers = model.hparams.n_layers if model.spec else None
        check_parts(
            mtp,
            str(source),
            standalone=n_layers is None,
            has_heads=model.file_layout != "trunk-only",
            has_trunk=model.file_layout != "mtp-only",
        )
        least = [pair for drafter in model.drafters for pair in drafter.min_types]
        least += model.spec.min_types if model.spec else ()
        choice = TypeChoice(outtype, mtp_type, n_layers, least)
        own = model.parts[0] if model.parts else model
        metadata = _metadata(own.metadata, model, mtp) | {"general.file_type": choice.file_type}
        left_out = {
            name: reason
            for name in own.tensors
            if n_layers is not None and (reason := _left_out(name, n_layers, mtp))
        }
        kept = (tensor for name, tensor in own.tensors.items() if name not in left_out)
        streamed = [_retyped(tensor, choice) for tensor in kept]
        whole = StreamedFile(path, model.architecture, metadata, streamed)
        write_checked(whole, _companion(model, path, choice), known, report)
    return left_out


def _refuse_own_file(model: Model, path: Path) -> None:
    """Raise where a file to write is one of those that are read."""
    companion = model.spec.companion if model.spec and model.parts else None
    for written in (path, *([companion_path(companion, path)] if companion else [])):
        if os.path.exists(written) and any(os.path.samefile(written, p) for p in model.paths):
            raise ModelFileError(
                "the file to write is the one to read", where=str(written), fix="give another name"
            )


def _companion(model: Model, path: Path, choice: TypeChoice) -> StreamedFile | None:
    """Return what is to be written beside the file at ``path``, of a model in two files."""
    if not model.parts:
        return None
    beside, companion = model.parts[1], model.spec.companion if model.spec else None
    assert companion is not None
    kept = {*unread(companion, beside)}
    tensors = [
        _as_it_is(tensor) if name in kept else _retyped(tensor, choice)
        for name, tensor in beside.tensors.items()
    ]
    metadata = _unsplit(beside.metadata) | {"general.file_type": choice.file_type}
    return StreamedFile(companion_path(companion, path), beside.architecture, metadata, tensors)


def _as_it_is(tensor: Tensor) -> StreamedTensor:
    return StreamedTensor(tensor.name, tensor.shape, tensor.type, lambda: [tensor.raw()])


def _left_out(name: str, n_layers: int, mtp: MTP) -> str:
    block = block_of(name)
    return left_out_of(mtp, block, block is not None and block >= n_layers)


def _unsplit(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says that is not split, with the version of the types it will have."""
    kept = {k: v for k, v in metadata.items() if not k.startswith("split.")}
    return kept | {"general.quantization_version": GGML_QUANT_VERSION}


def _metadata(own: Mapping[str, Any], model: Model, mtp: MTP) -> dict[str, Any]:
    """Return what the new file says; without heads it counts the trunk's layers only."""
    metadata = _unsplit(own)
    if mtp != "drop":
        return metadata
    n_layers, prefix = model.hparams.n_layers, f"{model.architecture}."
    n_blocks = metadata[f"{prefix}block_count"]
    metadata.pop(f"{prefix}nextn_predict_layers", None)
    metadata[f"{prefix}block_count"] = n_layers
    for key, value in metadata.items():
        # Lists of a model's own keys have an entry for each block, but those of the rotation.
        mine = key.startswith(prefix) and not key.startswith(f"{prefix}rope.")
        if mine and isinstance(value, list | np.ndarray) and len(value) == n_blocks:
            metadata[key] = value[:n_layers]
    return metadata


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
