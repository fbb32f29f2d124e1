"""What configurations say layer by layer, or in numbers that files have other keys for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from mtpcore.declarations.checkpoint import Config
from mtpcore.models.published import head_width
from mtpcore.models.rope_conversion import scaling_type

__all__ = [
    "LayerNumbers",
    "LayerTypes",
    "dense_before",
    "first_layers",
    "later_layers",
    "layer_kinds",
    "leading_dense",
    "named_scaling",
    "rotated_width",
    "sparse_after",
    "window_pattern",
]

LayerNumbers = Annotated[list[int], msgspec.Meta(max_length=1 << 10)]
LayerTypes = Annotated[
    list[Literal["full_attention", "sliding_attention"]], msgspec.Meta(max_length=1 << 10)
]
_MlpTypes = Annotated[list[Literal["dense", "sparse"]], msgspec.Meta(max_length=1 << 10)]
_DenseCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
_Period = Annotated[int, msgspec.Meta(ge=1, le=1 << 10)]


def layer_kinds(config: Config, period: int, *paths: str) -> list[bool]:
    """Return which layers have a window: as listed, or all but every ``period``-th.

    Parameters
    ----------
    config : Config
    period : int
        Where none of ``paths`` says another one.
    *paths : str

    Raises
    ------
    ValueError
        The list is not as long as there are layers.
    """
    kinds = config.get("layer_types", type=LayerTypes)
    period = config.get(*paths, default=period, type=_Period) if paths else period
    if kinds is None:
        return [(n + 1) % period != 0 for n in range(config.n_layers)]
    if len(kinds) != config.n_layers:
        raise ValueError(f"layer_types has {len(kinds)} entries, not {config.n_layers}")
    return [kind == "sliding_attention" for kind in kinds]


def window_pattern(period: int, *paths: str) -> Callable[[Config], list[bool] | None]:
    """Return a source of ``{arch}.attention.sliding_window_pattern``.

    It is not written where layers are as the family's files mean without it. See ``layer_kinds``.
    """

    def read(config: Config) -> list[bool] | None:
        kinds = layer_kinds(config, period, *paths)
        meant = [(n + 1) % period != 0 for n in range(config.n_layers)]
        return None if kinds == meant else kinds

    return read


def rotated_width(default: float, *paths: str) -> Callable[[Config], int]:
    """Return a source of ``{arch}.rope.dimension_count``: how much of a head is rotated.

    Parameters
    ----------
    default : float
        The share, where the configuration does not say.
    *paths : str
        Further names of the share.
    """
    names = (
        "rope_parameters.partial_rotary_factor",
        "rope_scaling.partial_rotary_factor",
        "partial_rotary_factor",
        *paths,
    )

    def read(config: Config) -> int:
        return int(head_width(config) * config.get(*names, default=default, type=float))

    return read


def dense_before(path: str) -> Callable[[Config], range]:
    """Return the first layers, as many as ``config[path]`` says."""
    return lambda config: range(min(config.require(path, int), config.n_layers))


def sparse_after(path: str) -> Callable[[Config], range]:
    """Return the layers after them."""
    return lambda config: range(config.require(path, int), config.n_layers)


def leading_dense(*paths: str) -> Callable[[Config], int]:
    """Return a source: how many layers have no experts, the first ones.

    Configurations count them, or name the kind of each layer, as transformers 5 does.

    Parameters
    ----------
    *paths : str
        The names of their number.

    Raises
    ------
    ValueError
        By the source: both are said and disagree, or dense layers follow one with experts.
    """

    def read(config: Config) -> int:
        kinds = config.get("mlp_layer_types", type=_MlpTypes)
        if kinds is None:
            return int(config.require("|".join((*paths, "mlp_layer_types")), _DenseCount))
        n: int = kinds.count("dense")
        told = n if config.lacks(*paths) else config.get(*paths, default=n, type=_DenseCount)
        if kinds[:n] != ["dense"] * n or told != n or len(kinds) != config.n_layers:
            raise ValueError(f"mlp_layer_types says other layers than the first {told} of them")
        return n

    return read


def first_layers(count: Callable[[Config], int]) -> Callable[[Config], range]:
    """Return the first layers, as many as ``count(config)``."""
    return lambda config: range(min(count(config), config.n_layers))


def later_layers(count: Callable[[Config], int]) -> Callable[[Config], range]:
    """Return the layers after them."""
    return lambda config: range(count(config), config.n_layers)


def named_scaling(config: Config) -> str:
    """Return the kind of scaling, for families whose files say that there is none, too."""
    return scaling_type()(config) or "none"
