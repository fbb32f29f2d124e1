"""Conversion of an adapter as PEFT saves it to an adapter's model file.

The file's layout is that of ``mtpcore.gguf.adapter``. What becomes of a matrix of the base model,
as rows in another order, becomes of the adapter's: B has the rows, A the columns. Which way a
matrix goes is found by the family's own change, of matrices whose values say where they stand.
Of what was trained as a whole the file has the difference from the base model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import take_path
from mtpcore.conversion.changed import change_tensors, changes_of
from mtpcore.conversion.family import (
    Family,
    canonical_names,
    find_family,
    open_config,
    read_config,
)
from mtpcore.conversion.metadata import family_metadata
from mtpcore.conversion.peft import (
    CONFIG,
    LowRank,
    OfExperts,
    SavedAdapter,
    WeightChange,
    read_saved,
)
from mtpcore.conversion.plan import (
    ConversionPlan,
    ExpertCount,
    Wish,
    apply_change,
    plan_tensor,
    wishes_of,
)
from mtpcore.conversion.published import PublishedTensor, convert_json, read_tensors
from mtpcore.conversion.values import read_values
from mtpcore.declarations.checkpoint import Config
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf.adapter import load_adapter
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.writer import write_model_file

__all__ = ["convert_adapter", "is_adapter"]

_MERGE = "merge it into the model as that is converted: mtpcore convert HF_DIR --lora ADAPTER_DIR"


def is_adapter(folder: str | PathLike[str]) -> bool:
    """Say whether a folder holds an adapter, and no model."""
    return (Path(folder) / CONFIG).is_file()


def convert_adapter(
    folder: str | PathLike[str],
    path: str | PathLike[str],
    *,
    base: str | PathLike[str] | None = None,
    outtype: str = "f32",
    plugins: Registry | None = None,
) -> None:
    """Make an adapter's file of a folder that PEFT saved.

    Parameters
    ----------
    folder : path
        With ``adapter_config.json`` and ``adapter_model.safetensors``.
    path : path
        The GGUF file to write; replaced where it exists.
    base : path, optional
        The folder of the base model's checkpoint, of which ``config.json`` is read, and tensors
        where the adapter replaces some. Default: what the adapter's configuration names, where that
        is a folder.
    outtype : str
        ``f32``, ``f16`` or ``bf16``.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.

    Raises
    ------
    ModelFileError
        Something that is no LoRA adapter, settings or tensors that a file does not hold, no base
        model, or one that no plugin declares. No file is left behind.
    """
    folder, path = take_path(folder), take_path(path)
    known = registry() if plugins is None else plugins
    if outtype not in ("f32", "f16", "bf16"):
        raise ModelFileError(
            "adapters are stored as floats",
            where="outtype",
            wanted="f32, f16, bf16",
            got=outtype,
            fix="name one of these",
        )
    saved = read_saved(folder)
    origin = _base_of(saved, base)
    values = read_config(origin)
    family = find_family(values, saved.changes, folder, known)
    config = open_config(family.main, values, folder, n_drafter_blocks=family.n_heads)
    metadata = family_metadata(family.architecture, [family.main], config)
    n_experts = convert_json(
        metadata.get(f"{family.architecture}.expert_count", 0), ExpertCount, config.file
    )
    tensors = _tensors_of(origin, values, family)
    changes = changes_of(saved, family, tensors, config)
    pairs: dict[str, LowRank] = {}
    left = {*changes}
    for wish in wishes_of(family, config, n_experts):
        found = {name: changes[name] for name in wish.names if name in changes}
        left.difference_update(found)
        if found and all(_is_pair(own) for own in found.values()):
            pairs[wish.tensor] = _place(wish, found, config, folder)
        elif found:
            difference = _difference(wish, saved, family, tensors, config)
            pairs |= {wish.tensor: difference} if difference is not None else {}
    if left:
        raise ModelFileError(
            "the adapter changes what the base model's checkpoint does not have",
            where=str(folder),
            got=", ".join(sorted(left)[:9]),
            fix="give the folder of the model that it was trained on: --base",
        )
    _write(path, family.architecture, pairs, saved, outtype)


def _is_pair(changes: tuple[WeightChange, ...]) -> bool:
    """Say whether a tensor is changed as adapters change matrices, without lengths of rows."""
    (first, *others) = changes
    return isinstance(first, LowRank | OfExperts) and not others


def _tensors_of(
    base: Path, values: Mapping[str, Any], family: Family
) -> dict[str, PublishedTensor] | None:
    """Return the base model's tensors by names as the table spells them, if they are there."""
    if not any(base.glob("*.safetensors")):
        return None
    tensors = read_tensors(base, values.get("transformers_weights"))
    return {one: tensors[name] for one, name in canonical_names(family.main, tensors).items()}


def _difference(
    wish: Wish,
    saved: SavedAdapter,
    family: Family,
    tensors: Mapping[str, PublishedTensor] | None,
    config: Config,
) -> LowRank | None:
    """Return what is added to a tensor that was trained as a whole; None: nothing.

    The rank is the number of rows that differ, or of columns. A vector is a matrix of one row.

    Raises
    ------
    ModelFileError
        The base model's tensors are not there, or it is a stack of experts.
    """
    if tensors is None:
        raise ModelFileError(
            "the adapter has a tensor that was trained as a whole, and the base model's own is not "
            "there to tell the difference",
            where=str(saved.folder),
            got=wish.tensor,
            fix="give the folder of the base model with its tensors: --base HF_DIR",
        )
    before = dict(tensors)
    if wish.rename.copy_of and wish.names[0] not in before:
        before[wish.names[0]] = before[wish.rename.copy_of]
    added = _values_of(wish, change_tensors([saved], family, tensors, config), config)
    added -= _values_of(wish, before, config)
    if added.ndim == 1:
        added = added[None]
    if added.ndim != 2:
        raise ModelFileError(
            "experts that were trained as a whole",
            where=str(saved.folder),
            got=wish.tensor,
            fix=_MERGE,
        )
    rows, columns = np.flatnonzero(added.any(axis=1)), np.flatnonzero(added.any(axis=0))
    if not len(rows):
        return None
    if len(rows) <= len(columns):
        return LowRank(added[rows], _chosen(rows, len(added)).T, 1.0)
    return LowRank(_chosen(columns, added.shape[1]), added[:, columns], 1.0)


def _chosen(ids: np.ndarray, n: int) -> np.ndarray:
    """Return a row for each id: 1 in its column, else 0."""
    rows = np.zeros((len(ids), n), np.float32)
    rows[np.arange(len(ids)), ids] = 1
    return rows


def _values_of(wish: Wish, tensors: Mapping[str, PublishedTensor], config: Config) -> np.ndarray:
    planned = plan_tensor(wish, tensors, config)
    pieces = [*read_values(planned, ConversionPlan((), {}, {}), config)]
    whole = np.stack(pieces) if planned.stacked else np.concatenate([*map(np.atleast_1d, pieces)])
    return whole.reshape(planned.shape).astype(np.float32)


def _base_of(saved: SavedAdapter, base: str | PathLike[str] | None) -> Path:
    """Return the folder with the base model's configuration."""
    named = saved.base if base is None else base
    if named is not None and (Path(named) / "config.json").is_file():
        return take_path(named)
    raise ModelFileError(
        "the base model's configuration is not there",
        where=str(saved.folder),
        wanted="the folder of its checkpoint, with config.json",
        got=None if named is None else str(named),
        fix="give it: --base HF_DIR",
    )


def _place(
    wish: Wish, changes: Mapping[str, Iterable[WeightChange]], config: Config, folder: Path
) -> LowRank:
    """Return halves as the file's tensor needs them, stacked where it is a stack of experts."""
    rename = wish.rename
    given = {name: change for name, own in changes.items() for change in own}
    if any(isinstance(one, LowRank) and one.magnitude is not None for one in given.values()):
        raise ModelFileError(
            "an adapter that sets the lengths of rows (DoRA), which no adapter's file holds",
            where=f"{folder}: {wish.names[0]}",
            fix=_MERGE,
        )
    if rename.further or rename.sources is not None or rename.blocks:
        raise ModelFileError(
            "an adapter of a matrix that the file makes of several tensors",
            where=f"{folder}: {wish.names[0]}",
            got=wish.tensor,
            fix=_MERGE,
        )
    pairs: list[LowRank | None] = []
    for name in wish.names:
        match given.get(name):
            case LowRank() as pair:
                pairs.append(_moved(wish, pair, config))
            case OfExperts(own):
                pairs.extend(_moved(wish, pair, config) for pair in own)
            case _:
                pairs.append(None)
    if "{e}" not in rename.source and not rename.is_stack:
        (only,) = pairs
        assert only is not None
        return only
    there = [pair for pair in pairs if pair is not None]
    rank = max(len(pair.a) for pair in there)
    a = np.zeros((len(pairs), rank, there[0].a.shape[1]), np.float32)
    b = np.zeros((len(pairs), there[0].b.shape[0], rank), np.float32)
    for i, each in enumerate(pairs):
        if each is not None:
            n = len(each.a)
            a[i, :n], b[i, :, :n] = each.a, each.b * np.float32(each.scale)
    return LowRank(a, b, 1.0)


def _moved(wish: Wish, pair: LowRank, config: Config) -> LowRank:
    """Return halves of the matrix that a change makes of the product of both.

    It may move rows and columns, leave some out, multiply each by a factor, and transpose it.
    """
    if wish.rename.change is None:
        return pair
    shape, name = (len(pair.b), pair.a.shape[1]), wish.names[0]

    def changed(values: ArrayLike) -> np.ndarray:
        given = np.broadcast_to(values, shape).astype(np.float32)
        return np.asarray(apply_change(wish.rename, given, config, name), np.float64)

    ones, nothing = changed(1.0), changed(0.0)
    from_row, from_column = changed(np.arange(shape[0])[:, None]), changed(np.arange(shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        rows, columns = from_row / ones, from_column / ones
    is_transposed = ones.ndim == 2 and _varies_along(rows, 1)
    if is_transposed:
        rows, columns, ones = rows.T, columns.T, ones.T
    of_rows, of_columns = (np.rint(one).astype(np.int64) for one in (rows[:, 0], columns[0]))
    factors = ones[:, 0], ones[0] / ones[0, 0]
    moved = (
        ones.ndim == 2
        and not nothing.any()
        and np.isfinite(rows).all()
        and np.allclose(rows, of_rows[:, None], rtol=0, atol=1e-3)
        and np.allclose(columns, of_columns, rtol=0, atol=1e-3)
        and np.allclose(ones, np.outer(*factors), rtol=1e-6, atol=0)
    )
    if not moved:
        raise ModelFileError(
            "an adapter of a matrix of which the file makes something else than a matrix with its "
            "rows and columns",
            where=name,
            got=wish.tensor,
            fix=_MERGE,
        )
    by_row, by_column = (one.astype(np.float32) for one in factors)
    b, a = pair.b[of_rows] * by_row[:, None], pair.a[:, of_columns] * by_column
    return LowRank(a, b, pair.scale) if not is_transposed else LowRank(b.T, a.T, pair.scale)


def _varies_along(values: np.ndarray, axis: int) -> bool:
    return bool((values != np.take(values, [0], axis)).any())


def _write(
    path: Path,
    architecture: str,
    pairs: Mapping[str, LowRank],
    saved: SavedAdapter,
    outtype: str,
) -> None:
    """Write the file, with one alpha for all where there is one."""
    alphas = {pair.scale * pair.a.shape[-2] for pair in pairs.values()}
    alpha = alphas.pop() if len(alphas) == 1 else 0.0
    tensors: dict[str, Any] = {}
    for name, pair in pairs.items():
        b = pair.b if alpha else pair.b * np.float32(pair.scale)
        a = pair.a
        if name == "token_embd.weight":  # see AdapterMatrix
            a, b = b, a.T
        tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"] = (
            np.ascontiguousarray(half, np.float32) for half in (a, b)
        )
    metadata: dict[str, MetadataValue] = {
        "general.type": "adapter",
        "general.name": saved.folder.resolve().name,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    if saved.base:
        name = Path(saved.base).name
        metadata |= {"general.base_model.count": 1, "general.base_model.0.name": name}
    with replacing(path) as part:
        write_model_file(part, architecture, metadata, tensors, outtype.upper())
        load_adapter(part).close()
