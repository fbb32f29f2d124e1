"""The choice of tokens, as the sampler makes it: biases and penalties, cuts, noise."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import THREADS, Launch, blocks_of

__all__ = [
    "ADJUSTMENT",
    "CHOOSER",
    "CUT",
    "KERNELS",
    "N_DIGITS",
    "TALLY",
    "WINNER",
    "Cuts",
    "adjust",
    "adjustments_of",
    "choose",
    "choosers_of",
    "cut",
    "cuts_of",
    "find_tops",
    "n_parts",
    "settle",
]

I32 = NDArray[np.int32]

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

ADJUSTMENT = np.dtype(
    [
        ("repetition", np.float64),
        ("subtracted", np.float64),
        ("at", np.int64),
        ("bias", np.float32),
    ],
    align=True,
)
"""What is done to one of all logits; ``adjust.cu`` has the same."""

CUT = np.dtype(
    [
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("wanted", np.float64),
        ("last", np.uint64),
        ("mass", np.uint64),
        ("top_k", np.int64),
        ("count", np.int64),
        ("is_open", np.int32),
    ],
    align=True,
)
"""The cuts of a row of logits; ``cut.cuh`` has the same."""

TALLY = np.dtype([("mass", np.uint64), ("count", np.uint64)])
"""Tokens whose keys have the same digit; ``cut.cuh`` has the same."""

_DIGIT = 8
N_DIGITS = 1 << _DIGIT

_PART = 8 * THREADS
_CHOOSE, _SETTLE, _ADJUST = Kernel("choose"), Kernel("settle"), Kernel("adjust")
_TALLY, _DESCEND = Kernel("tally"), Kernel("descend")
KERNELS = (_CHOOSE, _SETTLE, _ADJUST, _TALLY, _DESCEND)


class Cuts(msgspec.Struct, frozen=True):
    """Cuts of n choosers, and what finding them takes.

    ``cuts`` of type ``CUT`` [n]; ``tops`` int32[n]; ``tallies`` of type ``TALLY`` [n, N_DIGITS],
    zero before and after.
    """

    cuts: DeviceArray
    tops: DeviceArray
    tallies: DeviceArray


def n_parts(n_logits: int) -> int:
    """Return in how many parts a row is searched."""
    return -(-n_logits // _PART)


def choosers_of(entries: Iterable[tuple[Sampler, int, int]]) -> NDArray[np.void]:
    """Return ``CHOOSER`` [n] of each sampler, the index of its token, and its row of logits."""
    settings = [(sampler.sampling, index, row) for sampler, index, row in entries]
    fields = [(of.temperature, of.seed, of.stream, index, row) for of, index, row in settings]
    return np.array(fields, CHOOSER)


def cuts_of(samplers: Iterable[Sampler]) -> NDArray[np.void]:
    """Return ``CUT`` [n] of each sampler; greedy ones have none that matter."""
    cuts = []
    for of in (sampler.sampling for sampler in samplers):
        is_noisy = of.temperature > 0
        is_open = is_noisy and (of.top_k > 0 or of.top_p < 1)
        most = of.top_k or np.iinfo(np.int64).max
        cuts.append((of.top_p, of.min_p if is_noisy else 0.0, np.inf, 0, 0, most, 0, is_open))
    return np.array(cuts, CUT)


def adjustments_of(
    sampler: Sampler,
    history: I32,
    n_prompt: int,
    row: int,
    n_logits: int,
    token_ids: I32 | None = None,
) -> NDArray[np.void]:
    """Return ``ADJUSTMENT`` [n] of a row: bias and penalties of the tokens that have any.

    Parameters
    ----------
    sampler, history, n_prompt, token_ids
        As in ``Sampler.choose``.
    row : int
        The row of logits, each of ``n_logits``.
    """
    of = sampler.sampling
    seen = history if of.has_penalties else history[:0]
    biases = of.logit_bias or {}
    ids = np.unique(np.concatenate([np.array([*biases], np.int32), seen]))
    bias, n_text = np.zeros(len(ids), np.float32), np.zeros(len(ids))
    bias[np.searchsorted(ids, [*biases])] = [*biases.values()]
    np.add.at(n_text, np.searchsorted(ids, seen[n_prompt:]), 1)
    in_text = n_text * of.frequency_penalty + of.presence_penalty
    adjustments: NDArray[np.void] = np.empty(len(ids), ADJUSTMENT)
    adjustments["repetition"] = np.where(np.isin(ids, seen), of.repetition_penalty, 1)
    adjustments["subtracted"] = np.where(n_text > 0, in_text, 0)
    adjustments["bias"] = bias
    at = np.where((ids >= 0) & (ids < n_logits), ids, -1)
    if token_ids is not None:
        row_of = np.full(int(token_ids.max()) + 1, -1)
        row_of[token_ids] = np.arange(n_logits)
        at = np.where((ids >= 0) & (ids < len(row_of)), row_of[ids.clip(0, len(row_of) - 1)], -1)
    adjustments["at"] = row * n_logits + at
    return adjustments[at >= 0]


def adjust(logits: DeviceArray, adjustments: DeviceArray, n: int) -> list[Launch]:
    """Change n logits where they are; ``adjustments`` are of type ``ADJUSTMENT``."""
    return [Launch(_ADJUST, (blocks_of(n), 1), (logits, adjustments, np.int32(n)))] if n else []


def find_tops(
    logits: DeviceArray,
    choosers: DeviceArray,
    winners: DeviceArray,
    tops: DeviceArray,
    n_choosers: int,
) -> list[Launch]:
    """Write the largest logit of each chooser's row to ``tops``; arrays as for ``choose``."""
    n_logits = logits.shape[-1]
    sizes = (n_logits, _row_bits(n_logits), 1)
    best = (logits, choosers, None, None, None, winners, *map(np.int32, sizes))
    n = n_parts(n_logits)
    return [Launch(_CHOOSE, (n_choosers, n), best), settle(winners, tops, n_choosers)]


def settle(
    winners: DeviceArray, rows: DeviceArray, n_choosers: int, token_ids: DeviceArray | None = None
) -> Launch:
    """Write which logits won, or the tokens of these, to ``rows``."""
    arguments = (winners, token_ids, rows, np.int32(winners.shape[1]))
    return Launch(_SETTLE, (n_choosers, 1), arguments)


def cut(
    logits: DeviceArray, choosers: DeviceArray, cuts: Cuts, winners: DeviceArray, n_choosers: int
) -> list[Launch]:
    """Find which tokens pass the cuts of each chooser, for ``choose``; as for it the arrays.

    ``find_tops`` was there before.
    """
    n_logits = logits.shape[-1]
    n, row_bits, launches = n_parts(n_logits), _row_bits(n_logits), []
    shifts = range(0, 32 + row_bits, _DIGIT)[::-1]
    for shift in shifts:
        counted = (logits, choosers, cuts.cuts, cuts.tops, cuts.tallies)
        sizes = (n_logits, row_bits, shift)
        launches.append(Launch(_TALLY, (n_choosers, n), (*counted, *map(np.int32, sizes))))
        found = (cuts.cuts, cuts.tallies, np.int32(shift), np.int32(shift == shifts[0]))
        launches.append(Launch(_DESCEND, (n_choosers, 1), found))
    return launches


def choose(
    logits: DeviceArray,
    choosers: DeviceArray,
    token_ids: DeviceArray | None,
    winners: DeviceArray,
    ids: DeviceArray,
    n_choosers: int,
    cuts: Cuts | None = None,
) -> list[Launch]:
    """Let each of the choosers choose a token from its row, as the sampler does.

    ``choosers`` are of type ``CHOOSER``; ``token_ids`` int32[n_logits] names the token of each
    logit; ``winners`` of type ``WINNER`` [n_choosers, n_parts] is written over; ``ids``
    int32[n_choosers] gets the tokens. ``cuts`` are those that ``cut`` found.
    """
    n_logits = logits.shape[-1]
    n = n_parts(n_logits)
    passing = (None, None) if cuts is None else (cuts.cuts, cuts.tops)
    sizes = (n_logits, _row_bits(n_logits), 0)
    searched = (logits, choosers, *passing, token_ids, winners, *map(np.int32, sizes))
    return [
        Launch(_CHOOSE, (n_choosers, n), searched),
        settle(winners, ids, n_choosers, token_ids),
    ]


def _row_bits(n_logits: int) -> int:
    """Return how many bits number the rows of a vocabulary."""
    return (n_logits - 1).bit_length()
