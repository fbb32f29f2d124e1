"""The choice of tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import THREADS, Launch

__all__ = ["CHOOSER", "KERNELS", "WINNER", "choose", "choosers_of", "n_parts"]

CHOOSER = np.dtype(
    [
        ("temperature", np.float64),
        ("seed", np.uint64),
        ("stream", np.uint64),
        ("index", np.uint32),
        ("row", np.int32),
    ],
    align=True,
)
"""Who chooses from a row of logits; ``noise.cuh`` has the same."""

WINNER = np.dtype([("score", np.float64), ("row", np.int32)], align=True)
"""The best of a part of a row; ``winner.cuh`` has the same."""

_PART = 8 * THREADS
_CHOOSE, _SETTLE = Kernel("choose"), Kernel("settle")
KERNELS = (_CHOOSE, _SETTLE)


def n_parts(n_logits: int) -> int:
    """Return in how many parts a row is searched."""
    return -(-n_logits // _PART)


def choosers_of(entries: Iterable[tuple[Sampler, int, int]]) -> NDArray[np.void]:
    """Return ``CHOOSER`` [n] of each sampler, the index of its token, and its row of logits."""
    settings = [(sampler.sampling, index, row) for sampler, index, row in entries]
    fields = [(of.temperature, of.seed, of.stream, index, row) for of, index, row in settings]
    return np.array(fields, CHOOSER)


def choose(
    logits: DeviceArray,
    choosers: DeviceArray,
    token_ids: DeviceArray | None,
    winners: DeviceArray,
    ids: DeviceArray,
    n_choosers: int,
) -> list[Launch]:
    """Let each of the choosers choose a token from its row, as the sampler does.

    ``choosers`` are of type ``CHOOSER``; ``token_ids`` int32[n_logits] names the token of each
    logit; ``winners`` of type ``WINNER`` [n_choosers, n_parts] is written over; ``ids``
    int32[n_choosers] gets the tokens.
    """
    n_logits = logits.shape[-1]
    n = n_parts(n_logits)
    searched = (logits, choosers, token_ids, winners, np.int32(n_logits))
    return [
        Launch(_CHOOSE, (n, n_choosers), searched),
        Launch(_SETTLE, (n_choosers, 1), (winners, token_ids, ids, np.int32(n))),
    ]
