"""A model file's metadata from a checkpoint's configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGML_QUANT_VERSION, GGUFWriter, size_label
from gguf import Metadata as Card

from mtpcore.conversion.declared import ask
from mtpcore.conversion.plan import PlannedTensor
from mtpcore.conversion.published import PublishedTensor, check_small_files
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.writer import take_values

__all__ = ["family_metadata", "general_metadata", "held_metadata", "table_metadata"]

_CACHED = re.compile(r"models--[^/]*?--([^/]+)/snapshots/[^/]+")
"""A checkpoint in the hub's cache, and what it is called."""


def family_metadata(
    architecture: str, tables: Sequence[Checkpoint], config: Config
) -> dict[str, MetadataValue]:
    """Return the keys that the tables declare, and how many blocks there are.

    Raises
    ------
    ModelFileError
        The configuration lacks a value, or one has no place in a model file.
    """
    metadata: dict[str, MetadataValue] = {f"{architecture}.block_count": config.n_blocks}
    for table in tables:
        metadata |= table_metadata(architecture, table, config)
    if config.n_drafter_blocks:
        metadata[f"{architecture}.nextn_predict_layers"] = config.n_drafter_blocks
    return metadata


def table_metadata(
    architecture: str, table: Checkpoint, config: Config
) -> dict[str, MetadataValue]:
    """Return the keys that one table declares.

    Raises
    ------
    ModelFileError
        As ``family_metadata``.
    """
    read = {key: _read(key, source, config) for key, source in table.metadata}
    return {
        key.replace("{arch}", architecture): value
        for key, value in read.items()
        if value is not None
    }


def _read(key: str, source: Any, config: Config) -> Any:
    if isinstance(source, str):
        value = config[source]
    elif isinstance(source, Key):
        value = config.get(source.name, default=source.default)
    else:
        where = f"{config.file}: for {key}"
        value = ask(source, config, what="the value cannot be computed", where=where)
    plain = (bool, int, float, str, np.ndarray, np.generic)
    listed = isinstance(value, list | tuple) and all(isinstance(v, plain) for v in value)
    if value is None or isinstance(value, plain):
        return value
    if not listed:
        raise ModelFileError(
            "not a value for a model file",
            where=f"{config.file}: for {key}",
            got=value,
            fix="take config.json from the published model",
        )
    return list(value)


def held_metadata(
    table: Checkpoint, config: Config, tensors: Mapping[str, PublishedTensor]
) -> tuple[dict[str, MetadataValue], set[str]]:
    """Return the keys whose values are tensors of the checkpoint, and the names of these.

    Raises
    ------
    ModelFileError
        A tensor is missing, or holds something else than one finite number.
    """
    taken: set[str] = set()

    def value(name: str) -> float:
        tensor = tensors.get(name)
        taken.add(name)
        got: float | str = "no such tensor"
        if tensor is not None:
            is_one = math.prod(tensor.shape) == 1
            got = tensor.rows().item() if is_one else f"shape {list(tensor.shape)}"
        if isinstance(got, str) or not math.isfinite(got):
            raise ModelFileError(
                "not a number where the checkpoint should hold one",
                where=f"{tensor.file if tensor else config.file}: tensor {name!r}",
                wanted="one finite value",
                got=got,
                fix="download the checkpoint again",
            )
        return float(got)

    held: dict[str, MetadataValue] = {}
    for key, source in table.numbers:
        by_layer = [value(source.replace("{n}", str(n))) for n in range(config.n_layers)]
        held[key] = [*by_layer] if "{n}" in source else by_layer[0]
    return held, taken


def general_metadata(
    folder: Path, tensors: Sequence[PlannedTensor], file_type: int
) -> dict[str, MetadataValue]:
    """Return what the model is called and how large it is, as llama.cpp's converter finds it out.

    The ``gguf`` package reads the model card and the configuration for it.
    """
    check_small_files(folder)
    writer = GGUFWriter(None, "none")
    for tensor in tensors:
        n_bytes = 4 * int(np.prod(tensor.shape, dtype=np.int64))
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), n_bytes)
    total, shared, experts, n_experts = writer.get_total_parameter_count()
    try:
        with _called(folder) as place:
            card = Card.load(None, place, None, total)
        card.name = card.name or (folder.resolve() if place == folder else place).name
        if card.size_label is None and total > 0:
            card.size_label = size_label(total, shared, experts, n_experts)
        writer.add_type("model")
        card.set_gguf_meta_model(writer)
        metadata = {
            key: value
            for key, value in take_values(writer).items()
            if key != "general.architecture" and not key.startswith("general.sampling.")
        }
    except Exception as error:  # whatever malformed files make of their parsers
        raise ModelFileError(
            "malformed model card or generation_config.json",
            where=str(folder),
            got=str(error)[:200],
            fix="correct README.md and generation_config.json, or remove them: they are optional",
        ) from error
    strange = {k: v for k, v in metadata.items() if not _is_plain(k, v)}
    if strange:
        raise ModelFileError(
            "malformed model card",
            where=f"{folder}: {', '.join(strange)}",
            wanted="texts",
            got=list(strange.values()),
            fix="correct README.md, or remove it: it is optional",
        )
    return metadata | {
        "general.file_type": file_type,
        "general.quantization_version": GGML_QUANT_VERSION,
    }


def _is_plain(key: str, value: object) -> bool:
    """Say whether a value of the card is what its key is for."""
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    kinds = str if key.endswith("name") else (str, int, float, np.generic, np.ndarray)
    return isinstance(value, kinds)


@contextmanager
def _called(folder: Path) -> Iterator[Path]:
    """Give a folder under the name of its model: the hub's cache calls it after a commit."""
    whole = folder.resolve()
    cached = _CACHED.fullmatch("/".join(whole.parts[-3:]))
    if cached is None:
        yield folder
        return
    with TemporaryDirectory() as place:
        link = Path(place) / cached[1]
        link.symlink_to(whole, target_is_directory=True)
        yield link
