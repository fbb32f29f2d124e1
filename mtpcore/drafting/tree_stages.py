"""Trees as the stages of a schedule.

The grown form is that of Li, Wei, Zhang and Zhang (2024, arXiv 2406.16858), with shares of the
choice in place of probabilities; at temperature 0 the two are the same. The fixed form is that of
Cai et al. (2024, arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.schedule import (
    BEST,
    KNOWN,
    OF_DRAFT,
    PENDING,
    Best,
    DraftToken,
    Fill,
    Pick,
    Stage,
)
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.rounds import Round, RoundInput
from mtpcore.graph.program import Program

__all__ = ["Branch", "Trees", "draft_head_trees", "draft_trees", "is_blind", "trees_for"]

I32 = NDArray[np.int32]


class Branch(NamedTuple):
    """What gets children: the pending token or a draft; and their ranks and numbers."""

    draft: int
    children: Sequence[tuple[int, int]]


class Pass(NamedTuple):
    """The rows of drafts that a pass over trees has.

    Of each its text, its depth, and how many rows after the text's newest one it is; the row that
    it comes after; outputs, fills and picks as of a stage.
    """

    text: I32
    depth: I32
    step: I32
    parent: I32
    outputs: I32
    fills: list[Fill]
    picks: list[Pick]


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
        self.rows = cache(self._rows)

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

    def _rows(self, depth: int, source: int) -> Pass:
        """Return the rows of drafts that a pass has; ``source`` says what feeds their slots."""
        rows: list[tuple[int, int, int, int]] = []
        outputs, fills, picks = list[int](), list[Fill](), list[Pick]()
        for text in range(len(self.levels)):
            first: dict[int, int] = {}  # the first row of each depth
            for step, (at, branch) in enumerate(self.branches(text, depth), 1):
                row = len(rows)
                rows.append((text, at, step, first.get(at - 1, -1)))
                first.setdefault(at, row)
                fills.append(Fill(row, branch.draft, source))
                if at == depth:
                    picks += picks_of(branch, len(outputs))
                    outputs.append(row)
        columns = np.array(rows, np.int32).reshape(-1, 4)
        return Pass(
            text=columns[:, 0],
            depth=columns[:, 1],
            step=columns[:, 2],
            parent=columns[:, 3].copy(),
            outputs=np.array(outputs, np.int32),
            fills=fills,
            picks=picks,
        )


@lru_cache(maxsize=64)
def trees_of(
    shape: TreeShape, wanted: tuple[int, ...], room: tuple[int, ...], has_paths: bool
) -> Trees:
    """Return the trees that many rounds ask for."""
    return Trees(shape, wanted, room, has_paths=has_paths)


def picks_of(branch: Branch, output: int) -> list[Pick]:
    """Return what chooses the children of a branch."""
    return [Pick(output, draft, rank) for rank, draft in branch.children]


def trees_for(inputs: RoundInput, *, has_paths: bool) -> Trees:
    """Return the trees of a round."""
    assert inputs.tree is not None
    most = inputs.tree.n_branches
    room = tuple(min(room, most) for room in inputs.room)
    return trees_of(inputs.tree, tuple(inputs.wanted), room, has_paths)


def draft_trees(inputs: RoundInput) -> Round:
    """Draft trees with one graph: a pass for each level."""
    (first,), feeds = inputs.passes, inputs.feeds
    trees = trees_for(inputs, has_paths=first.memory is not None)
    batch, n_texts = first.batch, len(inputs.wanted)
    picks = [picks_of(branch, i) for i in range(n_texts) for branch in trees.choosing(i, 0)]
    stages = [replace(first, picks=[*chain.from_iterable(picks)])]
    for depth in range(1, trees.depth):
        rows = trees.rows(depth, OF_DRAFT if feeds else KNOWN)
        newest = batch.outputs[rows.text]
        own = CheckedBatch(
            tokens=np.zeros(len(newest), np.int32),
            positions=batch.positions[newest] + rows.depth[:, None],
            seq=batch.seq[newest],
            place=batch.place[newest] + rows.step,
            outputs=rows.outputs,
            parent=rows.parent,
        )
        stages.append(
            Stage(
                plan=first.plan,
                memory=first.memory,
                batch=own,
                fills=rows.fills,
                feeds=feeds,
                picks=rows.picks,
            )
        )
    return Round(stages=stages, drafts=trees.drafts, bests=trees.bests)


def draft_head_trees(inputs: RoundInput) -> Round:
    """Draft trees with heads, of which each gives the branches of its level their children."""
    has_paths = any(head.memory is not None for head in inputs.passes)
    trees = trees_for(inputs, has_paths=has_paths)
    heads = inputs.passes[: max(trees.depth, 1)]
    stages = [_head_stage(head, depth, trees, inputs.feeds) for depth, head in enumerate(heads)]
    return Round(stages=stages, drafts=trees.drafts, bests=trees.bests)


def _head_stage(head: Stage, depth: int, trees: Trees, feeds: Mapping[str, Sequence[str]]) -> Stage:
    """Return the pass of a head: of each text what it reads, and then the rows of drafts."""
    output_of = {row: output for output, row in enumerate(head.batch.outputs.tolist())}
    fills, picks, end = list[Fill](), list[Pick](), 0
    runs_once = is_blind(head.plan.program, head.memory is not None, feeds)
    texts = [text for text in range(len(trees.levels)) if trees.choosing(text, depth)]
    for text, (_, rows) in zip(texts, groupby(head.batch.seq.tolist()), strict=True):
        begin, end = end, end + len([*rows])
        if runs_once or not depth:
            for branch in trees.choosing(text, depth):
                picks += picks_of(branch, output_of[end - 1])
            continue
        branches = trees.branches(text, depth)[begin - end :]
        for row, (at, branch) in enumerate(branches, end - len(branches)):
            fills.append(Fill(row, branch.draft, OF_DRAFT if feeds else KNOWN))
            if at == depth:
                picks += picks_of(branch, output_of[row])
    return replace(head, fills=fills, feeds=feeds if fills else {}, picks=picks)


def is_blind(program: Program, remembers: bool, feeds: Mapping[str, Sequence[str]]) -> bool:
    """Say whether what a head makes depends neither on drafts nor on where they stand."""
    reads = {i for node in program.nodes for i in node.inputs}
    inputs = program.inputs
    named = {inputs[name] for name in ("tokens", "positions") if name in inputs}
    return not (remembers or feeds or reads & named)
