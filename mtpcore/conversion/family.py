"""Which family a checkpoint belongs to: the declarations of its trunk and of its heads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.conversion.declared import ask
from mtpcore.conversion.published import read_json
from mtpcore.declarations.checkpoint import Checkpoint, Config
from mtpcore.declarations.companion import Companion
from mtpcore.declarations.patterns import pattern
from mtpcore.declarations.spec import DrafterSpec, ModelSpec
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError, PluginError

__all__ = ["Family", "count_heads", "find_family", "further_folders", "read_config"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations by which one checkpoint is converted.

    Attributes
    ----------
    architecture : str
        What the file says in ``general.architecture``.
    main : Checkpoint
        The trunk's table, or that of a drafter with a file of its own.
    heads : Checkpoint or None
        The table of heads after the trunk, where the checkpoint has some.
    n_heads : int
        Of these, or of a drafter with a file of its own that has a block for each head.
    n_declared : int
        Heads that the configuration counts.
    standalone : bool
        Whether ``main`` is a drafter's.
    min_types, head_min_types : tuple of (str, str)
        Of the trunk, and of the heads.
    companion : Companion or None
        How the trunk's file beside it is read.
    """

    architecture: str
    main: Checkpoint
    heads: Checkpoint | None
    n_heads: int
    n_declared: int
    standalone: bool
    min_types: tuple[tuple[str, str], ...]
    head_min_types: tuple[tuple[str, str], ...] = ()
    companion: Companion | None = None

    @property
    def is_drafter(self) -> bool:
        """Whether there is no trunk: a drafter in a file of its own, or a trunk's heads alone."""
        return self.standalone or self.main.is_beside_target

    @property
    def tables(self) -> list[Checkpoint]:
        """All tables by which the checkpoint is converted."""
        return [t for t in (self.main, self.main.companion, self.heads) if t is not None]


def read_config(folder: Path, ignored: Collection[str] = ()) -> Mapping[str, Any]:
    """Return the whole ``config.json`` of a checkpoint; settings to be ignored are null.

    Parameters
    ----------
    folder : Path
    ignored : collection of str
        Names of settings, or paths to them. A name is one wherever it stands.

    Raises
    ------
    ModelFileError
        The file cannot be read, or has no such setting.
    """
    path, found = folder / "config.json", set[str]()

    def without(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if meant := {one for one in ignored if f"{at}{name}" == one or name == one}:
                found.update(meant)
                kept[name] = None
            else:
                inner = isinstance(value, dict)
                kept[name] = without(value, f"{at}{name}.") if inner else value
        return kept

    values: dict[str, Any] = read_json(path)
    values = without(values) if ignored else values
    if lacking := [one for one in ignored if one not in found]:
        raise ModelFileError(
            "no setting of this name is to be ignored",
            where=str(path),
            got=", ".join(lacking),
            fix="spell it as the file does, or leave it out",
        )
    return values


def find_family(
    values: Mapping[str, Any], names: Iterable[str], folder: Path, known: Registry
) -> Family:
    """Find the declarations for a checkpoint.

    Parameters
    ----------
    values : mapping
        Its configuration.
    names : iterable of str
        Its tensors.
    folder : Path
        For errors.
    known : Registry

    Raises
    ------
    ModelFileError
        No plugin declares how such a checkpoint is converted.
    PluginError
        Two plugins declare different heads that are both there.
    """
    offers = _offers(known)
    published = dict.fromkeys(names)
    fitting = [
        (spec, c) for spec, c in offers if _describes(c, values) and not _unmarked(c, published)
    ]
    if not fitting:
        raise _nearest(values, published, folder, offers) or _unknown(
            values, folder, [c for _, c in offers]
        )
    spec, main = max(fitting, key=lambda pair: (bool(pair[1].has), len(pair[1].requires)))
    architecture = min(spec.fit.architectures)
    config = open_config(main, values, folder)
    names = list(canonical_names(main, published))
    if isinstance(spec, DrafterSpec):
        return Family(
            architecture=architecture,
            main=main,
            heads=None,
            n_heads=count_heads(main.heads, names, 0, folder),
            n_declared=_declared(main, config),
            standalone=True,
            min_types=(),
            head_min_types=spec.min_types,
        )
    head_tables: dict[Checkpoint, tuple[int, DrafterSpec]] = {}
    n_declared = 0
    for drafter in known.drafters:
        checkpoint = drafter.checkpoint
        mine = not drafter.fit.architectures or architecture in drafter.fit.architectures
        if drafter.standalone or checkpoint is None or not mine:
            continue
        if _describes(checkpoint, values):
            n_heads = count_heads(checkpoint.heads, names, config.n_layers, folder)
            n_declared = max(n_declared, _declared(checkpoint, config))
            if n_heads:
                head_tables.setdefault(checkpoint, (n_heads, drafter))
    if len(head_tables) > 1:
        names_of = ", ".join(repr(drafter.name) for _, drafter in head_tables.values())
        raise PluginError(
            f"drafters {names_of} both declare heads that the checkpoint has", where=str(folder)
        )
    heads = next(iter(head_tables), None)
    n_heads = 0
    head_least: tuple[tuple[str, str], ...] = ()
    if heads is not None:
        n_heads, drafter = head_tables[heads]
        head_least = drafter.min_types
    return Family(
        architecture=architecture,
        main=main,
        heads=heads,
        n_heads=n_heads,
        n_declared=n_declared,
        standalone=False,
        min_types=spec.min_types,
        head_min_types=head_least,
        companion=spec.companion,
    )


def further_folders(values: Mapping[str, Any], folder: Path, known: Registry) -> list[str]:
    """Return the folders inside a checkpoint's that layouts of its family read, where they are."""
    named = {
        name: None
        for _, checkpoint in _offers(known)
        if checkpoint.folders and _describes(checkpoint, values)
        for name in checkpoint.folders
    }
    return [name for name in named if any((folder / name).glob("*.safetensors"))]


def _offers(known: Registry) -> list[tuple[ModelSpec | DrafterSpec, Checkpoint]]:
    """Return all layouts of what has a file of its own."""
    specs: list[ModelSpec | DrafterSpec] = [*known.models]
    specs += [spec for spec in known.drafters if spec.standalone]
    return [(spec, checkpoint) for spec in specs for checkpoint in _layouts(spec)]


def _layouts(spec: ModelSpec | DrafterSpec) -> list[Checkpoint]:
    """Return the layouts in which a family's checkpoints are published."""
    return [*([spec.checkpoint] if spec.checkpoint else []), *spec.layouts]


def _declared(checkpoint: Checkpoint, config: Config) -> int:
    """Return how many heads the configuration counts."""
    counts = [config.get(path) for path in checkpoint.counts]
    return max([0, *(n for n in counts if isinstance(n, int))])


def _describes(checkpoint: Checkpoint, values: Mapping[str, Any]) -> bool:
    named = not checkpoint.architectures or checkpoint.architectures & _named(values)
    return bool(named) and not _lacking(checkpoint, values)


def _named(values: Mapping[str, Any]) -> set[str]:
    """Return the architectures that a configuration names."""
    given = values.get("architectures")
    return {a for a in given if isinstance(a, str)} if isinstance(given, list | tuple) else set()


def _lacking(checkpoint: Checkpoint, values: Mapping[str, Any]) -> list[str]:
    """Return what a layout requires of a configuration that has not got it."""
    config = Config(values)

    def holds(wanted: str) -> bool:
        paths, _, said = wanted.partition("=")
        value = config.get(*paths.split("|"))
        return value == said if said else value is not None

    return [wanted for wanted in checkpoint.requires if not holds(wanted)]


def _unmarked(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    """Return which tensors of a layout's ``has`` are not among those of a checkpoint."""
    patterns = {mark: pattern(mark) for mark in checkpoint.marks}
    found = {mark for name in names for mark, one in patterns.items() if one.fullmatch(name)}
    return [mark for mark in checkpoint.marks if mark not in found]


def _nearest(
    values: Mapping[str, Any],
    tensors: Mapping[str, None],
    folder: Path,
    offers: list[tuple[ModelSpec | DrafterSpec, Checkpoint]],
) -> ModelFileError | None:
    """Return an error that says what a layout of the same architecture lacks; None: there is none.

    Of several it is the one that lacks least.
    """
    lacking = [
        (spec.name, [*_lacking(c, values), *_unmarked(c, tensors)])
        for spec, c in offers
        if c.architectures & _named(values)
    ]
    if not lacking:
        return None
    name, names = min(lacking, key=lambda pair: len(pair[1]))
    return ModelFileError(
        f"the checkpoint is nearly one of {name!r}, and lacks what tells such from others",
        where=str(folder / "config.json"),
        wanted=", ".join(one.replace("|", " or ") for one in names),
        got=f"architectures {sorted(_named(values))}",
        fix="take config.json and tensors from the published model",
    )


def _unknown(
    values: Mapping[str, Any], folder: Path, checkpoints: list[Checkpoint]
) -> ModelFileError:
    return ModelFileError(
        "no plugin declares how to convert this architecture",
        where=f"{folder / 'config.json'}: architectures",
        wanted=", ".join(sorted({a for c in checkpoints for a in c.architectures})),
        got=values.get("architectures", f"none, model_type {values.get('model_type')!r}"),
        fix="install the plugin that declares it",
    )


def open_config(
    checkpoint: Checkpoint, values: Mapping[str, Any], folder: Path, **fields: Any
) -> Config:
    """Return the configuration as a table's functions read it."""
    merged, read, defaults = dict(values), set[str](), dict(checkpoint.defaults)
    for name in checkpoint.nested:
        inner = Config(values).get(name)
        if isinstance(inner, Mapping):
            merged.update({k: v for k, v in inner.items() if merged.get(k) is None})
    file = str(folder / "config.json")
    if checkpoint.completed is not None:
        complete, given = checkpoint.completed, Config(merged, file, read=read)
        what = "the configuration cannot be completed"
        more = ask(lambda: {**complete(given)}, what=what, where=file)
        merged = more | {name: value for name, value in merged.items() if value is not None}
    layers = checkpoint.layers
    return Config(merged, file, layers=layers, read=read, defaults=defaults, **fields)


def canonical_names(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """Return names as a table spells them, each with the one in the checkpoint.

    Raises
    ------
    ModelFileError
        Two names mean the same.
    """
    prefixes = sorted(checkpoint.prefixes, key=lambda pair: -len(pair[0]))
    canonical: dict[str, str] = {}
    for name in names:
        begins = (pair for pair in prefixes if name.startswith(pair[0]))
        old, new = next(begins, ("", ""))
        spelled = new + name[len(old) :]
        if spelled in canonical:
            raise ModelFileError(
                "two tensors of the checkpoint mean the same",
                got=f"{canonical[spelled]} and {name}",
                fix="download the checkpoint again, without files of another layout",
            )
        canonical[spelled] = name
    return canonical


def count_heads(heads: str, names: Iterable[str], n_layers: int, folder: Path) -> int:
    """Count a checkpoint's heads by the tensor that each has.

    Raises
    ------
    ModelFileError
        They are not numbered one after the other, from 0 or after the trunk's layers.
    """
    if not heads:
        return 0
    kind, first = ("i", 0) if "{i}" in heads else ("n", n_layers)
    matches = (pattern(heads).fullmatch(name) for name in names)
    numbers = sorted(int(match[kind]) for match in matches if match)
    if numbers != list(range(first, first + len(numbers))):
        raise ModelFileError(
            "heads are not numbered one after the other",
            where=f"{folder}: {heads}",
            wanted=f"{first}, {first + 1}, ...",
            got=numbers,
            fix="download the checkpoint again, with all its files",
        )
    return len(numbers)
