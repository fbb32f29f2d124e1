"""Drafting trees with several heads: each gives the nodes of one level their children."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.schedule import n_embeddings
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.growing_tree import GrowingTree
from mtpcore.drafting.heads import HeadDrafter
from mtpcore.drafting.outline import Outlines, outline
from mtpcore.drafting.tree_runs import (
    Grown,
    PassRows,
    TreeRows,
    can_grow_at_once,
    grow_at_once,
)
from mtpcore.drafting.trees import Branch, branch
from mtpcore.runtime.batch import Batch

__all__ = ["HeadTreeDrafter"]


class HeadTreeDrafter(HeadDrafter):
    """Heads whose drafts branch: head t ranks the children of the nodes of level t.

    A head with a memory reads the accepted entries first, and then the pending token and the paths
    to its nodes, which are forgotten at once; one without reads its nodes alone. Where what a head
    makes does not depend on drafts, it runs once for all nodes of a sequence (Cai et al. 2024,
    arXiv 2401.10774).
    """

    def _draft_together(
        self,
        wanted: list[tuple[DraftJob, int]],
        drafts: dict[int, Draft],
        verify: Verify | None,
    ) -> None:
        assert self.spec.tree is not None
        made = self._grow_at_once(wanted, self.spec.tree, verify)
        if made is None:
            made = self._grow_by_level(wanted, self.spec.tree)
        for (job, _), (tree, is_finite) in zip(wanted, made, strict=True):
            drafts[job.seq] = tree
            if not is_finite or (not len(tree) and job.p_min <= 0):
                self._pause(job.seq, len(job.history) - 1)

    @property
    def _n_tokens(self) -> int:
        """How many tokens every head has embeddings of; 0 where none reads tokens."""
        tables = filter(None, (n_embeddings(runner.program) for runner in self._heads))
        return min(tables, default=0)

    def _grow_at_once(
        self, wanted: list[tuple[DraftJob, int]], shape: TreeShape, verify: Verify | None
    ) -> list[Grown] | None:
        """Return the trees where all passes run in one go."""
        jobs, passes = [job for job, _ in wanted], []
        if not can_grow_at_once(self._heads[0], jobs):
            return None
        joined = Outlines([outline(shape, k) for _, k in wanted])
        for head in range(max(one.depth for one in joined.each)):
            rows = self._rows(head, jobs, joined)
            if rows is None:
                return None
            passes.append(rows)
        return grow_at_once(
            *(passes, jobs, joined, verify),
            recycle=self._recycle,
            token_ids=self._ids,
            n_tokens=self._n_tokens,
            keeps_first=False,
        )

    def _rows(self, head: int, jobs: list[DraftJob], joined: Outlines) -> TreeRows | None:
        """Return what a head reads; None where there is no room for it in one piece."""
        runner, is_blind, rows = self._heads[head], self._is_blind(head), PassRows()
        known: list[tuple[int, int, int]] = []  # rows, with sequence and place, that are fed
        for i, (job, one) in enumerate(zip(jobs, joined.each, strict=True)):
            level = one.level(head)
            if not level:
                continue
            run = [*level][:1] if is_blind else [*level]
            if runner.memory is not None:
                run = [0, *one.paths(head)]
                self._settle(head, job.seq, job.history[:-1])
            number: dict[int, int] = {}
            for at in run:
                joint = joined.number(i, at)
                place = len(job.history) - 1 + joined.branches[joint].depth
                if place < self._first(head):
                    continue  # the head has no row to read there
                number[at] = rows.add(
                    job.seq,
                    place,
                    number.get(one.above[at], -1),
                    branch=joint if at else -1,
                    token=0 if at else int(job.history[-1]),
                    n_ranked=len(level) if is_blind else at in level,
                )
                if self._reads_target or not at:
                    known.append((number[at], job.seq, place))
            if len(run) - (run[0] == 0) > self._room(job) or not number.keys() >= {*run[-1:]}:
                return None
        if len(rows) > runner.n_batch:
            return None
        return rows.rows(runner, self._known(head, len(rows), known))

    def _known(
        self, head: int, n: int, known: list[tuple[int, int, int]]
    ) -> dict[str, NDArray[np.float32]]:
        """Return n rows of each slot, of which the target feeds these."""
        if not known:
            return {}
        at, seq, place = (np.array(column, np.int32) for column in zip(*known, strict=True))
        sources = self._heads[head].sources
        if len(known) == n:  # rows that wait on a device stay there
            return {feed.slot: sources[feed.slot](seq, place) for feed in self._feeds}
        slots = {}
        for feed in self._feeds:
            slots[feed.slot] = np.zeros((n, self._widths[head][feed.slot]), np.float32)
            slots[feed.slot][at] = sources[feed.slot](seq, place)
        return slots

    def _grow_by_level(self, wanted: list[tuple[DraftJob, int]], shape: TreeShape) -> list[Grown]:
        """Return the trees, head by head."""
        jobs = [job for job, _ in wanted]
        trees = [GrowingTree(shape, k, self._n_tokens) for _, k in wanted]
        for head in range(max(k for _, k in wanted)):
            if not self._grow(head, jobs, trees):
                break
        return [(tree.tree(), all(row is not None for row in tree.slot_rows)) for tree in trees]

    def _grow(self, head: int, jobs: list[DraftJob], trees: list[GrowingTree]) -> bool:
        """Run a head for one more level of every tree; return whether there was one."""
        rows = _Rows()
        for job, tree in zip(jobs, trees, strict=True):
            level = sorted(tree.next_level(self._room(job))) if head else [-1]
            if level and self._heads[head].memory is not None:
                self._settle(head, job.seq, job.history[:-1])
            self._add(head, job, tree, level, rows)
        if not rows.branching:
            return False
        runner = self._heads[head]
        slots = {slot: np.stack(values) for slot, values in rows.slots.items()}
        output = runner.explore(
            Batch(
                rows.tokens,
                seq=rows.seqs,
                pos=rows.places,
                parent=rows.parent,
                outputs=rows.wanted,
                slots=slots,
            )
        )
        branch(rows.branching, output, runner, self._recycle, self._ids)
        return True

    def _add(
        self, head: int, job: DraftJob, tree: GrowingTree, level: list[int], rows: _Rows
    ) -> None:
        """Add what a head reads to give the nodes of a level their children."""
        is_blind = self._is_blind(head)
        if is_blind:
            read = level[:1]
        elif self._heads[head].memory is None:
            read = level
        else:
            read = sorted({node for at in level for node in (-1, *tree.path(at))})
        number: dict[int, int] = {}
        for node in read:
            place = len(job.history) - 1 + (tree.level(node) if node >= 0 else 0)
            if place < self._first(head):
                continue  # the head has no row to read there
            rows.parent.append(number.get(tree.parent[node], -1) if node >= 0 else -1)
            number[node] = len(rows.tokens)
            rows.tokens.append(tree.tokens[node] if node >= 0 else int(job.history[-1]))
            rows.seqs.append(job.seq)
            rows.places.append(place)
            rows.wanted.append(node in level)
            for feed in self._feeds:
                rows.slots.setdefault(feed.slot, []).append(
                    self._slot_row(head, feed.slot, job, tree, node, place)
                )
        at = rows.n_outputs
        for i, node in enumerate(level):
            rows.branching.append((job, tree, node, at + (0 if is_blind else i)))
        rows.n_outputs += sum(rows.wanted[len(rows.tokens) - len(number) :])

    def _slot_row(
        self, head: int, slot: str, job: DraftJob, tree: GrowingTree, node: int, place: int
    ) -> NDArray[np.float32]:
        """Return what feeds a slot of a node: a row of the target, or one of its parent's head."""
        if self._reads_target or node < 0:
            one = np.array([job.seq], np.int32), np.array([place], np.int32)
            rows: NDArray[np.float32] = self._heads[head].sources[slot](*one)
            return np.asarray(rows[0])
        recycled = tree.slot_rows[node]
        assert recycled is not None
        return recycled[slot]

    def _is_blind(self, head: int) -> bool:
        """Say whether what a head makes depends neither on drafts nor on where they stand."""
        runner = self._heads[head]
        reads = {i for node in runner.program.nodes for i in node.inputs}
        inputs = runner.program.inputs
        return (
            self._reads_target
            and runner.memory is None
            and not reads & {inputs[name] for name in ("tokens", "positions") if name in inputs}
        )

    def _room(self, job: DraftJob) -> int:
        """Return how many rows a tree of this sequence may take in the heads' contexts."""
        n_ctx = min(runner.n_ctx for runner in self._heads)
        longest = min(runner.longest_draft for runner in self._heads)
        return min(n_ctx - len(job.history), self._n_batch, longest)


class _Rows:
    """The rows of a batch while it is made, and the nodes that get children by it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seqs: list[int] = []
        self.places: list[int] = []
        self.parent: list[int] = []
        self.wanted: list[bool] = []
        self.slots: dict[str, list[NDArray[np.float32]]] = {}
        self.branching: list[Branch] = []
        self.n_outputs = 0
