"""What a configuration says and a conversion would drop: every setting is accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtpcore.conversion.harmless import CONFIGURATION
from mtpcore.declarations.checkpoint import Checkpoint, Config
from mtpcore.errors import ModelFileError

__all__ = ["refuse_unread", "unread"]

_LONGEST = 60  # characters of a value
_DEEPEST = 16  # objects in each other


def refuse_unread(tables: Sequence[Checkpoint], config: Config) -> None:
    """Raise where a setting has another value than the graphs compute with, or nothing reads it.

    To be called when everything has been read. Settings of null, false, zero or nothing pass: what
    nobody reads is off then.

    Raises
    ------
    ModelFileError
        All such settings are named, with their values. Or objects are nested too deeply.
    """
    wrong = {
        path: (value, taken)
        for table in tables
        for path, taken in table.constants
        if (value := config.get(path)) is not None and value not in taken
    }
    lost = {path: value for path, value in unread(tables, config) if value}
    lost |= {path: value for path, (value, _) in wrong.items()}
    if not lost:
        return
    said = "; ".join(
        f"{path}: {' or '.join(map(repr, taken))}" for path, (_, taken) in wrong.items()
    )
    raise ModelFileError(
        "the model file would not hold what the configuration says, and the model might compute "
        f"something else than the checkpoint: {len(lost)} settings",
        where=config.file,
        wanted=said or None,
        got=", ".join(f"{path} = {str(value)[:_LONGEST]}" for path, value in lost.items()),
        fix="take a checkpoint without them; where you know that one changes nothing, as for texts "
        f"shorter than a window, convert with --ignore {next(iter(lost))}",
    )


def unread(tables: Sequence[Checkpoint], config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the settings, by path, that nothing has read and nobody declares harmless."""
    declared = {
        *CONFIGURATION,
        *(name for table in tables for names, _ in table.harmless for name in names.split()),
        *(path for table in tables for path, _ in table.constants),
        *(path for table in tables for path in (*table.counts, table.layers)),
        *(path for t in tables for one in t.requires for path in one.split("=")[0].split("|")),
    }
    nested = [name for table in tables for name in table.nested]
    for path, value in _settings(config.values, nested):
        parts = path.split(".")
        if len(parts) > _DEEPEST:
            raise ModelFileError(
                "objects in objects",
                where=f"{config.file}: {path[:_LONGEST]}",
                wanted=f"at most {_DEEPEST} of them",
                fix="take config.json from the published model",
            )
        if not config.has_read(path) and declared.isdisjoint(_names(parts)):
            yield path, value


def _settings(values: Mapping[str, Any], nested: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield paths and values; of objects laid open only what has another value than theirs."""
    for name, value in values.items():
        if name not in nested or not isinstance(value, Mapping):
            yield from _leaves(name, value)
            continue
        for key, inner in value.items():
            if values.get(key) != inner:
                yield from _leaves(f"{name}.{key}", inner)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or path.count(".") >= _DEEPEST:
        if value is not None:
            yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}", inner)


def _names(parts: Sequence[str]) -> set[str]:
    """Return by which names a setting, or an object around it, may be declared."""
    n = len(parts)
    return {".".join(parts[i:j]) for i in range(n) for j in range(i + 1, n + 1)}
