"""Trees as the stages of a schedule.

The grown form is that of Li, Wei, Zhang and Zhang (2024, arXiv 2406.16858), with shares of the
choice in place of probabilities; at temperature 0 the two are the same. The fixed form is that of
Cai et al. (2024, arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mtpcore.backends.schedule import (
    BEST,
    PENDING,
    Best,
    DraftToken,
    Fill,
    Pick,
    Round,
    Stage,
)
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.rounds import RoundInput
from mtpcore.graph.program import Program

__all__ = ["Branch", "Trees", "draft_head_trees", "draft_trees", "is_blind", "trees_for"]


class Branch(NamedTuple):
    """What gets children: the pending token or a draft; and their ranks and numbers."""

    draft: int
    children: Sequence[tuple[int, int]]


class Trees:
    """Drafts that branch, numbered text by text.

    Branches have children. Of a fixed tree they are drafts of the level before; of a grown one the
    best drafts of that level, whichever these are, and the best of all drafts are verified. Where
    rows do not have room, trees have fewer branches.

    Parameters
    ----------
    shape : TreeShape
    wanted : sequence of int
        Levels of each text's tree, at most.
    room : sequence of int
        How many rows of drafts each text may have in a pass.
    has_paths : bool
        Whether a pass has the rows of all branches before those of its level, too.

    Attributes
    ----------
    drafts : list of DraftToken
    bests : list of Best
    levels : list of list of list of Branch
        Of each text, by depth; the pending token has depth 0.
    """

    def __init__(
        self, shape: TreeShape, wanted: Sequence[int], room: Sequence[int], *, has_paths: bool
    ) -> None:
        self.drafts: list[DraftToken] = []
        self.levels: list[list[list[Branch]]] = [[] for _ in wanted]
        self._has_paths = has_paths
        self._bests: list[tuple[int, int, Best]] = []  # level and text of the last candidate
        add = self._add_fixed if shape.paths else self._add_grown
        for text, depth in enumerate(wanted):
            if depth > 0:
                add(shape, text, min(depth, shape.n_levels), room[text])
        self.bests = [best for *_, best in sorted(self._bests, key=lambda one: one[:2])]
        self.depth = max(map(len, self.levels), default=0)

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
        self.levels[text] = [
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
            self.levels[text].append(branches)
            nodes += candidates
            n = min(shape.width, self._room(self.levels[text], room))
            if at + 1 < depth and n:
                level = self._add_best(text, candidates, n, goes_on=True)
            else:
                break
        self._add_best(text, nodes, min(shape.n_nodes, len(nodes)), goes_on=False)

    def _add_best(self, text: int, candidates: list[int], n: int, *, goes_on: bool) -> list[int]:
        numbers = [*range(len(self.drafts), len(self.drafts) + n)]
        self.drafts += [DraftToken(text, BEST)] * n
        self._bests.append((len(self.levels[text]) - 1, text, Best(candidates, numbers, goes_on)))
        return numbers

    def branches(self, text: int, depth: int) -> list[tuple[int, Branch]]:
        """Return what has rows in a pass at this depth, and how deep it is.

        The pending token has none.
        """
        levels = self.levels[text]
        if depth >= len(levels):
            return []
        first = 1 if self._has_paths else max(depth, 1)
        return [(n, branch) for n in range(first, depth + 1) for branch in levels[n]]

    def choosing(self, text: int, depth: int) -> list[Branch]:
        """Return what gets children by a pass at this depth."""
        return self.levels[text][depth] if depth < len(self.levels[text]) else []


_trees_of = lru_cache(maxsize=64)(Trees)
"""Trees that many rounds ask for."""


def picks_of(branch: Branch, output: int) -> list[Pick]:
    """Return what chooses the children of a branch."""
    return [Pick(output, draft, rank) for rank, draft in branch.children]


def trees_for(
    shape: TreeShape, wanted: Sequence[int], room: Sequence[int], *, has_paths: bool
) -> Trees:
    """Return the trees of a round; see ``Trees``."""
    most = tuple([min(n, shape.n_branches) for n in room])
    return _trees_of(shape, tuple(wanted), most, has_paths=has_paths)


def draft_trees(inputs: RoundInput) -> Round:
    """Draft trees with one graph: a pass for each level."""
    assert inputs.tree is not None
    has_paths = inputs.programs[0].remembers
    trees = trees_for(inputs.tree, inputs.wanted, inputs.room, has_paths=has_paths)
    texts = range(len(inputs.wanted))
    roots = [(text, branch) for text in texts for branch in trees.choosing(text, 0)]
    stages = [Stage(picks=[pick for text, branch in roots for pick in picks_of(branch, text)])]
    for depth in range(1, trees.depth):
        fills, picks = list[Fill](), list[Pick]()
        for text in texts:
            for at, branch in trees.branches(text, depth):
                if at == depth:
                    picks += picks_of(branch, len(fills))
                fills.append(Fill(text, branch.draft, ahead=at))
        stages.append(Stage(rows="tree", fills=fills, feeds=inputs.feeds, picks=picks))
    return Round(stages=stages, drafts=trees.drafts, bests=trees.bests)


def draft_head_trees(inputs: RoundInput) -> Round:
    """Draft trees with heads, of which each gives the branches of its level their children."""
    assert inputs.tree is not None
    programs = inputs.programs
    has_paths = any(program.remembers for program in programs)
    trees = trees_for(inputs.tree, inputs.wanted, inputs.room, has_paths=has_paths)
    heads = range(min(len(programs), max(trees.depth, 1)))
    stages = [_head_stage(head, programs[head], trees, inputs.feeds) for head in heads]
    return Round(stages=stages, drafts=trees.drafts, bests=trees.bests)


def _head_stage(
    depth: int, program: Program, trees: Trees, feeds: Mapping[str, Sequence[str]]
) -> Stage:
    """Return the pass of a head: of each text what it reads, and then the rows of drafts.

    Those whose branches get children are outputs, the last ones of a text.
    """
    fills, picks, n_outputs = list[Fill](), list[Pick](), 0
    runs_once = depth == 0 or is_blind(program, feeds)
    for text in range(len(trees.levels)):
        choosing = trees.choosing(text, depth)
        if runs_once:
            for branch in choosing:
                picks += picks_of(branch, n_outputs)
            n_outputs += bool(choosing)
            continue
        for branch in choosing:
            picks += picks_of(branch, n_outputs)
            n_outputs += 1
        branches = trees.branches(text, depth)
        for n_after, (_, branch) in zip(reversed(range(len(branches))), branches, strict=True):
            fills.append(Fill(n_outputs - 1, branch.draft, ahead=-n_after))
    return Stage(graph=depth, fills=fills, feeds=feeds if fills else {}, picks=picks)


def is_blind(program: Program, feeds: Mapping[str, Sequence[str]]) -> bool:
    """Say whether what a head makes depends neither on drafts nor on where they stand."""
    reads = {i for node in program.nodes for i in node.inputs}
    inputs = program.inputs
    named = {inputs[name] for name in ("tokens", "positions") if name in inputs}
    return not (program.remembers or feeds or reads & named)
