"""How trees grow on the device: tokens are ranked, and become nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import NEXT, NO_CONDITION, WORDS, Odds
from mtpcore.backends.cuda.launch.step import Launch, blocks_of
from mtpcore.backends.cuda.launch.tokens import Cuts, n_parts, n_row_bits

__all__ = [
    "BRANCH_ROW",
    "CHILD",
    "KERNELS",
    "MOST_RANKS",
    "NOT_FINITE",
    "NO_NODE",
    "RANKED",
    "VERIFIED_ROW",
    "SELECTION",
    "TREE",
    "Found",
    "follow_branches",
    "grow",
    "select_best",
    "rank",
    "merge_ranks",
    "place_verified",
    "show_verified",
    "walk_trees",
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

SELECTION = np.dtype(
    [("begin", np.int32), ("n_listed", np.int32), ("first", np.int32), ("n", np.int32)]
)
"""A list of nodes, and where the best of them go; ``select_best.cu`` has the same."""

BRANCH_ROW = np.dtype(
    [("branch", np.int32), ("row", np.int32), ("text", np.int32), ("depth", np.int32)]
)
"""A row that stands for a branch; ``follow_branches.cu`` has the same."""

VERIFIED_ROW = np.dtype(
    [
        ("row", np.int32),
        ("root", np.int32),
        ("first", np.int32),
        ("n", np.int32),
        ("chooser", np.int32),
        ("above", np.int32),
        ("text", np.int32),
    ]
)
"""A row that verifies a chosen node; ``verified_row.cuh`` has the same."""

TREE = np.dtype([("sequence", np.int32), ("first", np.int32), ("n", np.int32)])
"""Rows of a batch that follow each other; ``walk_trees.cu`` has the same."""

MOST_RANKS = 64
"""Tokens of a ranking; ``ranked.cuh`` has the same."""

NO_NODE, NOT_FINITE = -1, -1
"""In the place of a node, and of what goes on; ``tree.cuh`` has the same."""

_RANK, _MERGE_RANKS, _GROW = Kernel("rank"), Kernel("merge_ranks"), Kernel("grow")
_SELECT_BEST, _FOLLOW_BRANCHES, _PLACE_VERIFIED, _SHOW_VERIFIED = (
    Kernel("select_best"),
    Kernel("follow_branches"),
    Kernel("place_verified"),
    Kernel("show_verified"),
)
_WALK_TREES = Kernel("walk_trees")
KERNELS = (
    _RANK,
    _MERGE_RANKS,
    _GROW,
    _SELECT_BEST,
    _FOLLOW_BRANCHES,
    _PLACE_VERIFIED,
    _SHOW_VERIFIED,
    _WALK_TREES,
)


class Found(msgspec.Struct, frozen=True):
    """Which nodes branches are, and which are verified, as far as that is known.

    ``branches`` int32[n_branches + n] have nodes, and behind them are those that are verified;
    ``makers`` int32[n_nodes] have the branch above each node; ``outputs`` int32[n_branches] the row
    of logits, among those of all passes, that each branch's children are ranked from.
    """

    branches: DeviceArray
    makers: DeviceArray
    outputs: DeviceArray


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


def merge_ranks(
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
    return Launch(_MERGE_RANKS, (n, 1), (logits, *weighed, token_ids, candidates, ranking, *sizes))


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


def select_best(
    selections: DeviceArray,
    listed: DeviceArray,
    nodes: DeviceArray,
    worths: DeviceArray,
    places: DeviceArray,
    chosen: DeviceArray,
    n: int,
    *,
    is_to_run: bool,
) -> Launch:
    """Write the best nodes of n lists to ``chosen``, int32.

    ``selections`` are of type ``SELECTION`` [n], of ``listed`` int32[n_listed]; ``places``, as
    long, are written over. Those that are ``is_to_run`` are able to, and come in their order.
    """
    arguments = (selections, listed, nodes, worths, places, chosen, np.int32(is_to_run))
    return Launch(_SELECT_BEST, (n, 1), arguments)


def follow_branches(
    rows_of_branches: DeviceArray,
    found: Found,
    row_of: DeviceArray,
    tokens: DeviceArray,
    rows: DeviceArray,
    parents: DeviceArray,
    texts: DeviceArray,
    n: int,
) -> Launch:
    """Write what places nodes in n rows, and the rows that they follow; see ``follow_branches.cu``.

    ``rows_of_branches`` are of type ``BRANCH_ROW`` [n]; ``row_of`` int32[n_branches] is the row of
    each branch, -1 where it has none here. ``tokens`` and ``rows`` of type ``PAIR`` [n],
    ``parents`` and ``texts`` int32 are written.
    """
    known = (found.branches, found.makers, found.outputs, row_of)
    sizes = map(np.int32, (n, WORDS, NEXT))
    arguments = (rows_of_branches, *known, tokens, rows, parents, texts, *sizes)
    return Launch(_FOLLOW_BRANCHES, (blocks_of(n), 1), arguments)


def place_verified(
    verified: DeviceArray,
    found: Found,
    tokens: DeviceArray,
    depths: DeviceArray,
    parents: DeviceArray,
    positions: DeviceArray | None,
    choosers: DeviceArray | None,
    texts: DeviceArray,
    *,
    n: int,
    n_axes: int,
    most: int,
    nobody: int,
) -> Launch:
    """Write what makes n rows verify chosen nodes, ``most`` levels deep; see ``place_verified.cu``.

    ``verified`` are of type ``VERIFIED_ROW`` [n]; ``nobody`` is a node that is none.
    """
    known = (found.branches, found.makers)
    sizes = map(np.int32, (n, n_axes, most, WORDS, NEXT, nobody))
    written = (tokens, depths, parents, positions, choosers, texts)
    return Launch(_PLACE_VERIFIED, (blocks_of(n), 1), (verified, *known, *written, *sizes))


def show_verified(
    verified: DeviceArray, depths: DeviceArray, visible: DeviceArray, n: int, window: int
) -> Launch:
    """Let n rows see what the pending token sees, and their paths; see ``show_verified.cu``."""
    arguments = (verified, depths, visible, *map(np.int32, (n, window)))
    return Launch(_SHOW_VERIFIED, (blocks_of(n), 1), arguments)


def walk_trees(
    trees: DeviceArray,
    parents: DeviceArray,
    walks: DeviceArray,
    n: int,
    *,
    n_seq: int,
    n_rows: int,
    room: int,
) -> Launch:
    """Let states go on along n trees, as rows follow each other now; see ``walk_trees.cu``.

    ``trees`` are of type ``TREE`` [n]; ``walks`` int32[...] are of at most ``n_seq`` sequences and
    ``n_rows`` rows, each with ``room`` for advances.
    """
    arguments = (trees, parents, walks, *map(np.int32, (n_seq, n_rows, room)))
    return Launch(_WALK_TREES, (n, 1), arguments, block=32)
