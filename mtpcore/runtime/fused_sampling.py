"""Sampling that comes with a batch: checked once, and done here where the plan does not do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import FusedSampling
from mtpcore.boundary.arrays import is_integer
from mtpcore.errors import BatchError, SamplingError, spell

__all__ = ["sample_logits", "read_fused_sampling"]

I32 = NDArray[np.int32]
NO_TOKENS: I32 = np.zeros(0, np.int32)


def read_fused_sampling(fused_sampling: FusedSampling, n_outputs: int) -> FusedSampling:
    """Return a copy of the samplers, one for each output.

    Raises
    ------
    BatchError, SamplingError
        An output has no entry, or its choice is no race.
    """
    if not isinstance(fused_sampling, FusedSampling):
        raise BatchError(
            "process() takes FusedSampling",
            where="fused_sampling",
            got=type(fused_sampling).__name__,
        )
    try:
        samplers, indices = tuple(fused_sampling.samplers), list(fused_sampling.indices)
    except Exception as error:  # whatever a caller's object raises
        got = spell(error, str)
        raise BatchError("no sequences of entries", where="fused_sampling", got=got) from error
    if not len(samplers) == len(indices) == n_outputs:
        raise BatchError(
            "one choice an output",
            where="fused_sampling",
            wanted=n_outputs,
            got=f"{len(samplers)} samplers, {len(indices)} indices",
        )
    _check_ids(fused_sampling.token_ids)
    for i, (sampler, index) in enumerate(zip(samplers, indices, strict=True)):
        if sampler is None:
            indices[i] = 0
            continue
        _check_gumbel_max(sampler, index, f"fused_sampling, output {i}")
        indices[i] = int(index)
    return FusedSampling(samplers=samplers, indices=indices, token_ids=fused_sampling.token_ids)


def _check_ids(ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32:
        raise BatchError(
            "token_ids are no array of int32", where="fused_sampling", got=type(ids).__name__
        )
    if ids.ndim != 1 or not ids.flags.c_contiguous:
        raise BatchError(
            "token_ids do not lie side by side",
            where="fused_sampling",
            wanted="int32[n_logits]",
            got=f"shape {ids.shape}, strides {ids.strides}",
            fix="pass np.ascontiguousarray(token_ids)",
        )


def _check_gumbel_max(sampler: Any, index: Any, where: str) -> None:
    if not isinstance(sampler, Sampler):
        raise BatchError("no Sampler, nor None", where=where, got=spell(sampler))
    if not is_integer(index):
        raise BatchError("no index of a token", where=where, got=spell(index))
    if not 0 <= index < 2**32:
        raise SamplingError(
            "index of a token out of range", where=where, wanted="0 to 2**32 - 1", got=int(index)
        )
    if not sampler.is_gumbel_max:
        raise SamplingError(
            "the choice needs the text before it, or all logits",
            where=where,
            wanted="settings without bias, penalties and cuts",
            fix="give None as its sampler, and choose from Output.logits",
        )


def sample_logits(fused_sampling: FusedSampling, arrays: Mapping[str, NDArray[Any]]) -> I32:
    """Return the token that each row of logits chooses, -1 where it has no sampler."""
    if "logits" not in arrays:
        raise BatchError(
            "the graph has no logits to choose from",
            where="fused_sampling",
            got=", ".join(arrays),
            fix="leave fused_sampling= out",
        )
    rows = zip(fused_sampling.samplers, fused_sampling.indices, arrays["logits"], strict=True)
    chosen = [
        -1
        if sampler is None
        else sampler.choose(row, NO_TOKENS, 0, index, fused_sampling.token_ids)
        for sampler, index, row in rows
    ]
    return np.array(chosen, np.int32)
