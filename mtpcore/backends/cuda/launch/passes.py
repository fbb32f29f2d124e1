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
    "FILL",
    "FOUND",
    "KERNELS",
    "LINE",
    "NO_DRAFT",
    "PAIR",
    "PICK",
    "Odds",
    "complete",
    "fill",
    "judge",
    "place",
    "spread",
    "weigh",
]

LINE = np.dtype([("to", np.uint64), ("from", np.int32), ("n_words", np.int32)])
"""Where a part of a block goes; ``spread.cu`` has the same."""

PAIR = np.dtype([("from", np.int32), ("to", np.int32)])
"""A row, below 0 where there is none, and the row that it becomes; ``pair.cuh`` has the same."""

FILL = np.dtype([(name, np.int32) for name in ("row", "draft", "kept", "above", "parent")])
"""A row, and what it gets; ``fill.cu`` has the same."""

PICK = np.dtype(
    [
        ("p_min", np.float64),
        ("draft", np.int32),
        ("before", np.int32),
        ("is_own", np.int32),
        ("token", np.int32),
        ("fill", np.int32),
        ("kept", np.int32),
        ("depth", np.int32),
        ("is_to_go_on", np.int32),
    ],
    align=True,
)
"""A draft that a pass may choose; ``draft.cu`` has the same."""

DRAFT = np.dtype([("token", np.int32), ("is_open", np.int32)])
"""What became of a draft; ``draft.cuh`` has the same."""

FOUND = np.dtype([("is_amiss", np.int32), ("above", np.int32)])
"""What ``fill.cu`` finds out of a row."""

NO_DRAFT = -1

_SPREAD, _PLACE, _FILL, _DRAFT = (Kernel(name) for name in ("spread", "place", "fill", "draft"))
_WEIGH, _COMPLETE = Kernel("weigh"), Kernel("complete")
KERNELS = (_SPREAD, _PLACE, _FILL, _DRAFT, _WEIGH, _COMPLETE)

_NO_CONDITION = np.uint64(0)


def spread(block: DeviceArray, table: int, n_parts: int) -> Launch:
    """Copy the parts of a block to where they go, as the table says that begins at a word."""
    return Launch(_SPREAD, (n_parts, 1), _SPREAD.arguments(block=block, table=table))


def place(x: DeviceArray, pairs: DeviceArray, y: DeviceArray, n_pairs: int, width: int) -> Launch:
    """Copy rows of x, each of ``width`` words, to rows of y, as pairs of type ``PAIR`` say."""
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


def fill(**arguments: Any) -> Launch:
    """Let n rows get what they wait for, and say which are dead; see ``fill.cu``.

    ``fills`` are of type ``FILL`` [n], ``found`` of ``FOUND`` and ``is_dead`` int32[n] what is
    found out. ``marks`` int32[n_marks, n_marked] say of each kind of kept rows which are not
    finite, ``made`` int32[n_marked] which there are; ``kinds`` are those that count, a bit each.
    ``rows`` of type ``PAIR`` [n] get told what ``place`` is to bring. In a tree ``fill_of``
    int32[n_drafts] are the fills of drafts, -1 where there is none. Tokens below ``n_tokens`` let a
    row live, and those below ``n_readable`` are written.
    """
    return Launch(_FILL, (1, 1), _FILL.arguments(**arguments))


def judge(
    *, logits: DeviceArray, odds: Odds | None, condition: Any = None, **arguments: Any
) -> Launch:
    """Write what becomes of tokens to ``drafts`` and ``nodes``; see ``draft.cu``.

    ``picks`` are of type ``PICK`` [n], of ``n_depths``. They choose of ``ids``, or, where there are
    ``rankings``, of these. Whether they could is noted in ``drafts``, too, at ``entry``, and
    of each kept row in ``made``: ``n_kept`` from ``first_kept`` on are made together if the pass
    ``is_whole``. ``condition`` is set where any draft goes on that is to; where the pass
    ``is_repeated``, if a token is another than before. ``is_anew``: there were drafts before.
    """
    given = _DRAFT.arguments(
        logits=logits,
        n_vocab=logits.shape[-1],
        choosers=odds.choosers if odds else None,
        rows=odds.rows if odds else None,
        tops=odds.tops if odds else None,
        totals=odds.totals if odds else None,
        condition=_NO_CONDITION if condition is None else condition,
        **arguments,
    )
    return Launch(_DRAFT, (1, 1), given)


def complete(drafts: DeviceArray, wanted: DeviceArray, n: int, condition: Any) -> Launch:
    """Let a condition become whether all n wanted drafts, int32[n], were made."""
    stride = DRAFT.itemsize // 4
    arguments = _COMPLETE.arguments(
        drafts=drafts, wanted=wanted, n=n, stride=stride, condition=condition
    )
    return Launch(_COMPLETE, (1, 1), arguments)
