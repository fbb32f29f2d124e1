"""Draft trees: several guesses for the same position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore.boundary.arguments import read
from mtpcore.boundary.arrays import flags, integers
from mtpcore.errors import BatchError

__all__ = ["Draft", "DraftTree", "cut_draft", "depth_of"]

I32 = NDArray[np.int32]


class DraftTree:
    """Drafts that branch after the pending token.

    Each path down from the pending token is one possible continuation; paths share their
    beginnings. Nodes come best first: if there is no room for all, the last ones are dropped, and
    the rest is a tree.

    Parameters
    ----------
    tokens : array_like of int, shape (n,)
        Token id of each node.
    parent : array_like of int, shape (n,)
        The node that a node follows, always an earlier one; -1 follows the pending token. Children
        of one node have different tokens.

    Raises
    ------
    BatchError
        Shapes or parents that are no tree, or one token twice among siblings.

    Examples
    --------
    >>> tree = DraftTree([7, 9, 8], [-1, -1, 0])
    >>> tree.depth.tolist(), tree.children(0)
    ([1, 1, 2], [2])
    """

    __slots__ = ("_parent", "_tokens")

    def __init__(self, tokens: ArrayLike, parent: ArrayLike) -> None:
        self._tokens = integers(tokens, "tokens of a draft tree")
        self._parent = integers(parent, "parents of a draft tree")
        self._tokens.flags.writeable = self._parent.flags.writeable = False
        n = len(self.tokens) if self.tokens.ndim == 1 else -1
        if self.parent.shape != (n,):
            raise BatchError(
                "a draft tree has one parent a token",
                wanted="two arrays [n]",
                got=f"{list(self.tokens.shape)} and {list(self.parent.shape)}",
            )
        bad = np.flatnonzero((self.parent < -1) | (self.parent >= np.arange(n)))
        if len(bad):
            raise BatchError(
                "a parent is an earlier node of the tree, or -1",
                where=f"node {bad[0]}",
                got=int(self.parent[bad[0]]),
            )
        seen: dict[tuple[int, int], int] = {}
        for node, known in enumerate(zip(self.parent.tolist(), self.tokens.tolist(), strict=True)):
            if seen.setdefault(known, node) != node:
                raise BatchError(
                    "siblings of a draft tree have different tokens",
                    where=f"nodes {seen[known]} and {node}",
                    got=known[1],
                )

    @property
    def tokens(self) -> I32:
        """int32[n]: the token of each node; read-only."""
        return self._tokens

    @property
    def parent(self) -> I32:
        """int32[n]: the node before each node, -1 for the pending token; read-only."""
        return self._parent

    def __reduce__(self) -> tuple[type[DraftTree], tuple[I32, I32]]:
        return DraftTree, (self.tokens, self.parent)  # a copy's arrays are read-only, too

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"DraftTree({self.tokens.tolist()}, {self.parent.tolist()})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DraftTree):
            return NotImplemented
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.parent, other.parent
        )

    def __hash__(self) -> int:
        return hash((self.tokens.tobytes(), self.parent.tobytes()))

    @property
    def depth(self) -> I32:
        """int32[n]: how many tokens after the pending one each node stands, from 1."""
        depths = np.ones(len(self), np.int32)
        for node, above in enumerate(self.parent.tolist()):
            if above >= 0:
                depths[node] = depths[above] + 1
        return depths

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return np.array_equal(self.parent, np.arange(-1, len(self) - 1))

    def children(self, node: int) -> list[int]:
        """Return the nodes that follow a node, or for -1 the pending token.

        Raises
        ------
        BatchError
            There is no such node.
        """
        node = read(node, int, "no such node", wanted=f"-1..{len(self) - 1}")
        if not -1 <= node < len(self):
            raise BatchError("no such node", wanted=f"-1..{len(self) - 1}", got=node)
        return np.flatnonzero(self.parent == node).tolist()

    def select(self, kept: ArrayLike) -> DraftTree:
        """Return the tree of the ``kept`` nodes, bool[n]; what follows others goes with these.

        Raises
        ------
        BatchError
            Not one bool a node.
        """
        wanted = flags(kept, len(self), "kept nodes").tolist()
        number: dict[int, int] = {-1: -1}
        for node, above in enumerate(self.parent.tolist()):
            if wanted[node] and above in number:
                number[node] = len(number) - 1
        nodes = list(number)[1:]
        return DraftTree(self.tokens[nodes], [number[int(above)] for above in self.parent[nodes]])


Draft = Sequence[int] | DraftTree
"""Guesses after the pending token: a chain of ids, or a tree."""


def depth_of(draft: Draft) -> int:
    """Return how many tokens of a draft follow each other."""
    return int(draft.depth.max(initial=0)) if isinstance(draft, DraftTree) else len(draft)


def cut_draft(draft: Draft, depth: int) -> Draft:
    """Return the tokens of a draft that are no deeper."""
    if isinstance(draft, DraftTree):
        return draft if depth >= depth_of(draft) else draft.select(draft.depth <= depth)
    return draft[:depth]
