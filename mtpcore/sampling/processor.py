"""Logits processors: functions of a caller that change logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.dlpack import is_elsewhere, to_host
from mtpcore.errors import SamplingError, spell

__all__ = ["LogitsProcessor", "process_logits", "read_answer"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

LogitsProcessor = Callable[[I32, F32], Any]
"""``processor(tokens, logits)`` changes the logits, float32[n_vocab], in place and returns None, or
returns others: float32[n_vocab], of NumPy or of a library that gives rows by DLPack, on the host.

``tokens``, int32[n_tokens], are those before the one that is chosen. It runs before the sampler's
own chain: bias, penalties, cuts and temperature see what it left. What it does may depend on its
arguments alone. Where it leaves no token to choose the text ends (``finish_reason`` "no_token").
"""


def process_logits(processor: LogitsProcessor | None, tokens: I32, logits: F32) -> F32:
    """Return one row of logits as a processor leaves it; what it gets are copies.

    Raises
    ------
    SamplingError
        As ``read_answer``.
    Exception
        Whatever the processor raises.
    """
    if processor is None:
        return logits
    changed = logits.copy()
    answer = processor(tokens.copy(), changed[:])  # of a view it may change the shape
    return read_answer(answer, changed)


def read_answer(answer: object, logits: F32) -> F32:
    """Return what a processor returned in place of ``logits``; None: it changed them in place.

    Raises
    ------
    SamplingError
        Something else than a row of as many float32 on the host.
    """
    if answer is None:
        return logits
    row: Any = answer
    try:
        if not isinstance(answer, np.ndarray) and hasattr(answer, "__dlpack__"):
            row = answer if is_elsewhere(answer) else to_host(answer)
    except Exception as error:  # whatever a caller's object raises
        row = error
    if not isinstance(row, np.ndarray) or row.dtype != np.float32 or row.shape != logits.shape:
        is_array = isinstance(row, np.ndarray)
        raise SamplingError(
            "a logits processor returns the logits that it made, or nothing",
            where="logits_processor",
            wanted=f"float32[{len(logits)}] on the host, or None where it changed them in place",
            got=f"{row.dtype}{list(row.shape)}" if is_array else spell(row),
            fix="return logits.astype(numpy.float32), one for each token of the vocabulary",
        )
    return np.ascontiguousarray(row)
