"""Sampling that comes with a batch: checked once, and done here where the plan does not do it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN, Sampler
from mtpcore.backends.base import FusedSampling
from mtpcore.boundary.arrays import is_integer
from mtpcore.errors import BatchError, NoTokenError, SamplingError, spell

__all__ = ["sample_logits", "read_fused_sampling"]

I32 = NDArray[np.int32]
NO_TOKENS: I32 = np.zeros(0, np.int32)


def read_fused_sampling(fused_sampling: FusedSampling, n_outputs: int) -> FusedSampling:
    """Return a copy of the samplers, one for each output.

    Raises
    ------
    BatchError, SamplingError
        An output has no entry, or no text where its choice needs one.
    """
    if not isinstance(fused_sampling, FusedSampling):
        raise BatchError(
            "process() takes FusedSampling",
            where="fused_sampling",
            got=type(fused_sampling).__name__,
        )
    try:
        most = n_outputs + 1  # one too many shows that there are more
        samplers = tuple(islice(fused_sampling.samplers, most))
        indices = list(islice(fused_sampling.indices, most))
    except MemoryError:
        raise
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
    if fused_sampling.token_ids is not None:
        _check_tokens(fused_sampling.token_ids, "token_ids", "fused_sampling")
    texts, n_prompt = _read_texts(fused_sampling, n_outputs)
    for i, (sampler, index) in enumerate(zip(samplers, indices, strict=True)):
        if sampler is None:
            indices[i] = 0
            continue
        _check_sampler(sampler, index, f"fused_sampling, output {i}", has_text=bool(texts))
        indices[i] = int(index)
    return FusedSampling(
        samplers=samplers,
        indices=indices,
        token_ids=fused_sampling.token_ids,
        texts=texts,
        n_prompt=n_prompt,
    )


def _read_texts(
    fused_sampling: FusedSampling, n_outputs: int
) -> tuple[tuple[I32, ...], tuple[int, ...]]:
    """Return the tokens before each output's, and how many of them are a prompt; none: two ()."""
    where = "fused_sampling"
    try:
        texts, n_prompt = tuple(fused_sampling.texts), tuple(fused_sampling.n_prompt)
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError("no sequences of texts", where=where, got=spell(error, str)) from error
    if not texts and not n_prompt:
        return (), ()
    if not len(texts) == len(n_prompt) == n_outputs:
        raise BatchError(
            "one text an output",
            where=where,
            wanted=n_outputs,
            got=f"{len(texts)} texts, {len(n_prompt)} n_prompt",
        )
    for i, (text, n) in enumerate(zip(texts, n_prompt, strict=True)):
        _check_tokens(text, "tokens of a text", f"{where}, output {i}")
        if not is_integer(n):
            raise BatchError(
                "no number of tokens", where=f"{where}, n_prompt of output {i}", got=spell(n)
            )
        if not 0 <= n <= len(text):
            raise SamplingError(
                "the prompt is not a part of the text",
                where=f"{where}, output {i}",
                wanted=f"n_prompt from 0 to {len(text)}",
                got=int(n),
            )
    return texts, tuple(map(int, n_prompt))


def _check_tokens(ids: Any, what: str, where: str) -> None:
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32:
        raise BatchError(f"{what} are no array of int32", where=where, got=type(ids).__name__)
    if ids.ndim != 1 or not ids.flags.c_contiguous:
        raise BatchError(
            f"{what} do not lie side by side",
            where=where,
            wanted="int32[n]",
            got=f"shape {ids.shape}, strides {ids.strides}",
            fix="pass np.ascontiguousarray of them",
        )


def _check_sampler(sampler: Any, index: Any, where: str, *, has_text: bool) -> None:
    if not isinstance(sampler, Sampler):
        raise BatchError("no Sampler, nor None", where=where, got=spell(sampler))
    if not is_integer(index):
        raise BatchError("no index of a token", where=where, got=spell(index))
    if not 0 <= index < 2**32:
        raise SamplingError(
            "index of a token out of range", where=where, wanted="0 to 2**32 - 1", got=int(index)
        )
    if not (has_text or sampler.is_gumbel_max):
        raise SamplingError(
            "the choice needs the text before it, or all logits",
            where=where,
            wanted="settings without bias, penalties and cuts",
            fix="give texts= and n_prompt=, or None as its sampler, and choose from Output.logits",
        )


def sample_logits(fused_sampling: FusedSampling, arrays: Mapping[str, NDArray[Any]]) -> I32:
    """Return the token that each row of logits chooses.

    -1 where it has no sampler, ``NO_TOKEN`` where no token is left to choose.
    """
    if "logits" not in arrays:
        raise BatchError(
            "the graph has no logits to choose from",
            where="fused_sampling",
            got=", ".join(arrays),
            fix="leave fused_sampling= out",
        )
    n, ids = len(fused_sampling.samplers), fused_sampling.token_ids
    texts, n_prompt = fused_sampling.texts or [NO_TOKENS] * n, fused_sampling.n_prompt or [0] * n
    rows = zip(
        *(fused_sampling.samplers, fused_sampling.indices, arrays["logits"], texts, n_prompt),
        strict=True,
    )
    chosen = np.full(n, -1, np.int32)
    for i, (sampler, index, row, text, n_before) in enumerate(rows):
        if sampler is None:
            continue
        try:
            chosen[i] = sampler.choose(row, text, n_before, index, ids)
        except NoTokenError:
            chosen[i] = NO_TOKEN
    return chosen
