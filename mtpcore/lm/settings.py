"""The options of a text, sampling settings by name among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

import msgspec

from mtpcore.boundary.options import find_unknown
from mtpcore.decoding import REQUEST_DEFAULTS, RequestOptions
from mtpcore.errors import SamplingError, spell
from mtpcore.sampling import Sampling, check_sampling

__all__ = ["TEXT_DEFAULTS", "SamplingOptions", "TextOptions", "read_options", "read_sampling"]

_FIX_OF_STREAM = (
    "pieces come from LM.stream(), a stream of noise from sampling=Sampling(stream=...)"
)


class SamplingOptions(TypedDict, total=False):
    """The fields of ``Sampling`` as keywords of a call; not ``stream``, which has two meanings."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None


class TextOptions(RequestOptions, SamplingOptions, total=False):
    """What the methods of ``LM`` take by name; ``LM.generate`` documents it."""


TEXT_DEFAULTS = cast(
    TextOptions,
    {
        **REQUEST_DEFAULTS,
        "max_tokens": None,
        **{
            field.name: field.default
            for field in msgspec.structs.fields(Sampling)
            if field.name in SamplingOptions.__annotations__
        },
    },
)
"""What an option is where it is left out, in an LM that was made of a model."""


def read_options(given: TextOptions, default: Sampling | None) -> RequestOptions:
    """Return the options of a request.

    Parameters
    ----------
    given : TextOptions
        Those of a call.
    default : Sampling, optional
        As in ``read_sampling``.

    Raises
    ------
    SamplingError
        As ``read_sampling``, or a name is unknown.
    """
    unknown = find_unknown(given, TEXT_DEFAULTS)
    if unknown:
        name, nearest = unknown
        raise SamplingError(
            "no such option",
            where=spell(name),
            fix=_FIX_OF_STREAM if name == "stream" else f"the nearest is {nearest}=",
        )
    options: dict[str, Any] = {"max_tokens": TEXT_DEFAULTS["max_tokens"], **given}
    named = {name: options.pop(name) for name in given if name in SamplingOptions.__annotations__}
    options["sampling"] = read_sampling(options.get("sampling"), named, default)
    return cast(RequestOptions, options)


def read_sampling(
    sampling: Sampling | None, named: Mapping[str, Any], default: Sampling | None
) -> Sampling:
    """Return the settings of a call.

    Parameters
    ----------
    sampling : Sampling, optional
        All settings at once.
    named : mapping
        Settings by name; those that are left out are the default's.
    default : Sampling, optional
        The settings of a call without any; by default ``Sampling()``, which draws a seed.

    Raises
    ------
    SamplingError
        Both were given, or a value is out of range.
    """
    if sampling is not None:
        check_sampling(sampling)
        if named:
            raise SamplingError(
                "settings are given twice",
                where="sampling=",
                got=", ".join(named),
                fix=f"put them into it: sampling=Sampling({next(iter(named))}=...)",
            )
        return sampling
    if default is None:
        return Sampling(**named)
    return msgspec.structs.replace(default, **named) if named else default
