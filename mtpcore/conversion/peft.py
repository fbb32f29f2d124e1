"""Adapters as PEFT saves them: what a folder says becomes of a base model's tensors.

Each change is of one tensor of the base model's checkpoint. ``mtpcore.conversion.adapter`` makes
an adapter's file of them, ``mtpcore.conversion.changed`` a model's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from mtpcore.conversion.published import PublishedTensor, read_json, read_tensors
from mtpcore.errors import ModelFileError

__all__ = [
    "CONFIG",
    "MERGE",
    "WeightChange",
    "LowRank",
    "NewRows",
    "NewValues",
    "OfExperts",
    "SavedAdapter",
    "Shift",
    "read_saved",
]

CONFIG = "adapter_config.json"
MERGE = "merge it into the model with PEFT (merge_and_unload), and convert that"
_TENSORS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_KEPT = ".modules_to_save.default"
_HALF = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
_OF_EMBEDDINGS = re.compile(r"(.+)\.lora_embedding_(A|B)(?:\.default)?")
_MAGNITUDE = re.compile(r"(.+)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?")
_SHIFT = re.compile(r"(.+)\.lora_B(?:\.default)?\.bias")
_ROWS = re.compile(r"(.+)\.token_adapter\.trainable_tokens_delta(?:\.default)?")

_COPY = ".base_layer.weight"
"""The end of names of the base model's own matrices, which PEFT saves beside adapters of tables of
embeddings and of the output: nothing trains them."""

_INFORMS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "task_type", "revision"),
        *("lora_dropout", "target_modules", "exclude_modules", "layers_to_transform"),
        *("layers_pattern", "init_lora_weights", "peft_version", "megatron_config"),
        *("megatron_core", "loftq_config", "eva_config", "corda_config", "arrow_config"),
        *("runtime_config", "lora_ga_config", "monteclora_config"),
        *("qalora_group_size", "velora_config", "trainable_token_indices_mapping"),
    )
)
"""Settings that change no number once the adapter is trained, or are told elsewhere."""
_PARAMETERS = ("gate_up_proj", "down_proj")
"""Stacks of experts as transformers 5 holds them, in the order in which its modules have them."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that change the base model's own weights, too."""


class LowRank(NamedTuple):
    """W [out, in] becomes W + ``scale`` b a, with a [rank, in] and b [out, rank].

    With a ``magnitude`` [out] each row is brought to that length (DoRA: Liu et al. 2024).
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    magnitude: np.ndarray | None = None


class OfExperts(NamedTuple):
    """Of a stack [experts, ...] each matrix is changed by its own pair, in the order of experts."""

    pairs: tuple[LowRank, ...]


class NewValues(NamedTuple):
    """The tensor is replaced."""

    tensor: PublishedTensor


class NewRows(NamedTuple):
    """Some rows are replaced, by those of a tensor [ids, ...]."""

    ids: tuple[int, ...]
    tensor: PublishedTensor


class Shift(NamedTuple):
    """Values are added: to a bias."""

    values: np.ndarray


WeightChange = LowRank | OfExperts | NewValues | NewRows | Shift
"""What becomes of one tensor."""


_Rank = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
_Alpha = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
_RowIds = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]], msgspec.Meta(min_length=1)
]


class _AdapterSettings(msgspec.Struct):
    """What of an adapter's configuration changes numbers."""

    peft_type: str
    r: _Rank
    lora_alpha: _Alpha
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    bias: str = "none"
    rank_pattern: dict[str, _Rank] = {}
    alpha_pattern: dict[str, _Alpha] = {}
    modules_to_save: list[str] | None = None
    target_parameters: list[str] = []
    trainable_token_indices: _RowIds | dict[str, _RowIds] | None = None
    ensure_weight_tying: bool = False
    init_lora_weights: bool | str = True
    base_model_name_or_path: str | None = None

    def scale(self, module: str, rank: int) -> float:
        """Return what B A of a module is multiplied by: alpha / rank, or alpha / sqrt(rank)."""
        alpha = _matched(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def rank(self, module: str) -> int:
        """Return the rank of a module's halves."""
        return _matched(self.rank_pattern, module, self.r)

    def parameters_of(self, module: str) -> list[str]:
        """Return which stacks of experts of a module are adapted, the outermost of them last."""
        named = (f".{module}.{one}" for one in _PARAMETERS)
        return [
            one.rpartition(".")[2]
            for one in named
            if any(one.endswith(f".{target}") for target in self.target_parameters)
        ]

    def replaces(self, name: str) -> bool:
        """Say whether a tensor of the base model was trained as a whole.

        PEFT takes whatever module's name ends in one that is given, and what is in that module; and
        an output matrix with a table that is tied to it.
        """
        module, _, last = name.rpartition(".")
        if self.bias != "none" and last.endswith("bias"):
            return True
        names = self.modules_to_save
        parts = module.split(".")
        around = [".".join(parts[: n + 1]) for n in range(len(parts))]
        is_named = any(one.endswith(key) for one in around for key in names or ())
        return is_named or bool(names and self.ensure_weight_tying)

    def rows_of(self, module: str) -> list[int] | None:
        """Return which rows of a table were trained, if the settings speak of it."""
        given = self.trainable_token_indices
        if not isinstance(given, dict):
            return given
        return next((ids for key, ids in given.items() if f".{module}".endswith(f".{key}")), None)


T = TypeVar("T")


def _matched(patterns: Mapping[str, T], module: str, otherwise: T) -> T:
    """Return the value of the first pattern that a module's name ends in."""
    found = (v for key, v in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return next(found, otherwise)


class SavedAdapter(NamedTuple):
    """A folder that PEFT saved.

    Attributes
    ----------
    folder : Path
    changes : dict of str to tuple of WeightChange
        By the name of the base model's tensor as its class has it, in the order in which they
        apply. Those of experts are by the name of the parameter that holds all of them, halves as
        PEFT has them.
    unspoken : frozenset of str
        Those of which the settings do not speak. PEFT saves tables of embeddings and of the output
        so (``save_embedding_layers``).
    is_tied : bool
        Whether what changes a table of embeddings changes an output matrix that is the same one,
        too.
    base : str or None
        What the configuration calls the base model.
    """

    folder: Path
    changes: dict[str, tuple[WeightChange, ...]]
    unspoken: frozenset[str]
    is_tied: bool
    base: str | None


def read_saved(folder: Path) -> SavedAdapter:
    """Read a folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

    Raises
    ------
    ModelFileError
        Something that is no LoRA adapter, settings or tensors that are not known, damaged files.
    """
    settings = _read_settings(folder)
    halves: dict[str, dict[str, PublishedTensor]] = {}
    changes: dict[str, list[WeightChange]] = {}
    embeddings, experts, kinds, unspoken = set(), set(), set(), set()
    for name, tensor in _read_tensors(folder).items():
        if name.endswith(_COPY):
            continue
        _check_values(tensor)
        own = name.removeprefix(_PREFIX).replace(_KEPT, "").replace(".base_layer", "")
        if found := _HALF.fullmatch(own) or _OF_EMBEDDINGS.fullmatch(own):
            module, stacks = found[1], settings.parameters_of(found[1])
            if stacks:  # each but the last is a layer around which the next one was put
                stack = stacks[: len(stacks) - name.count(".base_layer")][-1:]
                module = ".".join((module, *stack))
                experts.add(module)
            halves.setdefault(module, {})[found[2]] = tensor
            if ".lora_embedding_" in own:
                embeddings.add(module)
        elif settings.use_dora and (found := _MAGNITUDE.fullmatch(own)):
            halves.setdefault(found[1], {})["magnitude"] = tensor
        elif settings.lora_bias and (found := _SHIFT.fullmatch(own)):
            halves.setdefault(found[1], {})["bias"] = tensor
        elif found := _ROWS.fullmatch(own):
            changes.setdefault(f"{found[1]}.weight", []).append(_rows(found[1], tensor, settings))
            kinds.add("trainable_token_indices")
        elif settings.replaces(own):
            changes.setdefault(own, []).append(NewValues(tensor))
            kinds.add("bias" if own.endswith("bias") else "modules_to_save")
        else:
            changes.setdefault(own, []).append(NewValues(tensor))
            unspoken.add(own)
    for kind in ("modules_to_save", "trainable_token_indices"):
        if (named := getattr(settings, kind)) and kind not in kinds:
            raise ModelFileError(
                "tensors are missing of which the settings of the adapter speak",
                where=f"{folder / CONFIG}: {kind}",
                got=named,
                fix="save the adapter again with PEFT",
            )
    for module, parts in halves.items():
        if module in experts:
            changes.setdefault(module, []).append(_pairs_of_experts(module, parts, settings))
            continue
        pair = _pair(module, parts, settings, module in embeddings)
        changes.setdefault(f"{module}.weight", []).append(pair)
        if "bias" in parts:
            shift = np.float32(pair.scale) * parts["bias"].rows()
            changes.setdefault(f"{module}.bias", []).append(Shift(shift))
    return SavedAdapter(
        folder,
        {name: tuple(found) for name, found in changes.items()},
        frozenset(unspoken),
        settings.ensure_weight_tying or "trainable_token_indices" in kinds,
        settings.base_model_name_or_path,
    )


def _read_settings(folder: Path) -> _AdapterSettings:
    path = folder / CONFIG
    given: dict[str, Any] = read_json(path)
    known = _INFORMS.union(_AdapterSettings.__struct_fields__)
    refused = {
        name: value
        for name, value in given.items()
        if name not in known and value not in (None, False, [], {}, 0)
    }
    if refused:
        name = sorted(refused)[0]
        raise ModelFileError(
            "a setting that is not supported",
            where=f"{path}: {name}",
            got=refused[name],
            fix=MERGE,
        )
    try:
        said = {name: value for name, value in given.items() if value not in (None, [], {})}
        settings = msgspec.convert(said, _AdapterSettings)
        for pattern in (*settings.rank_pattern, *settings.alpha_pattern):
            re.compile(pattern)
    except (msgspec.ValidationError, re.error, OverflowError) as error:
        raise ModelFileError(
            "not the configuration of an adapter",
            where=str(path),
            got=error,
            fix="save the adapter again with PEFT",
        ) from None
    begun = str(settings.init_lora_weights).lower()
    strange = [t for t in settings.target_parameters if t.rpartition(".")[2] not in _PARAMETERS]
    for what, is_so, got in (
        ("an adapter of parameters that are no stacks of experts", strange, strange),
        ("an adapter of another kind than LoRA", settings.peft_type != "LORA", settings.peft_type),
        (
            "an adapter whose base model was changed, too, as it began",
            begun.startswith(_CHANGED_BASE),
            settings.init_lora_weights,
        ),
        (
            "an unknown kind of biases",
            settings.bias not in ("none", "all", "lora_only"),
            settings.bias,
        ),
    ):
        if is_so:
            raise ModelFileError(what, where=str(path), got=got, fix=MERGE)
    return settings


def _read_tensors(folder: Path) -> dict[str, PublishedTensor]:
    if not (folder / _TENSORS).is_file():
        raise ModelFileError(
            "the adapter's tensors are missing",
            where=str(folder),
            wanted=_TENSORS,
            fix="save the adapter with safe_serialization=True",
        )
    return read_tensors(folder, _TENSORS)


def _check_values(tensor: PublishedTensor) -> None:
    """Raise where there are none, or some are no finite fractions; read a little at a time."""
    step = max(1, (1 << 20) // max(1, math.prod(tensor.shape[1:])))
    starts = range(0, tensor.n_rows, step)
    is_sound = 0 not in tensor.shape and not tensor.is_integer
    if not is_sound or not all(
        np.isfinite(tensor.rows(at, min(at + step, tensor.n_rows))).all() for at in starts
    ):
        raise ModelFileError(
            "not a tensor of finite fractions",
            where=f"{tensor.file}: {tensor.name}",
            got=f"{tensor.kind}{list(tensor.shape)}",
            fix="save the adapter again with PEFT",
        )


def _pair(
    module: str, parts: Mapping[str, PublishedTensor], settings: _AdapterSettings, is_table: bool
) -> LowRank:
    where = f"{next(iter(parts.values())).file}: {module}"
    wanted = {"A", "B"} | ({"magnitude"} if settings.use_dora else set())
    wanted |= {"bias"} if settings.lora_bias and not is_table else set()
    if parts.keys() != wanted:
        raise ModelFileError(
            "a part of the change of a module is missing",
            where=where,
            wanted=", ".join(sorted(wanted)),
            got=", ".join(parts),
            fix="save the adapter again with PEFT",
        )
    a, b = parts["A"].rows(), parts["B"].rows()
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
    is_transposed = is_table or settings.fan_in_fan_out
    if settings.use_dora and is_transposed:
        raise ModelFileError(
            "an adapter that sets lengths (DoRA), of a table or of a layer of GPT-2's kind",
            where=where,
            wanted="such an adapter of plain linear layers alone",
            fix=MERGE,
        )
    if is_transposed:
        return LowRank(b.T, a.T, scale)
    return LowRank(a, b, scale, parts["magnitude"].rows() if settings.use_dora else None)


def _pairs_of_experts(
    module: str, parts: Mapping[str, PublishedTensor], settings: _AdapterSettings
) -> OfExperts:
    """Return the pair of each expert of a stack.

    PEFT saves A [experts * rank, in], expert after expert, and B [out, rank * experts], whose
    columns are those of the experts for each of the rank.
    """
    own = msgspec.structs.replace(settings, fan_in_fan_out=False, use_dora=False, lora_bias=False)
    both, rank = _pair(module, parts, own, False), settings.rank(module)
    if len(both.a) % rank:
        raise ModelFileError(
            "halves of a stack of experts are not a pair for each",
            where=f"{parts['A'].file}: {module}",
            wanted=f"rows of A in {rank}s",
            got=f"{list(both.a.shape)} and {list(both.b.shape)}",
            fix="save the adapter again with PEFT",
        )
    n_experts, scale = len(both.a) // rank, settings.scale(module, rank)
    each = range(n_experts)
    halves = ((both.a[e * rank :][:rank], both.b[:, e::n_experts]) for e in each)
    return OfExperts(tuple(LowRank(a, b, scale) for a, b in halves))


def _rows(module: str, tensor: PublishedTensor, settings: _AdapterSettings) -> NewRows:
    ids = settings.rows_of(module)
    if ids is None or len(ids) != tensor.n_rows or len({*ids}) < len(ids):
        raise ModelFileError(
            "rows of a table that the settings do not number",
            where=f"{tensor.file}: {tensor.name}",
            wanted=f"trainable_token_indices, {tensor.n_rows} of this table",
            got=ids,
            fix="save the adapter again with PEFT",
        )
    return NewRows(tuple(ids), tensor)
