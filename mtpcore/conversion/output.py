"""Writing a model file that is known to load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import GraphError, ModelFileError, PluginError
from mtpcore.gguf import StreamedFile, stream_model_files
from mtpcore.graph import GraphType
from mtpcore.runtime.model import Model

__all__ = ["Report", "write_checked"]

log = logging.getLogger("mtpcore")
_FIX = "correct it where it comes from: config.json, the tensors, or the file that is quantised"
_SAMPLE = "Ab 12\n\u00e9\u4e2d"

Report = Callable[[int, int], None]
"""``report(n_bytes, total)``: how much of the data has been written."""


def write_checked(
    model: StreamedFile,
    companion: StreamedFile | None,
    known: Registry,
    report: Report | None,
    *,
    further: Sequence[StreamedFile] = (),
) -> None:
    """Write a model file, and its companion if it has one, whose graphs have been built of headers.

    ``further`` are the other parts of a split one.

    Raises
    ------
    ModelFileError
        It cannot be written, or a graph lacks a tensor or meets one of another shape. No file is
        left behind.
    """
    files = [model, *further, *([companion] if companion else [])]
    total, done = sum(tensor.n_bytes for file in files for tensor in file.tensors), 0

    def written(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if report is not None:
            report(done, total)

    def check(*parts: Path) -> None:
        named = dict(zip(parts, (file.path for file in files), strict=True))
        if not further:
            _build_graphs(named, known)
            return
        with TemporaryDirectory() as place:  # parts find each other by their names
            links = {Path(place) / path.name: part.resolve() for part, path in named.items()}
            for link, part in links.items():
                link.symlink_to(part)
            first = Path(place) / model.path.name
            _build_graphs({first: model.path}, known)

    stream_model_files(files, check=check, written=written)
    if companion:
        log.info("%s: the rest of the model is in %s", model.path, companion.path)


def _try_tokenizer(model: Model, path: Path) -> None:
    """Encode a text and decode it; a file without a tokenizer that is supported passes."""
    if not model.has_tokenizer:
        return
    tokenizer, n_vocab = model.tokenizer, model.hparams.n_vocab
    if tokenizer.n_vocab > n_vocab:
        raise ModelFileError(
            "the tokenizer has more tokens than the model has rows",
            where=str(path),
            wanted=f"at most {n_vocab}",
            got=tokenizer.n_vocab,
            fix="take the tokenizer that was published with the model",
        )
    tokenizer.decode(tokenizer.encode(_SAMPLE, parse_special=True))


def _build_graphs(paths: Mapping[Path, Path], known: Registry) -> None:
    """Load the unfinished file and build what can be built of it alone, or with its companion.

    ``paths`` has the unfinished files, and what each will be called.
    """
    part, *companions = paths
    path, companion = paths[part], companions[0] if companions else None
    try:
        opened = load_model(part, sidecars=False, companion=companion, plugins=known)
    except (ModelFileError, GraphError, PluginError) as error:
        where = error.where or ""
        for unfinished, named in paths.items():
            where = where.replace(str(unfinished), str(named))
        raise ModelFileError(
            f"what the file is made of is no model: {error.what}",
            where=where,
            wanted=error.wanted,
            got=error.got,
            fix=_FIX,
        ) from error
    with opened as model:
        _try_tokenizer(model, path)
        try:
            if model.file_layout != "mtp-only":
                model.program()
                for kind, _ in model.spec.graphs if model.spec is not None else ():
                    model.program(kind)
            drafters = model.drafters if model.spec is not None else ()
            for drafter in (one for one in drafters if one.shape != "proposer"):
                for head in range(cast(int, drafter.heads.count)):
                    model.program(GraphType.DRAFT, drafter=drafter, head=head)
        except (GraphError, PluginError) as error:
            raise ModelFileError(
                f"the model's graph does not fit its tensors: {error.what}",
                where=f"{path}: {error.where}",
                wanted=error.wanted,
                got=error.got,
                fix=_FIX if isinstance(error, GraphError) else error.fix,
            ) from error
