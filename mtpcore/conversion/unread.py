"""What a configuration says and a conversion would drop: every setting is accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtpcore.conversion.harmless import CONFIGURATION
from mtpcore.declarations.checkpoint import Checkpoint, Config
from mtpcore.errors import ModelFileError

__all__ = ["refuse_unread", "unread"]

_LONGEST = 60  # characters of a value


def refuse_unread(tables: Sequence[Checkpoint], config: Config) -> None:
    """Raise where a setting has another value than the graphs compute with, or nothing reads it.

    To be called when everything has been read. Settings of null, false, zero or nothing pass: what
    nobody reads is off then.

    Raises
    ------
    ModelFileError
        All such settings are named, with their values.
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
        *(path for table in tables for paths in table.requires for path in paths.split("|")),
    }
    nested = [name for table in tables for name in table.nested]
    for path, value in _settings(config.values, nested):
        if not config.has_read(path) and not any(_covers(name, path) for name in declared):
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
    if not isinstance(value, Mapping):
        if value is not None:
            yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}", inner)


def _covers(name: str, path: str) -> bool:
    """Say whether a declared name is a setting's, or that of an object around it."""
    return f".{name}." in f".{path}."
