"""How a draft tree grows: which nodes are run next, which children they get, which are verified.

The grown form is that of Li, Wei, Zhang and Zhang (2024, arXiv 2406.16858), with shares of the
choice in place of probabilities; at temperature 0 the two are the same. The fixed form is that of
Cai et al. (2024, arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.spec import TreeShape

__all__ = ["GrowingTree", "max_depth"]

Ranking = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]
SlotRows = Mapping[str, NDArray[np.float32]]


def max_depth(shape: TreeShape) -> int:
    """Return how many tokens in a row a tree of this shape holds at most."""
    return max((len(path) for path in shape.paths), default=shape.depth)


class GrowingTree:
    """The tree of one sequence while it grows, level by level.

    A node's worth is the product of the shares on the way to it (see ``Sampler.rank``); it never
    rises on the way down, and a first child is worth at least as much as its siblings. So the best
    nodes of all are a tree, and hold a node's first child where they hold any.

    Parameters
    ----------
    shape : TreeShape
    depth : int
        Levels at most.
    n_tokens : int
        Tokens from this one on are not run, for the drafter has no embedding of them; 0: all are.
    """

    def __init__(self, shape: TreeShape, depth: int, n_tokens: int) -> None:
        self.shape, self.n_tokens = shape, n_tokens
        self.depth = min(depth, max_depth(shape))
        self.tokens: list[int] = []
        self.parent: list[int] = []
        self.slot_rows: list[SlotRows | None] = []
        self._score: list[float] = []
        self._ranks: list[tuple[int, ...]] = []
        self._newest: list[int] = []
        starts = (path[:n] for path in shape.paths for n in range(1, len(path) + 1))
        self._order = {start: i for i, start in enumerate(dict.fromkeys(starts))}

    def path(self, node: int) -> list[int]:
        """Return the nodes on the way from the pending token to a node, both ends included."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parent[node]
        return found[::-1]

    def level(self, node: int) -> int:
        """Return how many tokens after the pending one a node stands."""
        return len(self._ranks[node])

    def n_ranked(self, node: int) -> int:
        """Return how many ranked tokens the children of a node are taken from."""
        if not self.shape.paths:
            return self.shape.width
        ranks = self._ranks[node] if node >= 0 else ()
        return max((s[-1] + 1 for s in self._order if s[:-1] == ranks), default=0)

    def branch(self, node: int, ranking: Ranking, slot_rows: SlotRows | None, p_min: float) -> None:
        """Give a node its children; ``slot_rows`` are what they will be run with, if any."""
        ranks = self._ranks[node] if node >= 0 else ()
        above = self._score[node] if node >= 0 else 1.0
        columns = (column.tolist() for column in ranking)
        for rank, (token, p, share) in enumerate(zip(*columns, strict=True)):
            if p < p_min or (self.shape.paths and (*ranks, rank) not in self._order):
                continue
            self._newest.append(len(self.tokens))
            self.tokens.append(token)
            self.parent.append(node)
            self.slot_rows.append(slot_rows)
            self._score.append(above * share)
            self._ranks.append((*ranks, rank))

    def next_level(self, room: int) -> list[int]:
        """Return which of the newest nodes to run, the best ones, as far as there is room.

        The nodes before them count: they are run again. Empty where the tree is grown.
        """
        newest, self._newest = self._newest, []
        if not newest or self.level(newest[0]) >= self.depth:
            return []
        able = [
            node
            for node in newest
            if self.slot_rows[node] is not None
            and (not self.n_tokens or self.tokens[node] < self.n_tokens)
            and self.n_ranked(node)
        ]
        if not self.shape.paths:
            able = sorted(able, key=lambda node: -self._score[node])[: self.shape.width]
        chosen: list[int] = []
        rows: set[int] = set()
        for node in able:
            rows |= {*self.path(node)}
            if len(rows) > room:
                break
            chosen.append(node)
        return chosen

    def tree(self) -> DraftTree:
        """Return the nodes to verify, the best first, or in the order of the fixed paths."""
        nodes = list(range(len(self.tokens)))
        if self.shape.paths:
            nodes.sort(key=lambda node: self._order[self._ranks[node]])
        else:
            nodes.sort(key=lambda node: -self._score[node])
            nodes = nodes[: self.shape.n_nodes]
        number = {node: i for i, node in enumerate([-1, *nodes], -1)}
        return DraftTree(
            [self.tokens[node] for node in nodes], [number[self.parent[node]] for node in nodes]
        )
