"""How trees grow on the device: tokens are ranked, and become nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import NO_CONDITION, Odds
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import Cuts, n_parts, n_row_bits

__all__ = [
    "CHILD",
    "KERNELS",
    "MOST_RANKS",
    "NOT_FINITE",
    "NO_NODE",
    "RANKED",
    "grow",
    "rank",
    "rank_parts",
]

RANKED = np.dtype([("share", np.float64), ("probability", np.float32), ("token", np.int32)])
"""A token of a ranking; ``ranked.cuh`` has the same."""

CHILD = np.dtype(
    [
        ("p_min", np.float64),
        ("branch", np.int32),
        ("output", np.int32),
        ("rank", np.int32),
        ("is_to_go_on", np.int32),
    ]
)
"""A node that may grow in a pass; ``grow.cu`` has the same."""

MOST_RANKS = 64
"""Tokens of a ranking; ``ranked.cuh`` has the same."""

NO_NODE, NOT_FINITE = -1, -1
"""In the place of a node, and of what goes on; ``tree.cuh`` has the same."""

_RANK, _RANKED, _GROW = Kernel("rank"), Kernel("ranked"), Kernel("grow")
KERNELS = (_RANK, _RANKED, _GROW)


def rank(
    logits: DeviceArray,
    token_ids: DeviceArray | None,
    odds: Odds,
    cuts: Cuts | None,
    candidates: DeviceArray,
    n: int,
    n_ranks: int,
) -> Launch:
    """Find the best tokens of each part of n choosers' rows.

    ``candidates`` of type ``WINNER`` [n, n_parts, n_ranks] are written over.
    """
    n_logits = logits.shape[-1]
    passing = (None, None) if cuts is None else (cuts.cuts, cuts.tops)
    sizes = map(np.int32, (n_logits, n_row_bits(n_logits), n_ranks))
    arguments = (logits, odds.choosers, *passing, token_ids, candidates, *sizes)
    return Launch(_RANK, (n, n_parts(n_logits)), arguments)


def rank_parts(
    logits: DeviceArray,
    token_ids: DeviceArray | None,
    odds: Odds,
    candidates: DeviceArray,
    ranking: DeviceArray,
    n: int,
    n_ranks: int,
) -> Launch:
    """Write the best tokens of n choosers' rows to ``ranking`` of type ``RANKED`` [n, n_ranks].

    The ``totals`` of ``odds`` are those of the rows.
    """
    n_logits = logits.shape[-1]
    sizes = map(np.int32, (n_logits, n_parts(n_logits), n_ranks))
    weighed = (odds.choosers, odds.tops, odds.totals)
    return Launch(_RANKED, (n, 1), (logits, *weighed, token_ids, candidates, ranking, *sizes))


def grow(
    ranking: DeviceArray,
    children: DeviceArray,
    branches: DeviceArray,
    marks: DeviceArray,
    nodes: DeviceArray,
    worths: DeviceArray,
    *,
    first: int,
    n: int,
    n_ranks: int,
    n_outputs: int,
    n_marks: int,
    n_tokens: int,
    n_readable: int,
    condition: Any = None,
) -> Launch:
    """Write n nodes to ``nodes`` of type ``DRAFT``, and their ``worths``, float64, from one on.

    ``children`` are of type ``CHILD`` [n]; ``branches`` int32[n] has the nodes that get children;
    ``marks`` int32[n_marks, n_outputs] say of which outputs rows are not finite. Tokens below
    ``n_tokens`` go on, and those below ``n_readable`` are read by any pass. ``condition`` becomes
    whether any goes on.
    """
    sizes = (first, n, n_ranks, n_outputs, n_marks, n_tokens, n_readable)
    arguments = (
        *(ranking, children, branches, marks, nodes, worths, *map(np.int32, sizes)),
        NO_CONDITION if condition is None else condition,
    )
    return Launch(_GROW, (1, 1), arguments)
