"""From a path to a model: which plugin's trunk it is, and which drafters it holds."""

from __future__ import annotations

import logging
import re
from os import PathLike
from pathlib import Path
from typing import Any

from mtpcore.boundary.arguments import Flag, read
from mtpcore.boundary.paths import take_path
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError, MtpcoreError, PluginError, spell
from mtpcore.gguf import Fields, ModelFile, merge, open_model_file
from mtpcore.runtime.fit import (
    FittedDrafter,
    block_of,
    fit_drafter,
    fits,
    holds,
    lacking,
    read_hparams,
)
from mtpcore.runtime.model import Layout, Model

__all__ = ["find_companion", "find_head", "find_model", "load_model", "load_with_head"]

log = logging.getLogger("mtpcore")

_DATA = Path(__file__).parents[1] / "data"
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_PACKAGED = {path.stem.replace("-", ":", 1): path for path in sorted(_DATA.glob("demo*.gguf"))}


def load_model(
    path: str | PathLike[str],
    *,
    mtp: bool = True,
    mtp_path: str | PathLike[str] | None = None,
    repack: bool = True,
    plugins: Registry | None = None,
) -> Model:
    """Open a model file.

    A file may hold a trunk with its head, a trunk alone, or a head or drafter alone; its tensors
    decide, and a metadata key that disagrees is a warning of the logger ``mtpcore``. A head that
    cannot be used is left out with a warning: the trunk loads all the same.

    Parameters
    ----------
    path : path
        A GGUF file (of a split one the first part), or a model in the package: ``demo``, or
        ``demo:`` and a family's name.
    mtp : bool
        Whether to load heads; if not, their tensors are neither packed nor counted.
    mtp_path : path, optional
        A file that holds the head which ``path`` lacks.
    repack : bool
        Whether the CPU backend packs weights, at a context's first ``process`` or ``prepare``.
        Otherwise the kernels read them from the mapped file at each use, with bitwise equal
        results: the model is ready at once, needs only the file's pages, which other processes
        share, and is slower. Types without kernels are converted in memory either way.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.

    Raises
    ------
    ModelFileError
        A malformed file, an architecture that no plugin knows, files that do not belong together.
    PluginError
        As ``registry``.
    """
    mtp, repack = (read(value, Flag, "mtp and repack are yes or no") for value in (mtp, repack))
    if plugins is not None and not isinstance(plugins, Registry):
        raise PluginError(
            "plugins is a Registry", got=spell(plugins), fix="make one: Registry.of(module)"
        )
    known = registry() if plugins is None else plugins
    if mtp_path is not None and not mtp:
        raise ModelFileError("mtp=False and mtp_path contradict each other", where=str(mtp_path))
    file = open_model_file(find_model(path))
    try:
        if mtp_path is not None:
            _refuse_second_head(file, known)
            file = merge(file, open_model_file(find_model(mtp_path)))
        model = _make(file, known, mtp)
        if mtp_path is not None and all(drafter.shape == "proposer" for drafter in model.drafters):
            raise ModelFileError(
                "the file holds no head that a plugin knows",
                where=str(mtp_path),
                fix="give a file with the head of this model, or leave mtp_path= (--mtp-path) out"
                + (f"; left out: {known.absent}" if known.absent else ""),
            )
        model.repack = repack
        return model
    except BaseException:
        file.close()
        raise


def load_with_head(path: str | PathLike[str], *, repack: bool = True) -> Model:
    """Open a model file, completed by the head in a file beside it where it has none itself.

    A head beside it that cannot be used is left out with a warning.

    Parameters
    ----------
    path, repack
        As ``load_model`` takes them.

    Raises
    ------
    ModelFileError
        As ``load_model``.
    """
    model = load_model(path, repack=repack)
    head = find_head(path)
    if head is None or any(drafter.shape != "proposer" for drafter in model.drafters):
        return model
    try:
        whole = load_model(path, mtp_path=head, repack=repack)
    except ModelFileError as error:
        log.warning("%s is left out: %s", head, error)
        return model
    model.close()
    return whole


def find_model(name: str | PathLike[str]) -> Path:
    """Return the path of a model in the package by its name, or any other path as it is.

    Raises
    ------
    ModelFileError
        The package has no model of this name.
    """
    name = take_path(name) if not isinstance(name, str) else name
    known = str(name) in _PACKAGED
    if str(name).startswith("demo:") and not known:
        raise ModelFileError(
            "the package has no such model",
            wanted=", ".join(_PACKAGED),
            got=str(name),
            fix=f"take one of these; a file of your own with this name is given as ./{name}",
        )
    return _PACKAGED[str(name)] if known else take_path(name)


def find_companion(name: str | PathLike[str]) -> str | None:
    """Return the path of the draft model that belongs to a model; None if there is none.

    For ``name.gguf`` that is ``name-draft.gguf`` beside it; for a model in the package, a name.
    """
    if str(name) in _PACKAGED:
        companion = f"{name}-draft"
        return companion if companion in _PACKAGED else None
    return _find_beside(name, "{}-draft")


def find_head(name: str | PathLike[str]) -> str | None:
    """Return the path of a separate file with a model's head; None if there is none.

    For ``name.gguf`` that is ``mtp-name.gguf`` beside it.
    """
    return _find_beside(find_model(name), "mtp-{}")


def _find_beside(name: str | PathLike[str], pattern: str) -> str | None:
    """Return a file whose name is made of a model's; of a split model's without the number."""
    path = take_path(name)
    beside = path.with_name(pattern.format(_PART.sub("", path.stem)) + path.suffix)
    return str(beside) if path.suffix and beside.is_file() else None


def _make(file: ModelFile, known: Registry, mtp: bool) -> Model:
    fields = Fields.of(file)
    spec = known.architectures.get(file.architecture)
    if spec is None:
        return _make_standalone(file, fields, known)
    if missing := lacking(spec, file.tensors):
        raise ModelFileError(
            f"tensors of the architecture {file.architecture!r} are missing",
            where=str(file.path),
            wanted=", ".join(missing),
        )
    if unknown := [name for name in spec.fit.absent if name in file.tensors]:
        raise ModelFileError(
            f"tensors that the architecture {file.architecture!r} does not have",
            where=str(file.path),
            got=", ".join(unknown),
        )
    hparams = read_hparams(spec, fields, file.tensors)
    fitted = _fit(known, fields, file, hparams) if mtp else []
    blocks = {name: block for name in file.tensors if (block := block_of(name)) is not None}
    in_head = {name for name, block in blocks.items() if block >= hparams.n_layers}
    layout: Layout = "combined" if in_head else "trunk-only"
    if in_head and len(in_head) == len(blocks):
        layout = "mtp-only"
    left_out = set() if mtp else in_head
    tensors = {name: tensor for name, tensor in file.tensors.items() if name not in left_out}
    return Model(file, spec, hparams, fitted, tensors=tensors, layout=layout, absent=known.absent)


def _fit(known: Registry, fields: Fields, file: ModelFile, hparams: Any) -> list[FittedDrafter]:
    """Return the drafters that the file holds, the most promising first."""
    fitted = []
    for spec in known.drafters:
        if spec.standalone:
            continue
        try:
            drafter = fit_drafter(spec, fields, file.tensors, hparams.n_layers, hparams)
        except Exception as error:  # a plugin's hparams may raise anything
            log.warning(
                "%s: drafter %r of plugin %r cannot be used: %s",
                file.path,
                spec.name,
                spec.plugin,
                error if isinstance(error, MtpcoreError) else spell(error),
            )
            continue
        if drafter is not None:
            fitted.append(drafter)
    return sorted(fitted, key=lambda drafter: _rank(drafter.spec))


def _rank(spec: DrafterSpec) -> tuple[bool, bool, float, str]:
    return bool(spec.variant_of), spec.shape == "proposer", -sum(spec.acceptance), spec.name


def _make_standalone(file: ModelFile, fields: Fields, known: Registry) -> Model:
    mine = [s for s in known.drafters if s.standalone and s.fit.architectures]
    fitted = []
    for spec in mine:
        if spec.hparams is None or not fits(spec, file.architecture, file.tensors):
            continue
        drafter = fit_drafter(spec, fields, file.tensors, 0, None)
        if drafter is not None:
            fitted.append(drafter)
    if fitted:
        return Model(file, None, fitted[0].hparams, fitted, layout="mtp-only", absent=known.absent)
    architectures = {*known.architectures, *(a for s in mine for a in s.fit.architectures)}
    raise ModelFileError(
        "no plugin knows this architecture",
        where=str(file.path),
        wanted=", ".join(sorted(architectures)) or "a plugin that declares a trunk",
        got=repr(file.architecture),
        fix="install the plugin that declares it, or convert the model to a supported architecture"
        + (f"; left out: {known.absent}" if known.absent else ""),
    )


def _refuse_second_head(file: ModelFile, known: Registry) -> None:
    spec = known.architectures.get(file.architecture)
    if spec is None:
        return
    n_layers = read_hparams(spec, Fields.of(file), file.tensors).n_layers
    for drafter in known.drafters:
        graph = drafter.shape != "proposer"
        if graph and holds(drafter, file.architecture, file.tensors, n_layers):
            raise ModelFileError(
                f"the file already holds the head {drafter.name!r}",
                where=str(file.path),
                fix="leave mtp_path= (--mtp-path) out, or give a file with the trunk alone",
            )
