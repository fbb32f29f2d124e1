"""The file beside a model that holds the rest of it, where models come in two files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtpcore.declarations.companion import Companion
from mtpcore.declarations.spec import ModelSpec
from mtpcore.discovery.sidecars import MOST_FILES, find_named, precision, spell_reason
from mtpcore.errors import ModelFileError, MtpcoreError, PluginError, spell
from mtpcore.gguf import JoinedTensor, Metadata, ModelFile, Tensor, open_model_file
from mtpcore.runtime.fit import lacking

__all__ = ["companion_path", "complete", "unread"]


def companion_path(companion: Companion, model: Path) -> Path:
    """Return what a model's companion is called where it is written."""
    return model.with_name(companion.file.replace("*", model.stem))


def complete(
    file: ModelFile,
    spec: ModelSpec | None,
    given: Path | None,
    check: Callable[[ModelFile], None],
) -> ModelFile:
    """Return a model's file together with its companion, or as it is where it needs none.

    Parameters
    ----------
    file : ModelFile
    spec : ModelSpec or None
        Its declaration.
    given : Path or None
        The companion, where the caller names it; others are not looked for.
    check : callable
        ``check(whole)`` raises what does not fit.

    Raises
    ------
    ModelFileError
        A part of the model is missing, and no file beside it holds it; or the one that is named
        does not fit.
    MtpcoreError
        Whatever ``check`` raises of the one that is named.
    """
    if spec is None or (wanted := _wanted(spec, file)) is None:
        if given is None:
            return file
        raise ModelFileError(
            "the model needs no companion",
            where=str(file.path),
            got=str(given),
            fix="leave companion= out",
        )
    if given is not None:
        return _complete(file, open_model_file(given), spec, wanted, check)
    return _choose(file, spec, wanted, check)


def unread(companion: Companion, beside: ModelFile) -> list[str]:
    """Return the tensors of a companion that no graph reads, as what another program runs."""
    read = [_numbered(source) for _, sources in companion.tensors for source in sources]
    return [name for name in beside.tensors if not any(one.fullmatch(name) for one in read)]


def _numbered(source: str) -> re.Pattern[str]:
    """Return what a companion's name matches; the number is a group."""
    return re.compile(re.escape(source).replace(re.escape("{n}"), r"(\d{1,6})"))


def _wanted(spec: ModelSpec, file: ModelFile) -> list[str] | None:
    """Return the names of what a companion has to hold; None where the file needs none."""
    names = dict(spec.companion.tensors) if spec.companion is not None else {}
    missing = lacking(spec, file.tensors)
    if not missing or not {*missing} <= {*names}:
        return None
    return [source for name in missing for source in names[name]]


def _choose(
    file: ModelFile, spec: ModelSpec, wanted: Collection[str], check: Callable[[ModelFile], None]
) -> ModelFile:
    """Return a model's file together with the best companion beside it."""
    companion = spec.companion
    assert companion is not None
    reasons: dict[str, str] = {}
    opened = []
    for one in find_named(file.path, [(companion.file, spec.name)])[:MOST_FILES]:
        try:
            opened.append((one, open_model_file(one.path)))
        except ModelFileError as error:
            reasons[one.path.name] = spell_reason(error)
    opened.sort(key=lambda pair: (pair[0].distance, precision(pair[1]), pair[0].path.name))
    whole: ModelFile | None = None
    for one, beside in opened:
        if whole is not None:
            beside.close()
            continue
        try:
            whole = _complete(file, beside, spec, wanted, check)
        except Exception as error:  # whatever a file from outside makes of a plugin
            reasons[one.path.name] = spell_reason(error)
    if whole is not None:
        return whole
    raise ModelFileError(
        "the rest of the model is in another file, and no file beside it is that one",
        where=str(file.path),
        wanted=f"{companion.file} with {', '.join(wanted)}",
        got="; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no such file",
        fix="put both files into one folder, or name the other one: load_model(companion=...)",
    )


def _complete(
    file: ModelFile,
    beside: ModelFile,
    spec: ModelSpec,
    wanted: Collection[str],
    check: Callable[[ModelFile], None],
) -> ModelFile:
    """Return both files as one; close the second where it does not fit."""
    try:
        whole = _unite(file, beside, spec, wanted)
        check(whole)
        return whole
    except BaseException:
        beside.close()
        raise


def _unite(
    file: ModelFile, beside: ModelFile, spec: ModelSpec, wanted: Collection[str]
) -> ModelFile:
    companion = spec.companion
    assert companion is not None
    if beside.architecture != companion.architecture:
        raise ModelFileError(
            "the companion is of another architecture",
            where=str(beside.path),
            wanted=companion.architecture,
            got=beside.architecture,
        )
    if absent := [name for name in wanted if name not in beside.tensors]:
        raise ModelFileError(
            "tensors of the companion are missing",
            where=str(beside.path),
            wanted=", ".join(absent),
        )
    tensors = _tensors(companion, beside.tensors)
    where = f"{beside.path}: companion of {spec.full_name}"
    try:
        found: Mapping[str, Any] = companion.metadata(file, beside)
        metadata: Metadata = {
            key.replace("{arch}", file.architecture): v for key, v in found.items()
        }
    except MtpcoreError:
        raise
    except ValueError as error:
        raise ModelFileError(
            f"the files do not belong together: {spell(error, str)}",
            where=f"{file.path} and {beside.path}",
            fix="give both files of one model, converted together",
        ) from error
    except Exception as error:  # whatever a plugin raises
        said = spell(error, str)
        raise PluginError(f"raised {type(error).__name__}: {said}", where=where) from error
    return ModelFile(
        {**metadata, **file.metadata},
        {**tensors, **file.tensors},
        file.files + beside.files,
        parts=(file, beside),
    )


def _tensors(companion: Companion, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a companion's tensors by the names of the graphs; those that it lacks are missing."""
    tensors: dict[str, Tensor] = {}
    for name, sources in companion.tensors:
        if len(sources) > 1:
            if all(source in held for source in sources):
                tensors[name] = _join(name, [held[source] for source in sources])
            continue
        numbered = _numbered(sources[0])
        for source, tensor in held.items():
            if match := numbered.fullmatch(source):
                called = name.replace("{n}", match[1] if match.groups() else "")
                tensors[called] = tensor.called(called)
    return tensors


def _join(name: str, parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of several tensors as one tensor.

    Raises
    ------
    ModelFileError
        They have no rows, or rows of different widths.
    """
    if len({part.shape[-1:] for part in parts}) > 1 or not all(
        len(part.shape) > 1 for part in parts
    ):
        raise ModelFileError(
            "parts of a tensor that are not equally wide",
            where=f"{parts[0].path}: {', '.join(part.name for part in parts)}",
            got=", ".join(str([*part.shape]) for part in parts),
        )
    return JoinedTensor(name, parts)
