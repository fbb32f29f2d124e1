"""Conversion of an adapter as PEFT saves it to an adapter's model file.

The file's layout is that of ``mtpcore.gguf.adapter``. What becomes of a matrix of the base model,
as rows in another order, becomes of the adapter's: B has the rows, A the columns. Which way a
matrix goes is found by the family's own change, of matrices whose values say where they stand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from mtpcore.boundary.paths import take_path
from mtpcore.conversion.family import canonical_names, find_family, open_config, read_config
from mtpcore.conversion.metadata import family_metadata
from mtpcore.conversion.plan import ExpertCount, Wish, apply_change, wishes_of
from mtpcore.conversion.published import PublishedTensor, convert_json, read_json, read_tensors
from mtpcore.declarations.checkpoint import Config
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf.adapter import load_adapter
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.writer import write_model_file

__all__ = ["CONFIG", "convert_adapter", "is_adapter"]

CONFIG = "adapter_config.json"
_TENSORS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_HALF = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
_OF_EMBEDDINGS = re.compile(r"(.+)\.lora_embedding_(A|B)(?:\.default)?")

_COPY = ".base_layer.weight"
"""The end of names of the base model's own matrices, which PEFT saves beside adapters of tables of
embeddings and of the output: nothing trains them."""

_INFORMS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "task_type", "revision"),
        *("lora_dropout", "target_modules", "exclude_modules", "layers_to_transform"),
        *("layers_pattern", "init_lora_weights", "peft_version", "megatron_config"),
        *("megatron_core", "loftq_config", "eva_config", "corda_config", "arrow_config"),
        *("runtime_config", "lora_ga_config", "ensure_weight_tying", "monteclora_config"),
        *("qalora_group_size", "velora_config", "trainable_token_indices_mapping"),
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("fan_in_fan_out", "bias", "modules_to_save"),
    )
)
"""Settings that are read elsewhere, or change no number once the adapter is trained."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that change the base model's own weights, too."""


class _AdapterSettings(msgspec.Struct):
    """What of an adapter's configuration changes numbers."""

    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    bias: str = "none"
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str = True
    base_model_name_or_path: str | None = None

    def scale(self, module: str, rank: int) -> float:
        """Return what B A of a module is multiplied by: alpha / rank, or alpha / sqrt(rank)."""
        alpha = next(
            (a for key, a in self.alpha_pattern.items() if re.match(rf"(.*\.)?({key})$", module)),
            self.lora_alpha,
        )
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


class _Pair(NamedTuple):
    """Both halves of what is added to a matrix [out, in]: a [rank, in], b [out, rank]."""

    a: np.ndarray
    b: np.ndarray
    scale: float


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
        The folder of the base model's checkpoint, of which ``config.json`` is read. Default: what
        the adapter's configuration names, where that is a folder.
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
    settings = _read_settings(folder)
    modules = _read_modules(folder, settings)
    values = read_config(_base_of(folder, base, settings))
    names = [f"{module}.weight" for module in modules]
    family = find_family(values, names, folder, known)
    config = open_config(family.main, values, folder, n_drafter_blocks=family.n_heads)
    metadata = family_metadata(family.architecture, [family.main], config)
    n_experts = convert_json(
        metadata.get(f"{family.architecture}.expert_count", 0), ExpertCount, config.file
    )
    spelled = canonical_names(family.main, names)
    pairs: dict[str, _Pair] = {}
    left = {*spelled}
    for wish in wishes_of(family, config, n_experts):
        found = [name for name in wish.names if name in spelled]
        if found:
            left.difference_update(found)
            given = {one: modules[spelled[one].removesuffix(".weight")] for one in found}
            pairs[wish.tensor] = _place(wish, given, config, folder)
    if left:
        raise ModelFileError(
            "the adapter changes what the base model's checkpoint does not have",
            where=str(folder),
            got=", ".join(sorted(left)[:9]),
            fix="give the folder of the model that it was trained on: --base",
        )
    _write(path, family.architecture, pairs, settings, folder, outtype)


def _read_settings(folder: Path) -> _AdapterSettings:
    path = folder / CONFIG
    given: dict[str, Any] = read_json(path)
    refused = {
        name: value
        for name, value in given.items()
        if name not in _INFORMS and value not in (None, False, [], {}, 0)
    }
    if refused:
        name = sorted(refused)[0]
        raise ModelFileError(
            "a setting that no adapter's file holds",
            where=f"{path}: {name}",
            got=refused[name],
            fix="merge the adapter into the model with PEFT (merge_and_unload), and convert that",
        )
    try:
        settings = msgspec.convert(
            {k: v for k, v in given.items() if v is not None}, _AdapterSettings
        )
    except msgspec.ValidationError as error:
        raise ModelFileError(
            "not the configuration of an adapter",
            where=str(path),
            got=error,
            fix="save the adapter again with PEFT",
        ) from None
    begun = str(settings.init_lora_weights).lower()
    for what, is_so, got in (
        ("an adapter of another kind than LoRA", settings.peft_type != "LORA", settings.peft_type),
        ("an adapter that changes biases", settings.bias != "none", settings.bias),
        ("an adapter that replaces whole modules", settings.modules_to_save, "modules_to_save"),
        (
            "an adapter whose base model was changed, too, as it began",
            begun.startswith(_CHANGED_BASE),
            settings.init_lora_weights,
        ),
    ):
        if is_so:
            raise ModelFileError(
                what,
                where=str(path),
                got=got if got != "modules_to_save" else settings.modules_to_save,
                fix="merge it into the model with PEFT (merge_and_unload), and convert that",
            )
    return settings


def _read_modules(folder: Path, settings: _AdapterSettings) -> dict[str, _Pair]:
    """Return the halves of each module, as matrices of the base model are."""
    if not (folder / _TENSORS).is_file():
        raise ModelFileError(
            "the adapter's tensors are missing",
            where=str(folder),
            wanted=_TENSORS,
            fix="save the adapter with safe_serialization=True",
        )
    halves: dict[str, dict[str, PublishedTensor]] = {}
    embeddings = set()
    for name, tensor in read_tensors(folder, _TENSORS).items():
        if name.endswith(_COPY):
            continue
        found = _HALF.fullmatch(name) or _OF_EMBEDDINGS.fullmatch(name)
        if found is None:
            raise ModelFileError(
                "a tensor that no adapter's file holds",
                where=f"{folder / _TENSORS}: {name}",
                wanted="lora_A and lora_B of modules",
                fix="merge the adapter into the model with PEFT (merge_and_unload), and convert "
                "that",
            )
        module = found[1].removeprefix(_PREFIX).replace(".base_layer", "")
        halves.setdefault(module, {})[found[2]] = tensor
        if ".lora_embedding_" in name:
            embeddings.add(module)
    return {
        module: _pair(module, both, settings, module in embeddings)
        for module, both in halves.items()
    }


def _pair(
    module: str, both: Mapping[str, PublishedTensor], settings: _AdapterSettings, is_table: bool
) -> _Pair:
    where = f"{next(iter(both.values())).file}: {module}"
    if both.keys() != {"A", "B"}:
        raise ModelFileError(
            "half of a pair is missing",
            where=where,
            got=", ".join(both),
            fix="save the adapter again with PEFT",
        )
    a, b = both["A"].rows(), both["B"].rows()
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise ModelFileError(
            "halves of a pair do not fit each other",
            where=where,
            wanted="[rank, in] and [out, rank]",
            got=f"{list(a.shape)} and {list(b.shape)}",
            fix="save the adapter again with PEFT",
        )
    scale = settings.scale(module, len(a))
    # A table has a row for each token, and a layer of GPT-2's kind a column for each output.
    return _Pair(b.T, a.T, scale) if is_table or settings.fan_in_fan_out else _Pair(a, b, scale)


def _base_of(folder: Path, base: str | PathLike[str] | None, settings: _AdapterSettings) -> Path:
    """Return the folder with the base model's configuration."""
    named = settings.base_model_name_or_path if base is None else base
    if named is not None and (Path(named) / "config.json").is_file():
        return take_path(named)
    raise ModelFileError(
        "the base model's configuration is not there",
        where=str(folder),
        wanted="the folder of its checkpoint, with config.json",
        got=None if named is None else str(named),
        fix="give it: --base HF_DIR",
    )


def _place(wish: Wish, given: Mapping[str, _Pair], config: Config, folder: Path) -> _Pair:
    """Return halves as the file's tensor needs them, stacked where it is a stack of experts."""
    rename = wish.rename
    if rename.further or rename.sources is not None or rename.blocks or rename.is_stack:
        raise ModelFileError(
            "an adapter of a matrix that the file makes of several tensors",
            where=f"{folder}: {wish.names[0]}",
            got=wish.tensor,
            fix="merge it into the model with PEFT (merge_and_unload), and convert that",
        )
    if "{e}" not in rename.source:
        return _moved(wish, given[wish.names[0]], config)
    pairs = [None if n not in given else _moved(wish, given[n], config) for n in wish.names]
    there = [pair for pair in pairs if pair is not None]
    rank = max(len(pair.a) for pair in there)
    a = np.zeros((len(pairs), rank, there[0].a.shape[1]), np.float32)
    b = np.zeros((len(pairs), there[0].b.shape[0], rank), np.float32)
    for i, pair in enumerate(pairs):
        if pair is not None:
            n = len(pair.a)
            a[i, :n], b[i, :, :n] = pair.a, pair.b * np.float32(pair.scale)
    return _Pair(a, b, 1.0)


def _moved(wish: Wish, pair: _Pair, config: Config) -> _Pair:
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
            fix="merge it into the model with PEFT (merge_and_unload), and convert that",
        )
    by_row, by_column = (one.astype(np.float32) for one in factors)
    b, a = pair.b[of_rows] * by_row[:, None], pair.a[:, of_columns] * by_column
    return _Pair(a, b, pair.scale) if not is_transposed else _Pair(b.T, a.T, pair.scale)


def _varies_along(values: np.ndarray, axis: int) -> bool:
    return bool((values != np.take(values, [0], axis)).any())


def _write(
    path: Path,
    architecture: str,
    pairs: Mapping[str, _Pair],
    settings: _AdapterSettings,
    folder: Path,
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
        "general.name": folder.resolve().name,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    if settings.base_model_name_or_path:
        name = Path(settings.base_model_name_or_path).name
        metadata |= {"general.base_model.count": 1, "general.base_model.0.name": name}
    write_model_file(path, architecture, metadata, tensors, outtype.upper())
    load_adapter(path).close()
