"""Sampling settings by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

import msgspec

from mtpcore.errors import SamplingError, spell
from mtpcore.sampling import Sampling, check_sampling

__all__ = ["CALL_OPTIONS", "SamplingOptions", "read_sampling"]

CALL_OPTIONS = (
    "max_tokens",
    "stop",
    "ignore_eos",
    "sampling",
    "draft",
    "logprobs",
    "logits_processor",
)
"""The other options of a call, which somebody may have misspelt."""
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


def read_sampling(
    sampling: Sampling | None, options: Mapping[str, Any], default: Sampling | None
) -> Sampling:
    """Return the settings of a call.

    Parameters
    ----------
    sampling : Sampling, optional
        All settings at once.
    options : mapping
        Settings by name; those that are left out are the default's.
    default : Sampling, optional
        The settings of a call without any; by default ``Sampling()``, which draws a seed.

    Raises
    ------
    SamplingError
        Both were given, a value is out of range, or a name is unknown.
    """
    names = list(SamplingOptions.__annotations__)
    for name in options:
        if name not in names:
            nearest = get_close_matches(name, (*names, *CALL_OPTIONS), 1, cutoff=0.0)[0]
            raise SamplingError(
                "no such option",
                where=spell(name),
                fix=_FIX_OF_STREAM if name == "stream" else f"the nearest is {nearest}=",
            )
    if sampling is not None:
        check_sampling(sampling)
        if options:
            raise SamplingError(
                "settings are given twice",
                where="sampling=",
                got=", ".join(options),
                fix=f"put them into it: sampling=Sampling({next(iter(options))}=...)",
            )
        return sampling
    if default is None:
        return Sampling(**options)
    return msgspec.structs.replace(default, **options) if options else default
