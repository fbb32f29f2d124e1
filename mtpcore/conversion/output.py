"""Writing a model file that is known to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import cast

from mtpcore.errors import GraphError, ModelFileError, PluginError
from mtpcore.gguf import StreamedTensor, stream_model_file
from mtpcore.gguf.header import Value
from mtpcore.graph import GraphType
from mtpcore.loading import load_model
from mtpcore.registry import Registry

__all__ = ["Report", "write_checked"]

Report = Callable[[int, int], None]
"""``report(n_bytes, total)``: how much of the data has been written."""


def write_checked(
    path: str | PathLike[str],
    architecture: str,
    metadata: Mapping[str, Value],
    tensors: Sequence[StreamedTensor],
    known: Registry,
    report: Report | None,
) -> None:
    """Write a model file whose graphs have been built of its header.

    Raises
    ------
    ModelFileError
        It cannot be written, or a graph lacks a tensor or meets one of another shape. No file is
        left behind.
    """
    total, done = sum(tensor.n_bytes for tensor in tensors), 0

    def written(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if report is not None:
            report(done, total)

    stream_model_file(
        path,
        architecture,
        metadata,
        tensors,
        check=lambda part: _build_graphs(part, Path(path), known),
        written=written,
    )


def _build_graphs(part: Path, path: Path, known: Registry) -> None:
    """Load the unfinished file and build what can be built of it alone."""
    try:
        opened = load_model(part, plugins=known)
    except ModelFileError as error:
        raise ModelFileError(
            f"what the file is made of is no model: {error.what}",
            where=(error.where or "").replace(str(part), str(path)),
            wanted=error.wanted,
            got=error.got,
            fix="correct it where it comes from: config.json, or the file that is quantised",
        ) from error
    with opened as model:
        try:
            if model.file_layout != "mtp-only":
                model.program()
            for drafter in model.drafters if model.spec is not None else ():
                for head in range(cast(int, drafter.heads.count)):
                    model.program(GraphType(drafter.graph_type), drafter=drafter, head=head)
        except (GraphError, PluginError) as error:
            raise ModelFileError(
                f"the model's graph does not fit its tensors: {error.what}",
                where=f"{path}: {error.where}",
                wanted=error.wanted,
                got=error.got,
                fix=error.fix,
            ) from error
