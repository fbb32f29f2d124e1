"""What happens between the passes of a round on the device: drafts become rows of later passes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import Launch, blocks_of
from mtpcore.backends.cuda.launch.tokens import n_parts

__all__ = [
    "DRAFT",
    "KERNELS",
    "LINE",
    "NEXT",
    "NO_CONDITION",
    "NO_DRAFT",
    "PAIR",
    "STEP",
    "WORDS",
    "Odds",
    "complete",
    "judge",
    "place",
    "spread",
    "weigh",
]

LINE = np.dtype([("to", np.uint64), ("from", np.int32), ("n_words", np.int32)])
"""Where a part of a block goes; ``spread.cu`` has the same."""

PAIR = np.dtype([("from", np.int32), ("to", np.int32)])
"""A row, and the row that it becomes; ``pair.cuh`` has the same."""

STEP = np.dtype(
    [
        ("p_min", np.float64),
        ("number", np.int32),
        ("before", np.int32),
        ("is_to_go_on", np.int32),
        ("depth", np.int32),
        ("first_read", np.int32),
        ("n_read", np.int32),
        ("read_next", np.int32),
    ],
    align=True,
)
"""A sequence in a pass; ``draft.cu`` has the same."""

DRAFT = np.dtype([("token", np.int32), ("next", np.int32), ("goes_on", np.int32)])
"""What became of a chosen token; ``draft.cu`` has the same."""

NO_DRAFT = -1

WORDS, NEXT = DRAFT.itemsize // 4, 1
"""Words of a draft, and which of them is the token that the next pass reads."""

_SPREAD, _PLACE, _DRAFT = Kernel("spread"), Kernel("place"), Kernel("draft")
_WEIGH, _COMPLETE = Kernel("weigh"), Kernel("complete")
KERNELS = (_SPREAD, _PLACE, _DRAFT, _WEIGH, _COMPLETE)

NO_CONDITION = np.uint64(0)


def spread(block: DeviceArray, table: int, n_parts: int) -> Launch:
    """Copy the parts of a block to where they go, as the table says that begins at a word."""
    return Launch(_SPREAD, (n_parts, 1), _SPREAD.arguments(block=block, table=table))


def place(x: DeviceArray, pairs: DeviceArray, y: DeviceArray, n_pairs: int, width: int) -> Launch:
    """Copy rows of x, each of ``width`` words, to rows of y; pairs are of type ``PAIR``."""
    arguments = _PLACE.arguments(x=x, pairs=pairs, y=y, width=width)
    return Launch(_PLACE, (n_pairs, blocks_of(width)), arguments)


class Odds(msgspec.Struct, frozen=True):
    """How probable the tokens are that n choosers choose from their rows of logits.

    ``choosers`` are of type ``CHOOSER`` [n]; ``rows`` and ``tops`` int32[n] are which logits were
    chosen, and the largest ones; ``totals`` uint64[n] have room for the mass of all, and are 0
    before.
    """

    choosers: DeviceArray
    rows: DeviceArray
    tops: DeviceArray
    totals: DeviceArray


def weigh(logits: DeviceArray, odds: Odds, n: int) -> Launch:
    """Sum up the mass of all tokens of n choosers' rows."""
    n_logits = logits.shape[-1]
    arguments = _WEIGH.arguments(
        logits=logits,
        choosers=odds.choosers,
        tops=odds.tops,
        totals=odds.totals,
        n_vocab=n_logits,
    )
    return Launch(_WEIGH, (n, n_parts(n_logits)), arguments)


def judge(
    *, logits: DeviceArray, odds: Odds | None, condition: Any = None, **arguments: Any
) -> Launch:
    """Write what becomes of chosen tokens to ``drafts`` of type ``DRAFT``; see ``draft.cu``.

    ``steps`` are of type ``STEP`` [n]; ``marks`` int32[n_marks, n_marked] say of each slot which
    rows that feed it are not finite. Steps of ``n_depths`` are judged one depth after the other.
    Tokens below ``n_tokens`` go on, and those below ``n_readable`` are read by any pass.
    ``condition`` is set where any sequence goes on; where a pass ``repeats`` one before, where a
    token is another than it chose.
    """
    given = _DRAFT.arguments(
        logits=logits,
        n_vocab=logits.shape[-1],
        choosers=odds.choosers if odds else None,
        rows=odds.rows if odds else None,
        tops=odds.tops if odds else None,
        totals=odds.totals if odds else None,
        condition=NO_CONDITION if condition is None else condition,
        **arguments,
    )
    return Launch(_DRAFT, (1, 1), given)


def complete(
    drafts: DeviceArray, wanted: DeviceArray, n: int, condition: Any, stride: int = WORDS
) -> Launch:
    """Let a condition become whether all n wanted drafts, int32[n], were made."""
    arguments = _COMPLETE.arguments(
        drafts=drafts, wanted=wanted, n=n, stride=stride, condition=condition
    )
    return Launch(_COMPLETE, (1, 1), arguments)
