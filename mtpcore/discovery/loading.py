"""From a path to a model: which plugin's trunk it is, and which drafters it holds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from mtpcore.boundary.arguments import Flag, read
from mtpcore.boundary.paths import take_path
from mtpcore.declarations.draft_model import is_independent
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.companions import complete
from mtpcore.discovery.fetching import open_named
from mtpcore.discovery.registry import Registry, registry
from mtpcore.discovery.sidecars import (
    MOST_FILES,
    Candidate,
    check_draft_model,
    check_drafters,
    check_tokens,
    find_candidates,
    precision,
    spell_reason,
)
from mtpcore.errors import ModelFileError, MtpcoreError, PluginError, spell
from mtpcore.gguf import Fields, ModelFile, merge, open_model_file
from mtpcore.gguf.adapter import Adapter, load_adapter
from mtpcore.gguf.merged_adapters import merge_adapters, read_merged
from mtpcore.gguf.other_kinds import kind_of, refuse_other_kinds
from mtpcore.hub import parse_name
from mtpcore.runtime.accounting import account
from mtpcore.runtime.fit import (
    FittedDrafter,
    block_of,
    fit_drafter,
    fits,
    fits_architecture,
    holds,
    lacking,
    named_keys,
    read_hparams,
)
from mtpcore.runtime.model import Layout, Model
from mtpcore.runtime.sidecar import Sidecar

__all__ = ["find_demos", "find_model", "load_model"]

_MOST_NAMES = 8
"""As many does an error spell out."""

log = logging.getLogger("mtpcore")

_DATA = Path(__file__).parents[1] / "data"
_MORE = "mtpcore_demos"
"""The package with further models."""


def load_model(
    path: str | PathLike[str],
    *,
    mtp: bool = True,
    mtp_path: str | PathLike[str] | None = None,
    sidecars: bool = True,
    companion: str | PathLike[str] | None = None,
    repack: bool = True,
    adapters: Sequence[tuple[Adapter, float]] = (),
    plugins: Registry | None = None,
) -> Model:
    """Open a model file.

    A file may hold a trunk with its head, a trunk alone, or a head or drafter alone; its tensors
    decide, and a metadata key that disagrees is a warning of the logger ``mtpcore``. A head that
    cannot be used is left out with a warning: the trunk loads all the same.

    A trunk without a head takes the best of the drafters in its folder (``Model.sidecars``).
    Declarations say how such files are called; of those that fit by architecture, widths,
    vocabulary and graphs the one with the nearest name is taken, of equally near names the one
    whose matrices are nearest to eight bits a weight. Files that do not fit are left out, and a
    warning says so where one is called as the model is.

    Parameters
    ----------
    path : path
        A GGUF file (of a split one the first part), or the name of a model: in the package
        ``demo``, or ``demo:`` and a family's name; ``hf:owner/repo``, ``hf:owner/repo:Q4_K_M`` or
        ``hf:owner/repo/file.gguf`` on the Hugging Face hub, fetched where its cache does not hold
        it; ``ollama:name:tag`` or ``lmstudio:owner/repo`` in the store of that program here.
    mtp : bool
        Whether to load heads; if not, their tensors are neither packed nor counted.
    mtp_path : path, optional
        A file that holds the head which ``path`` lacks, or an adapter that drafts; others are not
        looked for.
    sidecars : bool
        Whether to look for a drafter beside a trunk that has none: at most the headers of eight
        regular files in its folder are read.
    companion : path, optional
        The file with the rest of the model, for a family whose models come in two files. Default:
        the one in the model's folder that fits and has the nearest name.
    repack : bool
        Whether the CPU backend packs weights, at a context's first ``process`` or ``prepare``.
        Otherwise the kernels read them from the mapped file at each use, with bitwise equal
        results: the model is ready at once, needs only the file's pages, which other processes
        share, and is slower. Types without kernels are converted in memory either way.
    adapters : sequence of (Adapter, float)
        Adapters that are merged into the model's matrices, with their scales: these are then in
        memory, in their types. ``Context(adapters=)`` keeps them apart, for some texts and not for
        others.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.

    Raises
    ------
    ModelFileError
        A malformed file, an architecture that no plugin knows, files that do not belong together.
    GraphError
        The head in ``mtp_path`` does not fit the model.
    PluginError
        As ``registry``, or the plugin of the head in ``mtp_path`` fails.
    """
    said = "mtp, sidecars and repack are yes or no"
    mtp, sidecars, repack = (read(value, Flag, said) for value in (mtp, sidecars, repack))
    if plugins is not None and not isinstance(plugins, Registry):
        raise PluginError(
            "plugins is a Registry", got=spell(plugins), fix="make one: Registry.of(module)"
        )
    known = registry() if plugins is None else plugins
    merged = read_merged(adapters)
    if mtp_path is not None and not mtp:
        raise ModelFileError("mtp=False and mtp_path contradict each other", where=str(mtp_path))
    file = open_model_file(find_model(path))
    try:
        file = _with_companion(file, None if companion is None else take_path(companion), known)
        if merged:
            file.change(merge_adapters(merged, file.tensors, file.architecture))
        if mtp_path is not None:
            model = _load_with_head(file, find_model(mtp_path), known)
        elif mtp and sidecars:
            model = _load_with_sidecar(file, known, repack)
        else:
            model = _make(file, known, mtp)
        _account(model, file, known, mtp)
        model.repack = repack
        return model
    except BaseException:
        file.close()
        raise


def _account(model: Model, file: ModelFile, known: Registry, mtp: bool) -> None:
    """Account for what the file holds; heads' part of it is theirs though they are not loaded."""
    try:
        account(model)
    except ModelFileError:
        if mtp:
            raise
        account(_make(file, known, True))


def _with_companion(file: ModelFile, given: Path | None, known: Registry) -> ModelFile:
    """Return a model's file with the one that holds the rest of it, where it needs one."""

    def check(whole: ModelFile) -> None:
        model = _make(whole, known, False)
        model.program()
        for kind, _ in model.spec.graphs if model.spec else ():
            model.program(kind)

    return complete(file, known.architectures.get(file.architecture), given, check)


def _load_with_head(file: ModelFile, head: Path, known: Registry) -> Model:
    """Return a model whose head is in the file that the caller named; it may be an adapter."""
    beside = open_model_file(head)
    try:
        if kind_of(beside.metadata) == "adapter":
            beside.close()
            return _with_draft_adapter(file, load_adapter(head), known)
        _refuse_second_head(file, known)
        model = _complete(file, beside, known)
        try:
            check_tokens(file, beside)
        except ModelFileError as error:
            log.warning("its drafts may be accepted rarely: %s", error)
        return model
    except BaseException:
        beside.close()
        raise


def _with_draft_adapter(file: ModelFile, adapter: Adapter, known: Registry) -> Model:
    """Return a model for which an adapter drafts.

    Raises
    ------
    ModelFileError
        No plugin says how.
    """
    model = _make(file, known, True, adapter)
    if model.draft_adapter is None:
        adapter.close()
        raise ModelFileError(
            f"no plugin drafts with an adapter of {file.architecture!r}",
            where=str(adapter.path),
            fix="install the drafter's plugin; an adapter that changes texts is given as --lora",
        )
    return model


def _complete(file: ModelFile, beside: ModelFile, known: Registry) -> Model:
    """Return the model of a trunk and its head, in two files.

    Raises
    ------
    MtpcoreError
        There is no head in the second, or it does not fit, or the trunk would compute something
        else with it: a drafter changes no text.
    """
    model = _make(merge(file, beside), known, True)
    if all(drafter.shape == "proposer" for drafter in model.drafters):
        raise ModelFileError(
            "the file holds no head that a plugin knows",
            where=str(beside.path),
            fix="give a file with the head of this model, or leave mtp_path= (--mtp-path) out"
            + (f"; left out: {known.absent}" if known.absent else ""),
        )
    check_drafters(model)
    account(model)
    if model.program() != _make(file, known, False).program():
        raise ModelFileError(
            "the head's file would change the model's own graph",
            where=str(beside.path),
            wanted="no metadata of the trunk besides what the model has",
            fix="convert the head from the same checkpoint again",
        )
    return model


def _load_with_sidecar(file: ModelFile, known: Registry, repack: bool) -> Model:
    """Return a model, with the best drafter beside it where it has no head itself."""
    spec = known.architectures.get(file.architecture)
    candidates = find_candidates(file.path, known.drafters)
    if spec is None or lacking(spec, file.tensors) or not candidates:
        return _make(file, known, True)
    head = _find_head(file, known)
    if head is None:
        trial = _Trial(file, known, repack)
        sidecars = trial.choose(candidates)
        model = trial.model or _make(file, known, True)
    else:
        reason = f"the model's own file holds the head {head!r}"
        sidecars = tuple(
            Sidecar(path=one.path, drafters=one.drafters, reason=reason) for one in candidates
        )
        model = _make(file, known, True)
    model.sidecars = sidecars
    return model


class _Trial:
    """Looks for the file beside a trunk that can draft for it.

    ``model`` is the trunk's, with the drafter where one fits; None before it was needed.
    """

    def __init__(self, file: ModelFile, known: Registry, repack: bool) -> None:
        self._file, self._known, self._repack = file, known, repack
        self.model: Model | None = None

    def choose(self, candidates: list[Candidate]) -> tuple[Sidecar, ...]:
        """Try the candidates, the best first, until one fits; return what became of each."""
        reasons = {
            one: f"not looked at: the limit is {MOST_FILES} files"
            for one in candidates[MOST_FILES:]
        }
        used: Candidate | None = None
        opened: list[tuple[Candidate, ModelFile]] = []
        for one in candidates[:MOST_FILES]:
            try:
                opened.append((one, open_model_file(one.path)))
            except ModelFileError as error:
                reasons[one] = spell_reason(error)
        for one, beside in sorted(opened, key=self._preference):
            if used is not None:
                reasons[one] = f"{used.path.name} is preferred"
                beside.close()
                continue
            try:
                self._try(beside)
                used = one
            except Exception as error:  # whatever a file from outside makes of a plugin
                reasons[one] = spell_reason(error)
                beside.close()
        return tuple(self._report(one, one is used, reasons.get(one, "")) for one in candidates)

    def _preference(self, pair: tuple[Candidate, ModelFile]) -> tuple[Any, ...]:
        one, beside = pair
        ranks = [_rank(spec) for spec in self._known.drafters if spec.name in one.drafters]
        return one.distance, min(ranks), precision(beside), one.path.name

    def _try(self, beside: ModelFile) -> None:
        """Make the model with what is in this file; raise what does not fit.

        A draft model is opened once more when it is linked, by whoever holds it then.
        """
        if beside.architecture == self._file.architecture:
            check_tokens(self._file, beside)
            self.model = _complete(self._file, beside, self._known)
            return
        if beside.architecture in self._known.architectures:
            raise ModelFileError(
                "a file for models of another architecture",
                where=str(beside.path),
                wanted=self._file.architecture,
                got=beside.architecture,
            )
        draft_model = _make_standalone(beside, Fields.of(beside), self._known)
        if not any(map(is_independent, draft_model.drafters)):
            check_tokens(self._file, beside)
        target = self.model or _make(self._file, self._known, True)
        self.model = target  # also where nothing fits
        check_draft_model(target, draft_model)
        target.draft_model_opener = partial(
            load_model, beside.path, repack=self._repack, plugins=self._known
        )
        beside.close()

    def _report(self, one: Candidate, is_used: bool, reason: str) -> Sidecar:
        if is_used:
            log.info("%s: the drafter is in %s", self._file.path, one.path)
        elif one.has_own_name and not reason.endswith("is preferred"):
            log.warning("%s is left out: %s", one.path, reason)
        return Sidecar(path=one.path, drafters=one.drafters, used=is_used, reason=reason)


def find_model(name: str | PathLike[str]) -> Path:
    """Return the path of a model by its name, or any other path as it is.

    A model of the package is found, one in another program's store, or in the hub's cache; what
    that does not hold is fetched, with a bar on standard error if that is a terminal.

    Raises
    ------
    ModelFileError
        There is no model of this name, or it cannot be fetched.
    """
    if isinstance(name, str) and (named := parse_name(name)) is not None:
        return open_named(named).path
    name = take_path(name) if not isinstance(name, str) else name
    if str(name) != "demo" and not str(name).startswith("demo:"):
        return take_path(name)
    demos = find_demos()
    if str(name) in demos:
        return demos[str(name)]
    fix = f"take one of these; a file of your own with this name is given as ./{name}"
    if find_spec(_MORE) is None:
        fix += "; further ones: pip install mtpcore-demos, or ./demos of the sources"
    raise ModelFileError(
        "there is no such model in the package", wanted=", ".join(demos), got=str(name), fix=fix
    )


def find_demos() -> dict[str, Path]:
    """Return the models that are installed with this package and ``mtpcore-demos``, by name."""
    more = find_spec(_MORE)
    folders = [_DATA, *map(Path, more.submodule_search_locations or () if more else ())]
    paths = (path for folder in folders for path in folder.glob("demo*.gguf"))
    return {path.stem.replace("-", ":", 1): path for path in sorted(paths, key=lambda p: p.stem)}


def _make(file: ModelFile, known: Registry, mtp: bool, adapter: Adapter | None = None) -> Model:
    refuse_other_kinds(file.metadata, str(file.path))
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
    fitted = _fit(known, fields, file, hparams, adapter is not None) if mtp else []
    blocks = {name: block for name in file.tensors if (block := block_of(name)) is not None}
    in_head = {name for name, block in blocks.items() if block >= hparams.n_layers}
    layout: Layout = "combined" if in_head else "trunk-only"
    if in_head and len(in_head) == len(blocks):
        layout = "mtp-only"
    left_out = set() if mtp else in_head
    tensors = {name: tensor for name, tensor in file.tensors.items() if name not in left_out}
    return Model(
        file,
        spec,
        hparams,
        fitted,
        tensors=tensors,
        layout=layout,
        keys_read=fields.asked,
        absent=known.absent,
        backends=known.backends,
        draft_adapter=adapter if any(one.spec.adapter for one in fitted) else None,
    )


def _fit(
    known: Registry, fields: Fields, file: ModelFile, hparams: Any, with_adapter: bool
) -> list[FittedDrafter]:
    """Return the drafters that the file holds, the most promising first.

    And those that draft with an adapter, where there is one.
    """
    fitted = []
    for spec in known.drafters:
        if spec.standalone or (spec.adapter and not with_adapter):
            continue
        if fits_architecture(spec, file.architecture):
            fields.asked.update(map(fields.key, named_keys(spec)))  # also where it has no tensors
        try:
            drafter = fit_drafter(spec, fields, file.tensors, hparams.n_layers, hparams)
        except Exception as error:  # a plugin's hparams may raise anything
            log.warning(
                "%s: drafter %s cannot be used: %s",
                file.path,
                spec.full_name,
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
        return Model(
            file,
            None,
            fitted[0].hparams,
            fitted,
            layout="mtp-only",
            keys_read=fields.asked,
            absent=known.absent,
            backends=known.backends,
        )
    architectures = {*known.architectures, *(a for s in mine for a in s.fit.architectures)}
    needs = known.unsupported.get(file.architecture)
    raise ModelFileError(
        f"this architecture needs {needs}" if needs else "no plugin knows this architecture",
        where=str(file.path),
        wanted=_some(sorted(architectures), file.architecture) or "a plugin that declares a trunk",
        got=repr(file.architecture),
        fix="install the plugin that declares it, or take another model"
        + (f"; left out: {known.absent}" if known.absent else ""),
    )


def _some(names: list[str], name: str) -> str:
    """Return names, of many those that are like a name."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    near = ", ".join(get_close_matches(name, names))
    return f"one of {len(names)}, which 'mtpcore plugins' lists" + f", such as {near}" * bool(near)


def _find_head(file: ModelFile, known: Registry) -> str | None:
    """Return the name of the head that a trunk's own file holds, or None."""
    spec = known.architectures.get(file.architecture)
    if spec is None:
        return None
    n_layers = read_hparams(spec, Fields.of(file), file.tensors).n_layers
    for drafter in known.drafters:
        has_graph = drafter.build is not None
        if has_graph and holds(drafter, file.architecture, file.tensors, n_layers):
            return drafter.name
    return None


def _refuse_second_head(file: ModelFile, known: Registry) -> None:
    head = _find_head(file, known)
    if head is not None:
        raise ModelFileError(
            f"the file already holds the head {head!r}",
            where=str(file.path),
            fix="leave mtp_path= (--mtp-path) out, or give a file with the trunk alone",
        )
