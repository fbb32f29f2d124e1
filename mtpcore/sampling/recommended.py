"""Sampling settings where nobody gave any: those that a file recommends, else llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mtpcore.errors import SamplingError, spell
from mtpcore.sampling.settings import Sampling

__all__ = ["USUAL", "Recommended", "read_recommended", "read_sequence"]

USUAL: dict[str, float | int] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.0,
}
"""llama.cpp's settings for files that recommend none, by field of ``Sampling``."""

_PREFIX = "general.sampling."
_FIELDS = {
    "temp": ("temperature", 0.0, 1e30),
    "top_k": ("top_k", 0, 1e9),
    "top_p": ("top_p", -1e30, 1.0),
    "min_p": ("min_p", 0.0, 1e30),
    "xtc_probability": ("xtc_probability", 0.0, 1e30),
    "xtc_threshold": ("xtc_threshold", 0.0, 1.0),
    "penalty_repeat": ("repetition_penalty", -1e30, 1e30),
    "penalty_last_n": ("penalty_last_n", -1, 1e9),
}
"""By key: the field, and the bounds beyond which a value means what the bound means."""
_WHOLE = {"top_k", "penalty_last_n"}
_MISSING = {"mirostat"}
_DETAILS = {"mirostat_tau", "mirostat_eta", "sequence"}
_ORDER = {
    "penalties": ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    "dry": ("dry_multiplier",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc_probability",),
    "temperature": ("temperature", "dynatemp_range"),
}
"""In the order in which they are applied: llama.cpp's name of a sampler, and its fields."""
_SPELLINGS = {"temp": "temperature", "nucleus": "top_p", "typ": "typ_p"} | {
    name.replace("_", ""): name for name in _ORDER
}
_NEUTRAL = Sampling(seed=0)


class Recommended(msgspec.Struct, frozen=True):
    """What a file says of sampling.

    ``settings`` are fields of ``Sampling``; ``left_out`` are keys of the file that are not taken,
    each with the reason.
    """

    settings: dict[str, float | int] = {}
    left_out: dict[str, str] = {}

    @property
    def defaults(self) -> dict[str, float | int]:
        """The settings of a text for which nobody gave any."""
        return {**USUAL, **self.settings}


def read_recommended(metadata: Mapping[str, Any]) -> Recommended:
    """Return what ``general.sampling.*`` recommends, read as llama.cpp reads it.

    A number may be spelled as a text, and counts to six decimals. A value that makes no sense, or
    asks for a sampler that is not there, is left out by name.
    """
    given = {
        key.removeprefix(_PREFIX): metadata[key] for key in metadata if key.startswith(_PREFIX)
    }
    settings: dict[str, float | int] = {}
    left_out: dict[str, str] = {}
    for name, value in given.items():
        if name in _FIELDS:
            field, low, high = _FIELDS[name]
            number = min(max(_read_number(value), low), high)
            try:
                settings |= _read_field(field, int(number) if field in _WHOLE else number)
            except (SamplingError, ValueError):
                left_out[name] = f"{spell(value)} is no value for it"
        elif name in _MISSING and not _read_number(value) <= 0:
            left_out[name] = "there is no such sampler here"
        elif name not in _MISSING | _DETAILS:
            left_out[name] = "no such setting is known"
    if "sequence" in given:
        try:
            missing = read_sequence(str(given["sequence"]).split(";"))
        except SamplingError as error:
            left_out["sequence"] = f"the order here is {error.wanted}"
        else:
            known = {**USUAL, **settings}
            settings |= {f: off for f, off in missing.items() if known.get(f, off) != off}
    return Recommended(settings, {_PREFIX + name: reason for name, reason in left_out.items()})


def _read_number(value: object) -> float:
    """Return a number as llama.cpp spells it before it reads it; NaN for anything else."""
    try:
        return round(float(value), 6)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _read_field(field: str, number: float | int) -> dict[str, float | int]:
    fields: dict[str, Any] = {field: number}
    return {field: getattr(Sampling(**fields, seed=0), field)}


def read_sequence(samplers: Sequence[str]) -> dict[str, float | int]:
    """Return the settings that switch off what a sequence of samplers leaves out.

    Parameters
    ----------
    samplers : sequence of str
        llama.cpp's names. Others are passed over: they change nothing by default.

    Raises
    ------
    SamplingError
        The order is another one than that of the samplers here.
    """
    names = [name.strip().lower().replace("-", "_") for name in samplers]
    ours = [name for name in (_SPELLINGS.get(name, name) for name in names) if name in _ORDER]
    if ours != [name for name in _ORDER if name in ours]:
        raise SamplingError(
            "samplers run in one order", wanted=";".join(_ORDER), got=spell(";".join(samplers))
        )
    missing = [field for name, fields in _ORDER.items() if name not in ours for field in fields]
    return {field: getattr(_NEUTRAL, field) for field in missing}
