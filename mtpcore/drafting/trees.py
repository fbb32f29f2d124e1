"""Drafting trees with a graph that drafts token by token, and what other drafters of trees use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.schedule import n_embeddings
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.chain import GraphDrafter
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.growing_tree import GrowingTree
from mtpcore.drafting.outline import Outlines, outline
from mtpcore.drafting.tree_runs import (
    Grown,
    PassRows,
    TreeRows,
    can_grow_at_once,
    grow_at_once,
)
from mtpcore.graph.program import OUTPUTS
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner

__all__ = ["Branch", "TreeDrafter", "branch"]

Branch = tuple[DraftJob, GrowingTree, int, int]
"""A node that gets children, whose tree it belongs to, and its row of logits; -1 is the pending
token."""


class TreeDrafter(GraphDrafter):
    """A drafter's graph whose drafts branch; entries are kept as ``GraphDrafter`` keeps them.

    A node's children are ranked by the sampler: the first is what a chain would draft there. A
    child is run with the row that its parent recycles.

    The nodes on the way are run again with each level, for what ``explore`` wrote is forgotten: a
    level costs the rows of its paths, up to its depth times the tree's width. Keeping them would
    save that and cost a memory whose newest rows are a tree. A graph without a memory runs the
    level's nodes alone.
    """

    def _run_together(
        self, jobs: list[DraftJob], drafts: dict[int, Draft], verify: Verify | None
    ) -> None:
        assert self.spec.tree is not None
        made = self._grow_at_once(jobs, self.spec.tree, verify)
        if made is None:
            made = self._grow_by_level(jobs, self.spec.tree)
        for job, (tree, is_finite) in zip(jobs, made, strict=True):
            drafts[job.seq] = tree
            if not is_finite or (not len(tree) and job.p_min <= 0):
                self._pause(job.seq, len(job.history) - 1)

    def _grow_at_once(
        self, jobs: list[DraftJob], shape: TreeShape, verify: Verify | None
    ) -> list[Grown] | None:
        """Return the trees where all passes run in one go, and whether their rows are finite."""
        if not can_grow_at_once(self.runner, jobs):
            return None
        joined = Outlines([outline(shape, job.k) for job in jobs])
        passes = self._passes(jobs, joined)
        if passes is None:
            return None
        return grow_at_once(
            *(passes, jobs, joined, verify),
            recycle=self._recycle,
            token_ids=self._ids,
            n_tokens=n_embeddings(self.runner.program),
            keeps_first=True,
        )

    def _passes(self, jobs: list[DraftJob], joined: Outlines) -> list[TreeRows] | None:
        """Return the rows of all passes; None where there is no room for them in one piece."""
        first = self._missing(jobs)
        passes = [TreeRows(self.runner, first, [-1] * len(first), [*range(len(jobs))])]
        for depth in range(1, max(one.depth for one in joined.each)):
            rows = PassRows()
            for i, (job, one) in enumerate(zip(jobs, joined.each, strict=True)):
                level = one.level(depth)
                run = one.paths(depth) if level and self._remembers else level
                if len(run) > self._room(job):
                    return None
                number: dict[int, int] = {}
                for at in run:
                    joint = joined.number(i, at)
                    place = len(job.history) + joined.branches[joint].depth - 1
                    above = number.get(one.above[at], -1)
                    number[at] = rows.add(job.seq, place, above, branch=joint, n_ranked=at in level)
            if len(rows) > self.runner.n_batch:
                return None
            passes.append(rows.rows(self.runner, {}))
        return passes

    def _grow_by_level(self, jobs: list[DraftJob], shape: TreeShape) -> list[Grown]:
        """Return the trees, level by level, and whether their rows are finite."""
        n_tokens = n_embeddings(self.runner.program)
        output = self.runner.process(self._missing(jobs))
        for job in jobs:
            self._rewind(job.seq, len(job.history))
        trees = [GrowingTree(shape, job.k, n_tokens) for job in jobs]
        roots = [(job, tree, -1, i) for i, (job, tree) in enumerate(zip(jobs, trees, strict=True))]
        branch(roots, output, self.runner, self._recycle, self._ids)
        while self._grow(jobs, trees):
            pass
        return [(tree.tree(), all(rows is not None for rows in tree.slot_rows)) for tree in trees]

    def _grow(self, jobs: list[DraftJob], trees: list[GrowingTree]) -> bool:
        """Run one more level of every tree; return whether there was one."""
        tokens: list[int] = []
        seqs: list[int] = []
        pos: list[int] = []
        parent: list[int] = []
        wanted: list[bool] = []
        slots: dict[str, list[np.ndarray]] = {slot: [] for slot in self._recycle}
        branching: list[Branch] = []
        for job, tree in zip(jobs, trees, strict=True):
            level = tree.next_level(self._room(job))
            rows = {node for at in level for node in tree.path(at)} if self._remembers else level
            number: dict[int, int] = {}
            for node in sorted(rows):
                node_rows = tree.slot_rows[node]
                assert node_rows is not None
                number[node] = len(tokens)
                tokens.append(tree.tokens[node])
                seqs.append(job.seq)
                pos.append(len(job.history) + tree.level(node) - 1)
                parent.append(number.get(tree.parent[node], -1))
                wanted.append(node in level)
                branching += [(job, tree, node, len(branching))] if node in level else []
                for slot, rows_of_slot in slots.items():
                    rows_of_slot.append(node_rows[slot])
        if not branching:
            return False
        batch_slots = {slot: np.stack(rows_of_slot) for slot, rows_of_slot in slots.items()}
        output = self.runner.explore(
            Batch(tokens, seq=seqs, pos=pos, parent=parent, outputs=wanted, slots=batch_slots)
        )
        branch(branching, output, self.runner, self._recycle, self._ids)
        return True

    def _room(self, job: DraftJob) -> int:
        """Return how many rows a tree of this sequence may take in the drafter's context."""
        context = self.runner
        return min(context.n_ctx - len(job.history), context.n_batch, context.longest_draft)


def branch(
    branching: Sequence[Branch],
    output: Output,
    runner: GraphRunner,
    recycle: Mapping[str, str],
    token_ids: NDArray[np.int32] | None,
) -> None:
    """Give nodes their children, and the rows that these are run with.

    Parameters
    ----------
    branching : sequence of Branch
    output : Output
        What the graph made of the nodes.
    runner : GraphRunner
        Of that graph.
    recycle : mapping of str to str
        The output that feeds a slot.
    token_ids : int32[n_logits], optional
        The token of each logit.
    """
    program = runner.program
    rows = {
        slot: output.tap(name)
        if program.shape(name)[0] == OUTPUTS
        else output.tap(name)[output.outputs]
        for slot, name in recycle.items()
    }
    for job, tree, node, at in branching:
        path = [tree.tokens[ancestor] for ancestor in tree.path(node)]
        history = np.concatenate([job.history, np.array(path, np.int32)])
        logits = output.logits[at]
        if job.processor is not None:
            logits = job.processor(history, logits, token_ids)
        ranking = job.sampler.rank(
            logits, history, job.n_prompt, len(history), tree.n_ranked(node), token_ids
        )
        own = {slot: slot_rows[at] for slot, slot_rows in rows.items()}
        is_finite = all(np.isfinite(row).all() for row in own.values())
        tree.branch(node, ranking, own if is_finite else None, job.p_min)
