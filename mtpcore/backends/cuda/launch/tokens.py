"""The choice of tokens, as the sampler makes it: biases and penalties, cuts, noise."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN, Sampler
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import THREADS, Launch

__all__ = [
    "ADJUSTED",
    "ADJUSTMENT",
    "CHOOSER",
    "CUT",
    "KERNELS",
    "N_DIGITS",
    "TALLY",
    "WINNER",
    "Adjustments",
    "Cuts",
    "Drafted",
    "adjust",
    "adjusted_row",
    "adjustments_of",
    "choose",
    "choosers_of",
    "cut",
    "cuts_of",
    "find_tops",
    "logits_by_token",
    "n_parts",
    "n_row_bits",
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

ADJUSTED = np.dtype(
    [
        ("repetition", np.float64),
        ("frequency", np.float64),
        ("presence", np.float64),
        ("row", np.int32),
        ("begin", np.int32),
        ("n", np.int32),
        ("begin_of_drafts", np.int32),
        ("n_drafts", np.int32),
    ],
    align=True,
)
"""A row of logits that biases and penalties change, and its parts of the lists of
``Adjustments``; ``adjust.cu`` has the same.
"""

ADJUSTMENT = np.dtype(
    [
        ("token", np.int32),
        ("at", np.int32),
        ("bias", np.float32),
        ("is_seen", np.int32),
        ("n_text", np.int32),
    ]
)
"""What is known of a token that is adjusted; ``adjust.cu`` has the same."""

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


class Adjustments(msgspec.Struct, frozen=True):
    """Which rows of logits are adjusted, and by what.

    ``rows`` of type ``ADJUSTED``, ``tokens`` of type ``ADJUSTMENT``; ``by_token`` int32[n_tokens]
    is the logit of each token, -1 where it has none; None where logits are those of tokens in
    their order.
    """

    rows: DeviceArray
    tokens: DeviceArray
    by_token: DeviceArray | None


class Drafted(msgspec.Struct, frozen=True):
    """``drafts`` of type ``DRAFT`` that texts go on with, by their ``numbers`` int32[n]."""

    drafts: DeviceArray
    numbers: DeviceArray


def n_parts(n_logits: int) -> int:
    """Return in how many parts a row is searched."""
    return -(-n_logits // _PART)


_UNADJUSTED = np.zeros(0, ADJUSTMENT)
_EVERY = int(np.iinfo(np.int64).max)


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
        most = of.top_k or _EVERY
        cuts.append((of.top_p, of.min_p if is_noisy else 0.0, np.inf, 0, 0, most, 0, is_open))
    return np.array(cuts, CUT)


def adjustments_of(
    sampler: Sampler, history: I32, n_prompt: int, n_logits: int, by_token: I32 | None = None
) -> NDArray[np.void]:
    """Return ``ADJUSTMENT`` [n] of a row of ``n_logits``: all tokens with a bias or a penalty.

    Parameters
    ----------
    sampler, history, n_prompt
        As in ``Sampler.choose``.
    by_token : int32[n], optional
        What ``logits_by_token`` returns, where logits are not those of tokens in their order.
    """
    of = sampler.sampling
    if not (of.has_penalties or of.logit_bias):
        return _UNADJUSTED
    seen = history if of.has_penalties else history[:0]
    biases = of.logit_bias or {}
    ids = np.unique(np.concatenate([np.array([*biases], np.int32), seen]))
    adjustments = np.zeros(len(ids), ADJUSTMENT)
    adjustments["token"] = ids
    adjustments["bias"][np.searchsorted(ids, [*biases])] = [*biases.values()]
    adjustments["is_seen"] = np.isin(ids, seen)
    np.add.at(adjustments["n_text"], np.searchsorted(ids, seen[n_prompt:]), 1)
    n_tokens = n_logits if by_token is None else len(by_token)
    adjustments = adjustments[(ids >= 0) & (ids < n_tokens)]
    tokens = adjustments["token"]
    adjustments["at"] = tokens if by_token is None else by_token[tokens]
    return adjustments[adjustments["at"] >= 0]


def logits_by_token(token_ids: I32) -> I32:
    """Return the logit of each token, -1 where it has none, from the tokens of all logits."""
    logits = np.full(int(token_ids.max()) + 1, -1, np.int32)
    logits[token_ids] = np.arange(len(token_ids), dtype=np.int32)
    return logits


def adjusted_row(
    sampler: Sampler, row: int, tokens: tuple[int, int], drafts: tuple[int, int]
) -> tuple[float | int, ...]:
    """Return ``ADJUSTED`` of a row; where its tokens and drafts begin, and how many they are."""
    of = sampler.sampling
    penalties = (of.repetition_penalty, of.frequency_penalty, of.presence_penalty)
    return (*penalties, row, *tokens, *drafts)


def adjust(
    logits: DeviceArray, adjustments: Adjustments, n: int, drafted: Drafted | None = None
) -> list[Launch]:
    """Change n rows of logits where they are."""
    if not n:
        return []
    n_logits, by_token = logits.shape[-1], adjustments.by_token
    arguments = _ADJUST.arguments(
        logits=logits,
        rows=adjustments.rows,
        adjustments=adjustments.tokens,
        numbers=drafted.numbers if drafted else None,
        drafts=drafted.drafts if drafted else None,
        by_token=by_token,
        n_vocab=n_logits,
        n_tokens=n_logits if by_token is None else by_token.shape[0],
    )
    return [Launch(_ADJUST, (n, 1), arguments)]


def find_tops(
    logits: DeviceArray,
    choosers: DeviceArray,
    winners: DeviceArray,
    tops: DeviceArray,
    n_choosers: int,
) -> list[Launch]:
    """Write the largest logit of each chooser's row to ``tops``; arrays as for ``choose``."""
    return [
        _search(logits, choosers, winners, n_choosers, is_greedy=True),
        settle(winners, tops, n_choosers),
    ]


def _search(
    logits: DeviceArray,
    choosers: DeviceArray,
    winners: DeviceArray,
    n_choosers: int,
    token_ids: DeviceArray | None = None,
    cuts: Cuts | None = None,
    *,
    is_greedy: bool = False,
) -> Launch:
    """Find the best of each part of the choosers' rows."""
    n_logits = logits.shape[-1]
    arguments = _CHOOSE.arguments(
        logits=logits,
        choosers=choosers,
        cuts=cuts.cuts if cuts else None,
        tops=cuts.tops if cuts else None,
        token_ids=token_ids,
        winners=winners,
        n_vocab=n_logits,
        row_bits=n_row_bits(n_logits),
        is_greedy=is_greedy,
    )
    return Launch(_CHOOSE, (n_choosers, n_parts(n_logits)), arguments)


def settle(
    winners: DeviceArray,
    rows: DeviceArray,
    n_choosers: int,
    token_ids: DeviceArray | None = None,
    nobody: int = 0,
) -> Launch:
    """Write which logits won, or the tokens of these, to ``rows``; ``nobody`` where none did."""
    arguments = _SETTLE.arguments(
        winners=winners, token_ids=token_ids, ids=rows, n_parts=winners.shape[1], none=nobody
    )
    return Launch(_SETTLE, (n_choosers, 1), arguments)


def cut(
    logits: DeviceArray, choosers: DeviceArray, cuts: Cuts, winners: DeviceArray, n_choosers: int
) -> list[Launch]:
    """Find which tokens pass the cuts of each chooser, for ``choose``; as for it the arrays.

    ``find_tops`` was there before.
    """
    n_logits = logits.shape[-1]
    n, row_bits, launches = n_parts(n_logits), n_row_bits(n_logits), []
    shifts = range(0, 32 + row_bits, _DIGIT)[::-1]
    for shift in shifts:
        counted = _TALLY.arguments(
            logits=logits,
            choosers=choosers,
            cuts=cuts.cuts,
            tops=cuts.tops,
            tallies=cuts.tallies,
            n_vocab=n_logits,
            row_bits=row_bits,
            shift=shift,
        )
        descended = _DESCEND.arguments(
            cuts=cuts.cuts, tallies=cuts.tallies, shift=shift, is_first=shift == shifts[0]
        )
        launches.append(Launch(_TALLY, (n_choosers, n), counted))
        launches.append(Launch(_DESCEND, (n_choosers, 1), descended))
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
    int32[n_choosers] gets the tokens, ``NO_TOKEN`` where none is left to choose. ``cuts`` are those
    that ``cut`` found.
    """
    return [
        _search(logits, choosers, winners, n_choosers, token_ids, cuts),
        settle(winners, ids, n_choosers, token_ids, NO_TOKEN),
    ]


def n_row_bits(n_logits: int) -> int:
    """Return how many bits number the rows of a vocabulary."""
    return (n_logits - 1).bit_length()
