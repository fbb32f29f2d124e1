"""The plan of a conversion: which tensors of a checkpoint become which tensors of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated

import msgspec
import numpy as np

from mtpcore.conversion.declared import ask
from mtpcore.conversion.family import Family
from mtpcore.conversion.parts import MTP, left_out_of
from mtpcore.conversion.published import PublishedTensor, convert_json
from mtpcore.declarations.checkpoint import Checkpoint, Config, Rename
from mtpcore.declarations.patterns import pattern
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf.types import BLOCKS, block_type

__all__ = [
    "ConversionPlan",
    "ExpertCount",
    "PlannedTensor",
    "Wish",
    "apply_change",
    "make_plan",
    "plan_tensor",
    "wishes_of",
]

SCALES = "_scale_inv"

_MOST_LAYERS = 1 << 10
_MOST_NAMES = 1 << 18  # three times what the largest published checkpoint has
_MOST_AXES = 4
ExpertCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
"""How many experts a configuration counts."""
_Layers = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]], msgspec.Meta(max_length=_MOST_LAYERS)
]

_Sources = Annotated[list[str], msgspec.Meta(min_length=1, max_length=_MOST_LAYERS)]


class PlannedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of the file and its sources.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : dtype
        Of its values before they are stored.
    sources : tuple of PublishedTensor
        One, or the experts that are stacked.
    rename : Rename
    n : int or None
        Its block.
    stacked : bool
        Whether its first axis counts experts.
    made : array, optional
        The values, where they follow from the configuration.
    also : tuple of PublishedTensor
        What the change gets as well.
    is_beside : bool
        Whether it is a tensor of the companion.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sources: tuple[PublishedTensor, ...]
    rename: Rename
    n: int | None = None
    stacked: bool = False
    made: np.ndarray | None = None
    also: tuple[PublishedTensor, ...] = ()
    is_beside: bool = False


class ConversionPlan(msgspec.Struct, frozen=True):
    """All tensors of the file in order, and of its companion, scales, and what was left out.

    ``scales`` are by the weight's name in the checkpoint; ``left_out`` maps names to the reason.
    """

    tensors: tuple[PlannedTensor, ...]
    scales: dict[str, PublishedTensor]
    left_out: dict[str, str]


class Wish(msgspec.Struct, frozen=True):
    """A tensor that a table asks for, with the names of its sources, further ones last."""

    tensor: str
    names: tuple[str, ...]
    rename: Rename
    n: int | None
    in_head: bool
    is_beside: bool = False


def make_plan(
    family: Family,
    config: Config,
    tensors: Mapping[str, PublishedTensor],
    n_experts: int,
    mtp: MTP,
) -> ConversionPlan:
    """Match a checkpoint's tensors with the family's tables.

    Parameters
    ----------
    family : Family
    config : Config
    tensors : mapping
        By name as the tables spell it.
    n_experts : int
        How many ``{e}`` counts.
    mtp : MTP

    Raises
    ------
    ModelFileError
        Tensors are missing or stand in no table; all are named. A stack of unequal shapes, a
        matrix of eight bits without its scales.
    """
    scales = {
        name.removesuffix(SCALES): tensor
        for name, tensor in tensors.items()
        if name.endswith(SCALES) and name.removesuffix(SCALES) in tensors
    }
    unknown = {n for n in tensors if n.removesuffix(SCALES) not in scales or n in scales}
    left_out: dict[str, str] = {}
    missing: list[str] = []
    chosen: dict[str, Wish] = {}
    for wish in wishes_of(family, config, n_experts):
        lacking = [name for name in wish.names if name not in tensors]
        unknown.difference_update(wish.names)
        may_lack = _optional(wish.rename, config)  # always asked: settings are accounted for
        if len(lacking) == len(wish.names) and may_lack:
            continue
        if reason := left_out_of(mtp, wish.n, wish.in_head):
            left_out.update({name: reason for name in wish.names if name in tensors})
            continue
        if lacking:
            missing += lacking
        elif _is_copy(wish, tensors):
            left_out[wish.names[0]] = f"a copy of {wish.rename.copy_of}"
        elif wish.tensor in chosen:
            other = chosen[wish.tensor].names[0]
            raise ModelFileError(
                f"{other} and {wish.names[0]} both become {wish.tensor}",
                where=config.file,
                fix="correct the plugin's Checkpoint",
            )
        else:
            chosen[wish.tensor] = wish
    left_out |= _dropped(family, sorted(unknown))
    left_out |= {name + SCALES: left_out[name] for name in scales if name in left_out}
    strange = unknown - left_out.keys()
    _refuse(missing, sorted(strange | {n + SCALES for n in strange if n in scales}), config)
    for wish in chosen.values():
        for name in wish.names:
            if name not in scales:
                _refuse_float8(tensors[name])
    planned = [plan_tensor(wish, tensors, config) for wish in chosen.values()]
    planned += _made(family.main, config)
    by_source = {tensors[name].name: one for name, one in scales.items()}
    return ConversionPlan(tuple(sorted(planned, key=_place)), by_source, left_out)


def wishes_of(family: Family, config: Config, n_experts: int) -> Iterator[Wish]:
    """Yield what the trunk's table asks for, then its companion's, then that of the heads."""
    trunk = range(config.n_layers)
    yield from _wishes(family.main, config, n_experts, trunk, False)
    if (beside := family.main.companion) is not None:
        for wish in _wishes(beside, config, n_experts, trunk, False):
            yield msgspec.structs.replace(wish, is_beside=True)
    if family.heads:
        blocks = range(config.n_layers, config.n_layers + family.n_heads)
        yield from _wishes(family.heads, config, n_experts, blocks, True)


def _dropped(family: Family, names: Sequence[str]) -> dict[str, str]:
    """Return why tensors are left out that the tables drop, by name."""
    dropped = [drop for table in (family.main, family.heads) if table for drop in table.dropped]
    reasons = {}
    for name in names:
        if drop := next((one for one in dropped if pattern(one).fullmatch(name)), ""):
            reasons[name] = "of no use" if drop == name else f"of no use: {drop}"
    return reasons


def _refuse_float8(tensor: PublishedTensor) -> None:
    """Raise where a tensor needs scales, which it does not have."""
    if tensor.kind == "F8_E4M3":
        raise ModelFileError(
            "a matrix of eight bits without its scales",
            where=f"{tensor.file}: {tensor.name}",
            wanted=tensor.name + SCALES,
            fix="download the checkpoint again, or take one that is not quantised",
        )


def _wishes(
    table: Checkpoint, config: Config, n_experts: int, blocks: range, in_head: bool
) -> Iterator[Wish]:
    n_names = 0
    for rename in table.tensors:
        also = rename.further
        if rename.sources is not None:
            yield Wish(rename.tensor, _sources(rename, config), rename, None, in_head)
            continue
        if "{n}" not in rename.tensor:
            yield Wish(rename.tensor, (rename.source, *also), rename, None, in_head)
            continue
        for i, n in enumerate(_layers(rename, config, blocks)):
            name = rename.source.replace("{n}", str(n)).replace("{i}", str(i))
            experts = range(n_experts // rename.n_of_group) if "{e}" in name else range(1)
            n_names += len(experts)
            if n_names > _MOST_NAMES:
                raise ModelFileError(
                    "the configuration asks for more tensors than any checkpoint has",
                    where=config.file,
                    wanted=f"at most {_MOST_NAMES} for all layers and experts",
                    got=f"{n_experts} experts, {config.n_layers} layers",
                    fix="take config.json from the published model",
                )
            names = [name.replace("{e}", str(e)) for e in experts]
            names += [one.replace("{n}", str(n)).replace("{i}", str(i)) for one in also]
            tensor = rename.tensor.replace("{n}", str(n))
            yield Wish(tensor, tuple(names), rename, n, in_head)


def _layers(rename: Rename, config: Config, blocks: range) -> Sequence[int]:
    """Return the blocks of which a rename speaks, as many as a model may have."""
    if rename.layers is None:
        return blocks
    layers = rename.layers
    where = f"{config.file}: for {rename.tensor}"
    # Not the whole of it: a range may be as long as any number in a file.
    indices = ask(
        lambda: [*islice(layers(config), _MOST_LAYERS + 1)],
        what="its layers cannot be computed",
        where=where,
    )
    return convert_json(indices, _Layers, where)


def _sources(rename: Rename, config: Config) -> tuple[str, ...]:
    """Return the names of the tensors that a rename stacks."""
    sources = rename.sources
    assert sources is not None
    where = f"{config.file}: for {rename.tensor}"
    names = ask(
        lambda: [*islice(sources(config), _MOST_LAYERS + 1)],
        what="its sources cannot be named",
        where=where,
    )
    return tuple(convert_json(names, _Sources, where))


def _optional(rename: Rename, config: Config) -> bool:
    if not callable(rename.optional):
        return rename.optional
    where = f"{config.file}: for {rename.tensor}"
    return bool(ask(rename.optional, config, what="whether it may be missing", where=where))


def _is_copy(wish: Wish, tensors: Mapping[str, PublishedTensor]) -> bool:
    other = tensors.get(wish.rename.copy_of)
    return other is not None and tensors[wish.names[0]].equals(other)


def _refuse(missing: list[str], unknown: list[str], config: Config) -> None:
    """Raise where anything is missing or unknown; the configuration may say how it came to that."""
    if not missing and not unknown:
        return
    method = config.get("quantization_config.quant_method")
    missing, unknown = ([_spelt(name) for name in names] for names in (missing, unknown))
    counts = [f"{len(missing)} missing"] * bool(missing) + [f"{len(unknown)} unknown"] * bool(
        unknown
    )
    said = ""
    fix = (
        "download the checkpoint again, install the plugin that knows its heads, or extend the "
        "plugin's Checkpoint"
    )
    if unknown and isinstance(method, str):  # codes and scales have names of their own
        said = f" (it says that it is quantised: {_spelt(method[:80])})"
        fix = (
            "take the checkpoint that is not quantised, or one in FP8 with scales of blocks "
            f"(weight_scale_inv), which is read; if it should be that, {fix}"
        )
    raise ModelFileError(
        f"the checkpoint's tensors are not those of the declarations{said}: {', '.join(counts)}",
        where=config.file,
        wanted=", ".join(dict.fromkeys(missing)) or None,
        got=", ".join(unknown) or None,
        fix=fix,
    )


def _spelt(name: str) -> str:
    """Return a name; one that could steer a terminal is escaped."""
    return name if name.isprintable() else repr(name)


def plan_tensor(
    wish: Wish, tensors: Mapping[str, PublishedTensor], config: Config
) -> PlannedTensor:
    """Return what becomes of a wish, whose sources are all among the tensors.

    Raises
    ------
    ModelFileError
        Sources that no file can hold, or of different shapes where they are stacked.
    """
    sources = tuple(tensors[name] for name in wish.names)
    n_sources = len(sources) - len(wish.rename.further)
    sources, also = sources[:n_sources], sources[n_sources:]
    rename = wish.rename
    shapes = {source.shape for source in sources}
    if len(shapes) > 1:
        what = "parts" if rename.sources else "experts"
        raise ModelFileError(
            f"{what} of different shapes",
            where=wish.tensor,
            got=sorted(shapes),
            fix="download the checkpoint again",
        )
    shape = sources[0].shape
    _check_axes(shape, sources[0], changes=rename.change is not None)
    n_stacked = shape[0] if rename.is_stack and shape else len(sources)
    trial = _trial(sources[0], also, rename, config)
    shape = _shape_of_values(trial, rename, sources[0])
    _check_axes(shape, sources[0])
    stacked = rename.is_stack or "{e}" in rename.source or rename.sources is not None
    return PlannedTensor(
        name=wish.tensor,
        shape=(n_stacked, *shape) if stacked else shape,
        dtype=trial.dtype,
        sources=sources,
        rename=rename,
        n=wish.n,
        stacked=stacked,
        also=also,
        is_beside=wish.is_beside,
    )


def _check_axes(shape: Sequence[int], source: PublishedTensor, *, changes: bool = False) -> None:
    """Raise ModelFileError where no file can hold such a tensor, unless that ``changes``."""
    if 0 in shape or (len(shape) > _MOST_AXES and not changes):
        raise ModelFileError(
            "no model file holds a tensor of this shape",
            where=f"{source.file}: tensor {source.name!r}",
            wanted=f"up to {_MOST_AXES} axes, none of them empty",
            got=list(shape),
            fix="download the checkpoint again",
        )


def _trial(
    source: PublishedTensor, also: Sequence[PublishedTensor], rename: Rename, config: Config
) -> np.ndarray:
    """Apply a change to integers, or to zeros that take no memory, to learn shape and type."""

    def one_of(tensor: PublishedTensor) -> np.ndarray:
        is_read = tensor.is_integer and not rename.blocks
        zero = np.uint8(0) if tensor.is_integer else np.float32(0)
        values = tensor.rows() if is_read else np.broadcast_to(zero, tensor.shape)
        return values[0] if rename.is_stack and values.ndim else values

    return apply_change(rename, one_of(source), config, source.name, *map(one_of, also))


def _shape_of_values(made: np.ndarray, rename: Rename, source: PublishedTensor) -> tuple[int, ...]:
    """Return the shape of the values that an array stands for: itself, or blocks."""
    if not rename.blocks:
        return made.shape
    kind = block_type(rename.blocks)
    if kind is None:
        raise PluginError("unknown type of blocks", where=rename.tensor, got=rename.blocks)
    n_values, n_bytes = BLOCKS[kind]
    if made.dtype != np.uint8 or not made.ndim or made.shape[-1] % n_bytes:
        raise ModelFileError(
            "no blocks are made of the tensor",
            where=f"{source.file}: tensor {source.name!r}",
            wanted=f"uint8 rows of {n_bytes} bytes a block",
            got=f"{made.dtype}{list(made.shape)}",
            fix="download the checkpoint again",
        )
    return (*made.shape[:-1], made.shape[-1] // n_bytes * n_values)


def apply_change(
    rename: Rename, values: np.ndarray, config: Config, name: str, *also: np.ndarray
) -> np.ndarray:
    """Apply a rename's change.

    Raises
    ------
    ModelFileError
        The change fails, as on a tensor whose shape is not what it expects.
    """
    if rename.change is None:
        return values
    return np.asarray(
        ask(
            rename.change,
            values,
            config,
            *also,
            what=f"cannot make {rename.tensor} of it, of shape {list(values.shape)}",
            where=f"{config.file}: tensor {name}",
        )
    )


def _made(table: Checkpoint, config: Config) -> list[PlannedTensor]:
    what = "the tensor cannot be computed"
    tensors = {
        name: ask(make, config, what=what, where=f"{config.file}: for {name}")
        for name, make in table.made
    }
    return [
        PlannedTensor(
            name=name,
            shape=values.shape,
            dtype=values.dtype,
            sources=(),
            rename=Rename("", name),
            made=values,
        )
        for name, values in tensors.items()
        if values is not None
    ]


def _place(tensor: PlannedTensor) -> tuple[int, str]:
    """Order: what belongs to no block, then block by block."""
    match = re.match(r"blk\.(\d+)\.", tensor.name)
    return (int(match[1]) if match else -1), ""
