"""Drafts by level, equally far from the pending token: chains, fixed and grown trees.

The grown form is that of Li, Wei, Zhang and Zhang (2024, arXiv 2406.16858), with shares of the
choice in place of probabilities; at temperature 0 the two are the same. The fixed form is that of
Cai et al. (2024, arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from mtpcore.backends.schedule import BEST, CHOICE, PENDING, Best, DraftToken, Pick
from mtpcore.declarations.spec import TreeShape

__all__ = ["Branch", "Levels", "levels_for"]


class Branch(NamedTuple):
    """What gets children: the pending token or a draft; and their ranks and numbers."""

    draft: int
    children: Sequence[tuple[int, int]]

    def picks(self, output: int) -> list[Pick]:
        """Return what chooses the children of a branch."""
        return [Pick(output, draft, rank) for rank, draft in self.children]


class Levels:
    """Drafts of texts by level, numbered text by text.

    Branches have children. Of a chain each draft is one; of a fixed tree they are drafts of the
    level before; of a grown one the best drafts of that level, whichever these are, and the best of
    all drafts are verified. Where rows do not have room, trees have fewer branches.

    Parameters
    ----------
    shape : TreeShape, optional
        None: of chains.
    wanted : sequence of int
        Levels of each text's drafts, at most.
    room : sequence of int
        How many rows of drafts each text may have in a pass; of chains they have it.
    has_paths : bool
        Whether a pass has the rows of all branches before those of its level, too.

    Attributes
    ----------
    drafts : list of DraftToken
    bests : list of Best
    by_text : list of list of list of Branch
        Of each text, by depth; the pending token has depth 0.
    depth : int
        How many levels any text has.
    """

    def __init__(
        self,
        shape: TreeShape | None,
        wanted: Sequence[int],
        room: Sequence[int],
        *,
        has_paths: bool,
    ) -> None:
        self.drafts: list[DraftToken] = []
        self.by_text: list[list[list[Branch]]] = [[] for _ in wanted]
        self._has_paths = has_paths
        self._bests: list[tuple[int, int, Best]] = []  # level and text of the last candidate
        for text, depth in enumerate(wanted):
            if shape is None:
                self._add_chain(text, depth)
            elif depth > 0:
                add = self._add_fixed if shape.paths else self._add_grown
                add(shape, text, min(depth, shape.n_levels), room[text])
        self.bests = [best for *_, best in sorted(self._bests, key=lambda one: one[:2])]
        self.depth = max(map(len, self.by_text), default=0)

    def _add_chain(self, text: int, depth: int) -> None:
        for at in range(depth):
            number = len(self.drafts)
            parent = number - 1 if at else PENDING
            self.drafts.append(DraftToken(text, parent))
            self.by_text[text].append([Branch(parent, [(CHOICE, number)])])

    def _room(self, levels: Sequence[Sequence[object]], room: int) -> int:
        """Return how many branches the next level has room for."""
        return max(room - self._has_paths * sum(map(len, levels[1:])), 0)

    def _add_fixed(self, shape: TreeShape, text: int, depth: int, room: int) -> None:
        paths = [*dict.fromkeys(path[:n] for path in shape.paths for n in range(1, depth + 1))]
        kept: list[list[tuple[int, ...]]] = [[()]]
        for level in range(1, depth):
            inner = {path[:-1] for path in paths if len(path) == level + 1}
            kept.append([path for path in paths if path in inner][: self._room(kept, room)])
        branches = {path for level in kept for path in level}
        paths = [path for path in paths if path[:-1] in branches]
        number = {path: i for i, path in enumerate(paths, len(self.drafts))} | {(): PENDING}
        self.drafts += [DraftToken(text, number[path[:-1]]) for path in paths]
        children: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for path in paths:
            children.setdefault(path[:-1], []).append((path[-1], number[path]))
        self.by_text[text] = [
            [Branch(number[path], children[path]) for path in level] for level in kept if level
        ]

    def _add_grown(self, shape: TreeShape, text: int, depth: int, room: int) -> None:
        nodes, level = list[int](), [PENDING]
        for at in range(depth):
            branches, candidates = list[Branch](), list[int]()
            for draft in level:
                first = len(self.drafts)
                self.drafts += [DraftToken(text, draft)] * shape.width
                branches.append(Branch(draft, [(n, first + n) for n in range(shape.width)]))
                candidates += range(first, first + shape.width)
            self.by_text[text].append(branches)
            nodes += candidates
            n = min(shape.width, self._room(self.by_text[text], room))
            if at + 1 < depth and n:
                level = self._add_best(text, candidates, n, goes_on=True)
            else:
                break
        self._add_best(text, nodes, min(shape.n_nodes, len(nodes)), goes_on=False)

    def _add_best(self, text: int, candidates: list[int], n: int, *, goes_on: bool) -> list[int]:
        numbers = [*range(len(self.drafts), len(self.drafts) + n)]
        self.drafts += [DraftToken(text, BEST)] * n
        self._bests.append((len(self.by_text[text]) - 1, text, Best(candidates, numbers, goes_on)))
        return numbers

    def branches(self, text: int, depth: int) -> list[tuple[int, Branch]]:
        """Return what has rows in a pass at this depth, and how deep it is.

        The pending token has none.
        """
        levels = self.by_text[text]
        if depth >= len(levels):
            return []
        first = 1 if self._has_paths else max(depth, 1)
        return [(n, branch) for n in range(first, depth + 1) for branch in levels[n]]

    def choosing(self, text: int, depth: int) -> list[Branch]:
        """Return what gets children by a pass at this depth."""
        return self.by_text[text][depth] if depth < len(self.by_text[text]) else []


_levels_of = lru_cache(maxsize=64)(Levels)
"""Levels that many rounds ask for."""


def levels_for(
    shape: TreeShape | None, wanted: Sequence[int], room: Sequence[int], *, has_paths: bool
) -> Levels:
    """Return the levels of a round's drafts; see ``Levels``."""
    most = shape.n_branches if shape else 0
    return _levels_of(
        shape, tuple(wanted), tuple([min(n, most) for n in room]), has_paths=has_paths
    )
