"""Conversion of RoPE settings from published configurations to metadata.

Plugins get these tables from ``mtpcore.plugin``; file names and metadata are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from mtpcore.declarations.checkpoint import Config, number
from mtpcore.errors import ModelFileError
from mtpcore.models.published import MetadataKeys, head_width

__all__ = [
    "FACTORED_ROPE_KEYS",
    "ROPE_KEYS",
    "exact_ramp",
    "layered_rope_keys",
    "llama3_factors",
    "long_context_factors",
    "of_full_attention",
    "rope_keys",
    "scaling_type",
]

N = TypeVar("N", float, float | None)
MetadataSource = Callable[[Config], object]

_ContextLength = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
_DESCRIBED = ("linear", "yarn")
_OF_SCALING = (
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
)
_UNSCALED = (None, "default", "none", "mrope")  # the axes of an M-RoPE position agree in text


_NEAR_BASES = (
    *("rope_local_base_freq", "rope_local_theta", "local_rope_theta", "rope_theta_local"),
    "swa_rope_theta",
)
"""Names of the base of layers with a window, where it is not within an object."""


def _scaling(name: str) -> tuple[str, str]:
    """Return the paths of a value of the rotation's scaling, new configurations' first."""
    return f"rope_parameters.{name}", f"rope_scaling.{name}"


def _scaling_type(config: Config) -> str | None:
    """Return the kind of scaling that metadata describes."""
    kind = config.get(*_scaling("rope_type"), *_scaling("type"))
    return kind if kind in _DESCRIBED else None


def _rotations(config: Config) -> Iterator[tuple[str, bool]]:
    """Yield the paths of objects that describe rotations, and whether all layers have that one."""
    for group in ("rope_parameters", "rope_scaling"):
        described = config.get(group)
        yield group, True
        for name, rotation in described.items() if isinstance(described, Mapping) else ():
            if isinstance(rotation, Mapping):
                yield f"{group}.{name}", False


def _kinds(config: Config) -> Iterator[tuple[str, Any, bool]]:
    """Yield each kind of scaling: the path where it stands, its name, and if all layers have it."""
    for at, of_all in _rotations(config):
        for path in (f"{at}.rope_type", f"{at}.type"):
            yield path, config.get(path), of_all


def _rope_base(config: Config) -> float:
    """Return the base of the rotation; bases that differ from layer to layer are refused."""
    bases: dict[str, float] = {}
    for at, is_of_all in _rotations(config):
        base = None if is_of_all else number(f"{at}.rope_theta")(config)
        if base is not None:
            bases[f"{at}.rope_theta"] = base
    names = ("rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta")
    of_all = None if bases and config.lacks(*names) else number(*names)(config)
    if of_all is not None:
        bases = {"rope_theta": of_all} | bases
    if len({*bases.values()}) > 1:
        raise ModelFileError(
            "the file would hold one base of the rotation for all layers",
            where=f"{config.file}: {', '.join(bases)}",
            wanted="equal values",
            got=", ".join(map(str, bases.values())),
            fix="take a checkpoint whose layers rotate alike",
        )
    return next(iter(bases.values()), 10000.0)


def scaling_type(
    described: Sequence[str] = _DESCRIBED, *elsewhere: str
) -> Callable[[Config], str | None]:
    """Return a source of ``{arch}.rope.scaling.type`` that refuses what a file would not hold.

    Parameters
    ----------
    described : sequence of str
        Kinds that the family's metadata describes.
    *elsewhere : str
        Kinds that its files hold otherwise, as ``llama3`` in ``long_context_factors``.

    Raises
    ------
    ModelFileError
        By the source: the configuration names a kind that would be lost.
    """

    def read(config: Config) -> str | None:
        for path, kind, of_all in _kinds(config):
            held = (*described, *elsewhere) if of_all else ()
            if kind not in (*_UNSCALED, *held):
                raise ModelFileError(
                    "the file would not hold this scaling of the rotation, and the model would "
                    "compute something else than the checkpoint",
                    where=f"{config.file}: {path}",
                    wanted=", ".join(("default", *held)),
                    got=kind,
                    fix="for texts of up to max_position_embeddings tokens, where it changes "
                    "nothing, write null in its place"
                    if kind == "dynamic"
                    else "take a checkpoint without it",
                )
        if all(kind in _UNSCALED for _, kind, _ in _kinds(config)):
            for at, _ in _rotations(config):  # they do nothing
                for name in _OF_SCALING:
                    config.get(f"{at}.{name}")
        return _scaling_type(config)

    return read


def _scaled(name: str) -> Callable[[Config], float | None]:
    """Return a source: a value of the scaling, as a float, where metadata describes the scaling."""
    read = number(*_scaling(name))
    return lambda config: _no_zero(config, name, read(config)) if _scaling_type(config) else None


def _no_zero(config: Config, name: str, value: N) -> N:
    """Return a value of the scaling; refuse 0, which only model files have for none."""
    if value == 0:
        raise ModelFileError(
            "no rotation can be scaled so",
            where=f"{config.file}: rope_scaling.{name}",
            wanted="more than 0",
            got=value,
            fix="take a checkpoint without it",
        )
    return value


def _original_context(config: Config) -> int | None:
    if not _scaling_type(config):
        return None
    declared = config.get(*_scaling("original_max_position_embeddings"), type=int)
    if declared is None:
        return int(config.require("max_position_embeddings", int))
    return int(_no_zero(config, "original_max_position_embeddings", declared))


def _magnitude(config: Config) -> float | None:
    """Return what a stated magnitude is beyond the one that YaRN's factor implies.

    It is stated as such, or as the quotient of what two ``mscale`` make of the factor.
    """
    if _scaling_type(config) != "yarn":
        return None
    factor = config.get(*_scaling("factor"), default=1.0, type=float)
    rise = 0.1 * math.log(factor) if factor > 1 else 0.0
    stated = config.get(*_scaling("attention_factor"), type=float)
    ours, all_dims = (
        config.get(*_scaling(name), type=float) for name in ("mscale", "mscale_all_dim")
    )
    if stated is None and ours and all_dims:
        stated = (1 + ours * rise) / (1 + all_dims * rise)
    return None if stated is None else float(stated) / (1 + rise)


def rope_keys(*elsewhere: str) -> tuple[tuple[str, MetadataSource], ...]:
    """Return ``ROPE_KEYS`` for families whose files hold further kinds of scaling otherwise."""
    return (
        ("{arch}.rope.freq_base", _rope_base),
        ("{arch}.rope.scaling.type", scaling_type(_DESCRIBED, *elsewhere)),
        ("{arch}.rope.scaling.factor", _scaled("factor")),
        ("{arch}.rope.scaling.original_context_length", _original_context),
        ("{arch}.rope.scaling.attn_factor", _magnitude),
        ("{arch}.rope.scaling.yarn_beta_fast", _scaled("beta_fast")),
        ("{arch}.rope.scaling.yarn_beta_slow", _scaled("beta_slow")),
    )


ROPE_KEYS: MetadataKeys = rope_keys()
"""Base of the rotation, and linear or YaRN scaling; other kinds are refused."""

FACTORED_ROPE_KEYS: MetadataKeys = rope_keys("llama3")
"""The same for families whose files get ``long_context_factors``."""


def of_full_attention(source: Callable[[Config], Any]) -> Callable[[Config], Any]:
    """Return a source that reads the rotation of the layers that see all as that of all layers."""
    at, near = "rope_parameters.full_attention", "rope_parameters.sliding_attention"

    def read(config: Config) -> Any:
        if config.get(at) is None and config.get(near) is None:
            return source(config)
        values = {**config.values, "rope_parameters": config.get(at, default={}, type=dict)}
        view = Config(values, config.file, layers=config.layers, defaults=config.defaults)
        found = source(view)
        config.read.update(path.replace("rope_parameters", at, 1) for path in view.read)
        return found

    return read


def layered_rope_keys(near_base: float | None = None) -> MetadataKeys:
    """Return the same for families whose layers with a window have a rotation of their own.

    It is not scaled.

    Parameters
    ----------
    near_base : float, optional
        Its base where the configuration does not say; default: that of the other layers.
    """
    at = "rope_parameters.sliding_attention"
    of_full = of_full_attention(_rope_base)

    def read(config: Config) -> object:
        kind = config.get(f"{at}.rope_type")
        if kind not in _UNSCALED:
            raise ModelFileError(
                "the file would not hold this scaling of the rotation of layers with a window",
                where=f"{config.file}: {at}.rope_type",
                wanted="default",
                got=kind,
                fix="take a checkpoint without it",
            )
        stated = number(f"{at}.rope_theta", *_NEAR_BASES)(config)
        return stated or near_base or of_full(config)

    keys = ((key, of_full_attention(source)) for key, source in rope_keys())
    return (*keys, ("{arch}.rope.freq_base_swa", read))


def exact_ramp(config: Config) -> bool | None:
    """Return False where YaRN's ramp begins and ends between pairs, as gpt-oss's; else no key."""
    rounded = config.get(*_scaling("truncate"), type=bool)
    return False if rounded is False else None


def long_context_factors(config: Config) -> np.ndarray | None:
    """Return the divisors of rotary frequencies of Llama 3's scaling, None where it is not used.

    float32[head_width / 2]: 1 for pairs that rotate at least ``high_freq_factor`` times within the
    original context, ``factor`` for those that rotate less than ``low_freq_factor`` times, between
    them the inverse mix of both.

    Raises
    ------
    ModelFileError
        Its values give no finite factors.
    """
    if not _is_llama3(config):
        return None
    return llama3_factors(config, head_width(config), _rope_base(config))


def _is_llama3(config: Config) -> bool:
    return bool(config.get(*_scaling("rope_type"), *_scaling("type")) == "llama3")


def llama3_factors(config: Config, width: int, base: float) -> np.ndarray | None:
    """Return the same of a rotation of so many values by a base; see ``long_context_factors``."""
    if not _is_llama3(config):
        return None
    factor = config.get(*_scaling("factor"), default=8.0, type=float)
    low = config.get(*_scaling("low_freq_factor"), default=1.0, type=float)
    high = config.get(*_scaling("high_freq_factor"), default=4.0, type=float)
    n_ctx = config.get(
        *_scaling("original_max_position_embeddings"), default=8192, type=_ContextLength
    )
    with np.errstate(all="ignore"):
        rotations = n_ctx * np.float64(base) ** -(np.arange(0, width, 2) / width) / (2 * np.pi)
        share = np.clip((rotations - low) / (high - low), 0.0, 1.0)
        factors: np.ndarray = (1 / ((1 - share) / factor + share)).astype(np.float32)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(
            "no rotation can have these factors",
            where=f"{config.file}: rope_theta, rope_scaling",
            got=f"base {base}, factor {factor}, low {low}, high {high}",
            fix="take config.json from the published model",
        )
    return factors
