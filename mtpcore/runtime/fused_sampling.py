"""Tokens chosen while logits are computed: reads the choices, or makes them if a plan did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import Choices
from mtpcore.boundary.arrays import is_whole
from mtpcore.errors import BatchError, SamplingError, spell

__all__ = ["choose_rows", "read_choices"]

I32 = NDArray[np.int32]
NO_TOKENS: I32 = np.zeros(0, np.int32)


def read_choices(choices: Choices, n_outputs: int) -> Choices:
    """Return a copy of the choices, one for each output.

    Raises
    ------
    BatchError, SamplingError
        An output has no entry, or its choice is no race.
    """
    if not isinstance(choices, Choices):
        raise BatchError("process() takes Choices", where="choices", got=type(choices).__name__)
    try:
        samplers, indices = tuple(choices.samplers), list(choices.indices)
    except Exception as error:  # whatever a caller's object raises
        got = spell(error, str)
        raise BatchError("no sequences of entries", where="choices", got=got) from error
    if not len(samplers) == len(indices) == n_outputs:
        raise BatchError(
            "one choice an output",
            where="choices",
            wanted=n_outputs,
            got=f"{len(samplers)} samplers, {len(indices)} indices",
        )
    _check_ids(choices.token_ids)
    for i, (sampler, index) in enumerate(zip(samplers, indices, strict=True)):
        if sampler is None:
            indices[i] = 0
            continue
        _check_race(sampler, index, f"choices, output {i}")
        indices[i] = int(index)
    return Choices(samplers=samplers, indices=indices, token_ids=choices.token_ids)


def _check_ids(ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32:
        raise BatchError("token_ids are no array of int32", where="choices", got=type(ids).__name__)
    if ids.ndim != 1 or not ids.flags.c_contiguous:
        raise BatchError(
            "token_ids do not lie side by side",
            where="choices",
            wanted="int32[n_logits]",
            got=f"shape {ids.shape}, strides {ids.strides}",
            fix="pass np.ascontiguousarray(token_ids)",
        )


def _check_race(sampler: Any, index: Any, where: str) -> None:
    if not isinstance(sampler, Sampler):
        raise BatchError("no Sampler, nor None", where=where, got=spell(sampler))
    if not is_whole(index):
        raise BatchError("no index of a token", where=where, got=spell(index))
    if not 0 <= index < 2**32:
        raise SamplingError(
            "index of a token out of range", where=where, wanted="0 to 2**32 - 1", got=int(index)
        )
    if not sampler.is_race:
        raise SamplingError(
            "the choice needs the text before it, or all logits",
            where=where,
            wanted="settings without bias, penalties and cuts",
            fix="give None as its sampler, and choose from Output.logits",
        )


def choose_rows(choices: Choices, arrays: Mapping[str, NDArray[Any]]) -> I32:
    """Return the token that each row of logits chooses, -1 where it has no sampler."""
    if "logits" not in arrays:
        raise BatchError(
            "the graph has no logits to choose from",
            where="choices",
            got=", ".join(arrays),
            fix="leave choices= out",
        )
    rows = zip(choices.samplers, choices.indices, arrays["logits"], strict=True)
    chosen = [
        -1 if sampler is None else sampler.choose(row, NO_TOKENS, 0, index, choices.token_ids)
        for sampler, index, row in rows
    ]
    return np.array(chosen, np.int32)
