"""Logits processors: functions of a caller that change logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["LogitsProcessor", "process_logits"]

LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], None]
"""``processor(tokens, logits)`` changes the logits, float32[n_vocab], in place.

``tokens``, int32[n_tokens], are those before the one that is chosen. It runs before the sampler's
own chain: bias, penalties, cuts and temperature see what it left. What it does may depend on its
arguments alone.
"""


def process_logits(
    processor: LogitsProcessor | None, tokens: NDArray[np.int32], logits: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return one row of logits as a processor leaves it; what it gets are copies."""
    if processor is None:
        return logits
    changed = logits.copy()
    processor(tokens.copy(), changed[:])  # of a view it may change the shape
    return changed
