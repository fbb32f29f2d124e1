"""Rotary position embedding (RoPE): the frequency of each pair of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from mtpcore.errors import ModelFileError
from mtpcore.gguf.metadata import Fields

__all__ = ["Rope", "interleaved_axes", "plain_frequencies", "section_axes", "yarn"]

Base = Annotated[float, msgspec.Meta(ge=1, le=1e30)]
_RopeFactor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]
_RopeCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
_YARN = ("ext_factor", "beta_fast", "beta_slow", "log_multiplier")
Style = Literal["halves", "pairs"]


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """How heads are rotated, as ``GraphBuilder.rope`` takes it.

    ``axes`` holds the axis of the position that rotates each pair.
    """

    frequencies: tuple[float, ...]
    style: Style
    axes: tuple[int, ...]
    magnitude: float = 1.0

    @property
    def n_axes(self) -> int:
        """Axes of a position: 4 where sections of pairs have axes of their own (M-RoPE), else 1."""
        return 4 if any(self.axes) else 1

    @classmethod
    def read(
        cls,
        fields: Fields,
        head_width: int,
        style: Style,
        base_key: str = "freq_base",
        *,
        width_key: str = "dimension_count",
        interleaved: bool = False,
        turns_fourth: bool = False,
        rounds_ramp: bool = True,
        raises_scores: bool = False,
        scaled: bool = True,
    ) -> Rope:
        """Read base, scaling and sections from ``{arch}.rope.*``.

        Parameters
        ----------
        fields : Fields
        head_width : int
            Of which all is rotated where the file does not say how much.
        style : str
            ``halves`` or ``pairs``; see ``GraphBuilder.rope``.
        base_key : str
            The key of the base, without ``{arch}.rope.``.
        width_key : str
            That of how much of a head is rotated.
        interleaved : bool
            Whether the axes of a position take turns (``interleaved_axes``) or each has pairs side
            by side (``section_axes``).
        turns_fourth : bool
            Whether the fourth axis turns its pairs. In other families everything stands at 0 there:
            text, images and sound.
        rounds_ramp : bool
            Whether YaRN's ramp begins and ends at whole pairs; see ``yarn``.
        raises_scores : bool
            Whether a multiplier of YaRN's raises scores, and the rotation not; see ``Mla.read``.
        scaled : bool
            Whether ``{arch}.rope.scaling.*`` counts. Of families with a sliding window it describes
            the layers that see all.

        Raises
        ------
        ModelFileError
            A value is out of range, or the kind of scaling is not known or not supported.
        """
        prefix = "{arch}.rope."
        width = fields.get(prefix + width_key, _RopeCount, head_width)
        if width % 2 or not 0 < width <= head_width:
            raise fields.error(
                prefix + width_key,
                "not the rotated part of a head",
                wanted=f"an even number up to {head_width}",
                got=width,
            )
        base = fields.get(prefix + base_key, Base, 10000.0)
        frequencies, magnitude = plain_frequencies(base, width), 1.0
        if scaled:
            frequencies, magnitude = _scale(fields, frequencies, base, rounds_ramp, raises_scores)
        sections: list[int] = fields.get(prefix + "dimension_sections", list[_RopeCount], [])
        axes = (interleaved_axes if interleaved else section_axes)(sections, width // 2)
        frequencies = tuple(
            0.0 if axis == 3 and not turns_fourth else frequency
            for frequency, axis in zip(frequencies, axes, strict=True)
        )
        return cls(frequencies=frequencies, style=style, axes=axes, magnitude=magnitude)


def _scale(
    fields: Fields,
    frequencies: tuple[float, ...],
    base: float,
    rounds_ramp: bool,
    raises_scores: bool,
) -> tuple[tuple[float, ...], float]:
    """Return frequencies and magnitude as ``{arch}.rope.scaling.*`` says."""
    prefix = "{arch}.rope.scaling."
    original = prefix + "original_context_length"  # where it is not said, the file's own
    # Files of 2023 name no kind, and the factor by a key of its own.
    kind = fields.get(prefix + "type", str, "linear")
    old_factor = fields.get("{arch}.rope.scale_linear", _RopeFactor, 1.0)
    factor = fields.get(prefix + "factor", _RopeFactor, old_factor)
    magnitude = fields.get(prefix + "attn_factor", _RopeFactor, 1.0)
    if kind == "longrope":  # its factors are tensors; see ``n_ctx_short`` of the hyper-parameters
        _check_factor(fields, prefix + "yarn_attn_factor", 1.0)
        fields.dismiss(original, *(f"{prefix}yarn_{name}" for name in _YARN))
    if kind in ("linear", "longrope"):
        return tuple(f / factor for f in frequencies), magnitude
    if kind == "yarn":
        slowed, rise = yarn(
            frequencies,
            base,
            factor,
            fields.require(original if original in fields else "{arch}.context_length", _RopeCount),
            fields.get(prefix + "yarn_beta_fast", _RopeFactor, 32.0),
            fields.get(prefix + "yarn_beta_slow", _RopeFactor, 1.0),
            rounds_ramp=rounds_ramp,
        )
        _check_factor(fields, prefix + "yarn_ext_factor", 1.0)
        _check_factor(fields, prefix + "yarn_attn_factor", rise)
        if raises_scores and fields.get(prefix + "yarn_log_multiplier", float, 0.0):
            return slowed, magnitude
        return slowed, magnitude * rise
    if kind == "none":
        return frequencies, magnitude
    raise fields.error(
        prefix + "type", "unknown scaling", wanted="none, linear, longrope, yarn", got=kind
    )


def _check_factor(fields: Fields, key: str, implied: float) -> None:
    """Check that a factor of YaRN's changes nothing: converters write them, engines pass over them.

    One that is not set may be negative in files that llama.cpp saves.
    """
    value = fields.get(key, float, 1.0)
    if value >= 0 and not (value == 1 or math.isclose(value, implied, rel_tol=1e-4)):
        raise fields.error(key, "this factor is not supported", wanted=f"{implied:g}", got=value)


def plain_frequencies(base: float, width: int) -> tuple[float, ...]:
    """Return base^(-2i / width) for each of the width / 2 pairs (Su et al., RoFormer, 2021)."""
    return tuple(base ** (-2 * i / width) for i in range(width // 2))


def yarn(
    frequencies: Sequence[float],
    base: float,
    factor: float,
    n_ctx_original: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    *,
    rounds_ramp: bool = True,
) -> tuple[tuple[float, ...], float]:
    """Return frequencies and magnitude for a context ``factor`` times longer than trained.

    Pairs that rotate more than ``beta_fast`` times within the original context keep their
    frequency, those with less than ``beta_slow`` rotations are divided by ``factor``, with a ramp
    between (Peng et al., YaRN, 2023). ``rounds_ramp`` lets the ramp begin and end at whole
    pairs, as most models were trained.
    """
    width = 2 * len(frequencies)

    def pair_with_rotations(times: float) -> float:
        """Return the (fractional) pair that rotates so often within the original context."""
        return width * math.log(n_ctx_original / (times * 2 * math.pi)) / (2 * math.log(base))

    if n_ctx_original < 1 or base <= 1:
        raise ModelFileError(
            "cannot scale the rotation",
            where="rope.scaling",
            wanted="a base above 1 and an original context length of 1 or more",
            got=(base, n_ctx_original),
        )
    low, high = pair_with_rotations(beta_fast), pair_with_rotations(beta_slow)
    if rounds_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(width - 1.0, high)
    scaled = []
    for i, frequency in enumerate(frequencies):
        slow = min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        scaled.append(frequency * (1 - slow) + frequency / factor * slow)
    return tuple(scaled), 1 + 0.1 * math.log(factor) if factor > 1 else 1.0


def section_axes(sections: Sequence[int], n_pairs: int) -> tuple[int, ...]:
    """Return the position axis of each pair; sections count pairs for each axis in turn."""
    if not any(sections):
        return (0,) * n_pairs
    _check_sections(sections)
    axes = [axis for axis, n in enumerate(sections) for _ in range(n)]
    return tuple(axes[i % len(axes)] for i in range(n_pairs))


def interleaved_axes(sections: Sequence[int], n_pairs: int) -> tuple[int, ...]:
    """Return the position axis of each pair where axes 0, 1 and 2 take turns (Qwen3-VL, Qwen3.5).

    Parameters
    ----------
    sections : sequence of int
        Pairs of each axis: axis a has the first ``sections[a]`` of pairs a, a + 3, a + 6, ... Axis
        3 has the rest, whatever its section says. Without sections all pairs are axis 0's.
    n_pairs : int
        Of a head.

    Raises
    ------
    ModelFileError
        More than four sections, or sizes out of range.
    """
    if not any(sections):
        return (0,) * n_pairs
    _check_sections(sections)
    sizes = [*sections, 0, 0, 0][:3]
    return tuple(k % 3 if k < 3 * sizes[k % 3] else 3 for k in range(n_pairs))


def _check_sections(sections: Sequence[int]) -> None:
    if len(sections) > 4 or not 0 < sum(sections) <= 1 << 16:
        raise ModelFileError(
            "not the sections of a rotation", where="rope.dimension_sections", got=list(sections)
        )
