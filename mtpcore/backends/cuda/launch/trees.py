"""Trees on the device: tokens are ranked, become drafts, and drafts become rows of later passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import Odds
from mtpcore.backends.cuda.launch.step import Launch, blocks_of
from mtpcore.backends.cuda.launch.tokens import Cuts, n_parts, n_row_bits

__all__ = [
    "KERNELS",
    "MOST_RANKS",
    "NODE",
    "PATH",
    "RANKED",
    "SELECTION",
    "TREE",
    "TREE_ROW",
    "follow",
    "merge_ranks",
    "rank",
    "take_best",
    "walk_trees",
    "write_paths",
]

RANKED = np.dtype([("share", np.float64), ("probability", np.float32), ("token", np.int32)])
"""A token of a ranking; ``ranked.cuh`` has the same."""

NODE = np.dtype(
    [("worth", np.float64), ("parent", np.int32), ("kept", np.int32), ("best_of", np.int32)],
    align=True,
)
"""A draft of a tree; ``node.cuh`` has the same."""

SELECTION = np.dtype(
    [
        ("begin", np.int32),
        ("n_candidates", np.int32),
        ("n_drafts", np.int32),
        ("goes_on", np.int32),
    ]
)
"""Drafts that are the best of others, in a list; ``take_best.cu`` has the same."""

PATH = np.dtype([("draft", np.int32), ("begin", np.int32), ("n", np.int32)])
"""Drafts on the way to one, in a list; ``write_paths.cu`` has the same."""

TREE = np.dtype([("sequence", np.int32), ("first", np.int32), ("n", np.int32)])
"""Rows of a batch that come after each other; ``walk_trees.cu`` has the same."""

TREE_ROW = np.dtype(
    [(name, np.int32) for name in ("row", "draft", "root", "chooser", "index", "begin", "room")]
)
"""A row of a tree that is verified, and its draft; ``follow.cu`` has the same."""

MOST_RANKS = 64
"""Tokens of a ranking; ``ranked.cuh`` has the same."""

_RANK, _MERGE_RANKS, _TAKE_BEST = Kernel("rank"), Kernel("merge_ranks"), Kernel("take_best")
_WRITE_PATHS, _WALK_TREES = Kernel("write_paths"), Kernel("walk_trees")
_FOLLOW = Kernel("follow")
KERNELS = (_RANK, _MERGE_RANKS, _TAKE_BEST, _WRITE_PATHS, _WALK_TREES, _FOLLOW)


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

    ``candidates`` of type ``WINNER`` [n * n_parts * n_ranks] are written over.
    """
    n_logits = logits.shape[-1]
    arguments = _RANK.arguments(
        logits=logits,
        choosers=odds.choosers,
        cuts=cuts.cuts if cuts else None,
        tops=cuts.tops if cuts else None,
        token_ids=token_ids,
        candidates=candidates,
        n_vocab=n_logits,
        row_bits=n_row_bits(n_logits),
        n=n_ranks,
    )
    return Launch(_RANK, (n, n_parts(n_logits)), arguments)


def merge_ranks(
    logits: DeviceArray,
    token_ids: DeviceArray | None,
    odds: Odds,
    candidates: DeviceArray,
    rankings: DeviceArray,
    n: int,
    n_ranks: int,
) -> Launch:
    """Write the best tokens of n choosers' rows to ``rankings`` of type ``RANKED`` [n * n_ranks].

    The ``totals`` of ``odds`` are those of the rows.
    """
    n_logits = logits.shape[-1]
    arguments = _MERGE_RANKS.arguments(
        logits=logits,
        choosers=odds.choosers,
        tops=odds.tops,
        totals=odds.totals,
        token_ids=token_ids,
        candidates=candidates,
        rankings=rankings,
        n_vocab=n_logits,
        n_parts=n_parts(n_logits),
        n=n_ranks,
    )
    return Launch(_MERGE_RANKS, (n, 1), arguments)


def take_best(
    selections: DeviceArray,
    listed: DeviceArray,
    drafts: DeviceArray,
    nodes: DeviceArray,
    n: int,
    n_tokens: int,
) -> Launch:
    """Let drafts become the best of others, as n selections of ``listed`` int32[...] say.

    Those that go on have tokens below ``n_tokens``.
    """
    arguments = _TAKE_BEST.arguments(
        selections=selections, listed=listed, drafts=drafts, nodes=nodes, n_tokens=n_tokens
    )
    return Launch(_TAKE_BEST, (n, 1), arguments)


def write_paths(paths: DeviceArray, nodes: DeviceArray, numbers: DeviceArray, n: int) -> Launch:
    """Write the drafts in n texts to ``numbers`` int32[...]; ``paths`` are of type ``PATH`` [n]."""
    arguments = _WRITE_PATHS.arguments(paths=paths, nodes=nodes, numbers=numbers, n=n)
    return Launch(_WRITE_PATHS, (blocks_of(n), 1), arguments)


def follow(**arguments: Any) -> Launch:
    """Let n rows, ``tree_rows`` of type ``TREE_ROW`` [n], get their drafts; see ``follow.cu``.

    ``row_of`` int32[n_drafts] has room for the row of each draft. ``numbers`` int32[...] are the
    drafts in the texts of choices; those that a text does not have are number ``n_drafts``, whose
    token is none. ``visible`` int32[n_rows, 4] is what the rows see within a ``window``.
    """
    return Launch(_FOLLOW, (1, 1), _FOLLOW.arguments(**arguments))


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
    """Let states go on along n trees, as rows come after each other now; see ``walk_trees.cu``.

    ``trees`` are of type ``TREE`` [n]; ``walks`` int32[...] are of at most ``n_seq`` sequences and
    ``n_rows`` rows, each with ``room`` for advances.
    """
    arguments = _WALK_TREES.arguments(
        trees=trees, parents=parents, walks=walks, n_seq=n_seq, n_rows=n_rows, room=room
    )
    return Launch(_WALK_TREES, (n, 1), arguments, block=32)
