"""A trunk-only file completed by a file that holds the head."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from mtpcore.errors import ModelFileError
from mtpcore.gguf.file import ModelFile
from mtpcore.gguf.header import Metadata, MetadataValue

__all__ = ["merge"]

log = logging.getLogger("mtpcore")


def merge(trunk: ModelFile, head: ModelFile) -> ModelFile:
    """Unite two files of one model.

    Tensors that ``trunk`` lacks come from ``head``, and only the head sees them (``head_only``): an
    output matrix beside a trunk that is tied to its embedding table is the head's. The
    architecture's metadata keys that ``trunk`` lacks come from ``head``, too; of what both have,
    the trunk's holds. Tokenizer, chat template and name are the trunk's alone. Keys that count
    layers (``block_count``, ``nextn_predict_layers``) come from the file with more of them, as the
    layers of the head are numbered after those of the trunk; of lists of one entry a layer, which
    either file may have where the other has one number for all, each file gives its layers'.

    The result uses the maps of both files; closing it closes them.

    Raises
    ------
    ModelFileError
        If the architectures differ, the head was made for a trunk of another depth or width, or a
        tensor that both have is of another shape, as for another vocabulary.
    """
    if trunk.architecture != head.architecture:
        raise ModelFileError(
            "the files are of different architectures",
            where=f"{trunk.path} and {head.path}",
            wanted=trunk.architecture,
            got=head.architecture,
            fix="use the head that was converted from the same model; a drafter with an "
            "architecture of its own is linked: link(llm, draft_model=...), or -md FILE",
        )
    arch = trunk.architecture
    if _count(head, "nextn_predict_layers"):
        _agree(trunk, head, "depth of the trunk", _depth(trunk), _depth(head))
    width = f"{arch}.embedding_length"
    _agree(trunk, head, width, *(f.metadata.get(width) for f in (trunk, head)))
    for name in trunk.tensors.keys() & head.tensors.keys():
        shapes = (file.tensors[name].shape for file in (trunk, head))
        _agree(trunk, head, f"shape of {name}", *shapes)
    deeper = max(trunk, head, key=lambda file: _count(file, "block_count"))
    prefix = f"{arch}."
    told = {key: value for key, value in head.metadata.items() if key.startswith(prefix)}
    metadata = {**told, **trunk.metadata}
    if deeper is head:
        counts = (f"{prefix}block_count", f"{prefix}nextn_predict_layers")
        metadata |= {key: head.metadata[key] for key in counts if key in head.metadata}
    metadata |= {key: _joined(trunk, head, key) for key in _layered(trunk) | _layered(head)}
    _warn(trunk, head, metadata)
    brought = {name: t for name, t in head.tensors.items() if name not in trunk.tensors}
    tensors, files = {**trunk.tensors, **brought}, trunk.files + head.files
    return ModelFile(metadata, tensors, files, head_only=frozenset(brought))


def _count(file: ModelFile, name: str) -> int:
    value = file.metadata.get(f"{file.architecture}.{name}", 0)
    return value if type(value) is int else 0


def _depth(file: ModelFile) -> int:
    """Layers of the trunk; a file without the head's layers may count them all the same."""
    return _count(file, "block_count") - _count(file, "nextn_predict_layers")


def _layered(file: ModelFile) -> set[str]:
    """Keys whose values hold one entry for each layer."""
    prefix, n_layers = f"{file.architecture}.", _count(file, "block_count")
    return {
        key
        for key, value in file.metadata.items()
        if key.startswith(prefix)
        and isinstance(value, list | np.ndarray)
        and len(value) == n_layers
    }


def _joined(trunk: ModelFile, head: ModelFile, key: str) -> MetadataValue:
    """Return a key's entries, of the trunk's layers and of the head's; a file may have neither."""
    ours, theirs = (_entries(file, key) for file in (trunk, head))
    if ours is None or theirs is None:
        return trunk.metadata.get(key, head.metadata.get(key))  # type: ignore[return-value]
    entries = [*ours[: _depth(trunk)], *theirs[_depth(trunk) :]]
    if any(isinstance(entry, str | list | np.ndarray) for entry in entries):
        return entries
    return np.array(entries)


def _entries(file: ModelFile, key: str) -> list[Any] | None:
    """Return a key's entries for each layer, of one value as many; None for no or other entries."""
    value, n_layers = file.metadata.get(key), _count(file, "block_count")
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(plain, list):
        return plain if len(plain) == n_layers else None
    return None if plain is None else [plain] * n_layers


def _agree(trunk: ModelFile, head: ModelFile, what: str, wanted: object, got: object) -> None:
    if wanted is not None and got is not None and not _equal(wanted, got):
        raise ModelFileError(
            f"the files do not belong together: {what}",
            where=f"{trunk.path} and {head.path}",
            wanted=wanted,
            got=got,
            fix="use the head that was converted from the same model",
        )


def _warn(trunk: ModelFile, head: ModelFile, merged: Metadata) -> None:
    for key, value in head.metadata.items():
        said = (value, _entries(head, key))
        is_own = key.startswith(f"{head.architecture}.")
        if is_own and not any(_equal(one, merged[key]) for one in said):
            log.warning("%s and %s disagree on %s: the first holds", trunk.path, head.path, key)


def _equal(a: object, b: object) -> bool:
    """Say whether values of metadata are the same; lists may hold arrays."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)  # type: ignore[arg-type]
    return a == b
