"""What is known of a draft tree before it grows: which nodes it can have, and which are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from mtpcore.backends.base import PENDING, TreeBranch, TreeNode
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.growing_tree import max_depth

__all__ = ["Outline", "Outlines", "outline"]


class Outline:
    """The branches and nodes of a tree, as many as it has if nothing ends early.

    A branch gets children: the pending token, which is the first one, or a node that is run. Of a
    fixed tree these are known; of a grown one each depth has as many as the tree is wide, and which
    nodes they are is found when it grows.

    Parameters
    ----------
    shape : TreeShape
    depth : int
        Levels at most.

    Attributes
    ----------
    depth : int
    branches : list of int or None
        The node of each; None where it is chosen when the tree grows.
    first : list of int
        The first branch of each depth, and how many there are.
    above : list of int
        The branch before each one, -1 for none; of a grown tree any of the depth before.
    nodes : list of TreeNode
        By branch.
    children : list of range
        The nodes of each branch.
    order : list of int
        Nodes in the order in which they are verified; of a grown tree as many as are verified.
    """

    def __init__(self, shape: TreeShape, depth: int) -> None:
        self.shape, self.depth = shape, min(depth, max_depth(shape))
        self.branches: list[int | None] = [PENDING]
        self.first, self.above = [0], [-1]
        self.nodes: list[TreeNode] = []
        self.order: list[int] = []
        if shape.paths:
            self._follow_paths()
        else:
            self._widen()
        self.first.append(len(self.branches))
        counts = Counter(node.branch for node in self.nodes)
        ends = [*accumulate(counts[branch] for branch in range(len(self.branches)))]
        self.children = [range(begin, end) for begin, end in pairwise([0, *ends])]

    def _follow_paths(self) -> None:
        starts = dict.fromkeys(
            path[:n] for path in self.shape.paths for n in range(1, self.depth + 1)
        )
        children: dict[tuple[int, ...], list[int]] = {}
        for start in starts:
            children.setdefault(start[:-1], []).append(start[-1])
        number: dict[tuple[int, ...], int] = {}
        level: list[tuple[int, ...]] = [()]
        for depth in range(self.depth):
            following = []
            for branch, ranks in enumerate(level, self.first[depth]):
                for rank in sorted(children[ranks]):
                    node = *ranks, rank
                    number[node] = len(self.nodes)
                    self.nodes.append(TreeNode(branch, rank))
                    if node in children:
                        following.append(node)
                        self.branches.append(number[node])
                        self.above.append(branch)
            if depth + 1 < self.depth:
                self.first.append(self.first[depth] + len(level))
            level = following
        self.order = [number[start] for start in starts]

    def _widen(self) -> None:
        width = self.shape.width
        for depth in range(1, self.depth):
            self.first.append(len(self.branches))
            self.above += [self.first[depth - 1]] * width
            self.branches += [None] * width
        self.nodes = [TreeNode(b, rank) for b in range(len(self.branches)) for rank in range(width)]
        self.order = [*range(min(self.shape.n_nodes, len(self.nodes)))]

    def level(self, depth: int) -> range:
        """Return the branches of a depth; none where it is not reached."""
        return range(*self.first[depth : depth + 2]) if depth < self.depth else range(0)

    def paths(self, depth: int) -> list[int]:
        """Return the branches below the pending token that those of a depth are reached by.

        Of a grown tree these are all.
        """
        if not self.shape.paths:
            return [*range(1, self.first[depth + 1])]
        found, level = set[int](), {*self.level(depth)}
        while level - {0}:
            found |= level
            level = {self.above[branch] for branch in level}
        return sorted(found)

    @cached_property
    def placeholder(self) -> DraftTree:
        """A tree with the parents of what is verified, and any tokens."""
        siblings, tokens = Counter[int](), []
        for above in self.parents:
            tokens.append(siblings[above])
            siblings[above] += 1
        return DraftTree(tokens, self.parents)

    @cached_property
    def parents(self) -> list[int]:
        """Where the node above each one stands in the order; -1: it follows the pending token.

        Of a grown tree a chain as long as that can be, and the rest beside it.
        """
        if not self.shape.paths:
            return [i - 1 if i < self.depth else -1 for i in range(len(self.order))]
        place = {node: i for i, node in enumerate(self.order)}
        above = [self.branches[self.nodes[node].branch] for node in self.order]
        return [-1 if node is None else place.get(node, -1) for node in above]


@lru_cache(maxsize=64)
def outline(shape: TreeShape, depth: int) -> Outline:
    """Return the outline of a tree, which many rounds ask for."""
    return Outline(shape, depth)


class Outlines:
    """Those of several sequences, with their branches and nodes numbered together.

    Attributes
    ----------
    branches : list of TreeBranch
        By depth, and of each depth by sequence.
    nodes : list of TreeNode
        By branch.
    order : list of list of int
        Of each sequence.
    """

    def __init__(self, outlines: Sequence[Outline]) -> None:
        self.each = outlines
        self.branches: list[TreeBranch] = []
        self.nodes: list[TreeNode] = []
        self._number: dict[tuple[int, int], int] = {}
        own: list[dict[int, int]] = [{PENDING: PENDING} for _ in outlines]
        for depth in range(max(one.depth for one in outlines)):
            for i, one in enumerate(outlines):
                for branch in one.level(depth):
                    self._number[i, branch] = len(self.branches)
                    node = one.branches[branch]
                    joined = None if node is None else own[i][node]
                    self.branches.append(TreeBranch(i, depth, joined))
                    for child in one.children[branch]:
                        own[i][child] = len(self.nodes)
                        self.nodes.append(TreeNode(self._number[i, branch], one.nodes[child].rank))
        self.order = [[own[i][node] for node in one.order] for i, one in enumerate(outlines)]

    def number(self, i: int, branch: int) -> int:
        """Return the number of a sequence's branch among all."""
        return self._number[i, branch]
