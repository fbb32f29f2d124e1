"""A fine-tune that lost its heads, and those of the model that it was made of, in one file."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from gguf import GGML_QUANT_VERSION

from mtpcore.boundary.paths import take_path
from mtpcore.conversion.output import Report, write_checked
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import StreamedFile, StreamedTensor, Tensor
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.model import Model

__all__ = ["lend"]


def lend(
    base: str | PathLike[str],
    fine_tune: str | PathLike[str],
    path: str | PathLike[str],
    *,
    plugins: Registry | None = None,
    report: Report | None = None,
) -> list[str]:
    """Write a fine-tune with the heads of the model that it was made of, as one file.

    All tensors keep their types. What the fine-tune writes is what it was: a head only drafts.

    Parameters
    ----------
    base : path
        A GGUF file with heads, with its trunk or without.
    fine_tune : path
        A GGUF file of the same architecture, width and depth, without heads.
    path : path
        The file to write; replaced where it exists.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while the data is written.

    Returns
    -------
    list of str
        The drafters whose heads were lent.

    Raises
    ------
    ModelFileError
        The fine-tune has heads of its own, the base none that a plugin knows, or they do not fit;
        the path is one of both. No file is left behind.
    """
    known = registry() if plugins is None else plugins
    base, fine_tune, path = find_model(base), find_model(fine_tune), take_path(path)
    for source in (base, fine_tune):
        if os.path.exists(path) and os.path.samefile(path, source):
            raise ModelFileError(
                "the file to write is one to read", where=str(path), fix="give another name"
            )
    _refuse_own_heads(fine_tune, known)
    with load_model(fine_tune, mtp_path=base, plugins=known) as model:
        if model.parts:
            raise ModelFileError(
                "a model in two files takes no heads into one of them",
                where=str(fine_tune),
                fix="give the heads beside it: --mtp-path",
            )
        metadata = {k: v for k, v in model.metadata.items() if not k.startswith("split.")}
        metadata["general.quantization_version"] = GGML_QUANT_VERSION
        tensors = [
            _as_it_is(tensor, name)
            for given, tensor in model.tensors.items()
            for name in _names(model, given)
        ]
        write_checked(
            StreamedFile(path, model.architecture, metadata, tensors), None, known, report
        )
        return [drafter.name for drafter in model.drafters if drafter.shape != "proposer"]


def _refuse_own_heads(fine_tune: Path, known: Registry) -> None:
    with load_model(fine_tune, sidecars=False, plugins=known) as model:
        if model.file_layout != "trunk-only":
            raise ModelFileError(
                "the fine-tune has heads of its own, and needs none of its base's",
                where=str(fine_tune),
                got=", ".join(one.name for one in model.drafters if one.shape != "proposer"),
                fix="run it as it is; mtpcore quantize --mtp drop leaves its heads out",
            )


def _as_it_is(tensor: Tensor, name: str) -> StreamedTensor:
    return StreamedTensor(name, tensor.shape, tensor.type, lambda: [tensor.raw()])


def _names(model: Model, name: str) -> list[str]:
    """Return how one file calls a tensor: that of a head alone must not become the trunk's.

    So an output matrix beside a tied trunk gets the name that the head prefers to it.
    """
    if name not in model.head_only or block_of(name) is not None:
        return [name]
    own = []
    for drafter in model.drafters:
        n_heads = drafter.heads.count
        assert isinstance(n_heads, int)  # keys are read by now
        for tie in drafter.ties:
            if name in tie.candidates[1:]:
                first = model.hparams.n_layers
                own += [tie.candidates[0].replace("{n}", str(first + i)) for i in range(n_heads)]
    return [one for one in dict.fromkeys(own) if one not in model.tensors] or [name]
