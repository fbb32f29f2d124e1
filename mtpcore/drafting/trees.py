"""Drafting trees with a graph that drafts token by token."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.draft import n_embeddings
from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.chain import GraphDrafter
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.growing_tree import GrowingTree
from mtpcore.graph.program import OUTPUTS
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output

__all__ = ["TreeDrafter"]

Branch = tuple[DraftJob, GrowingTree, int]
"""A node that gets children, and whose tree it belongs to; -1 is the pending token."""


class TreeDrafter(GraphDrafter):
    """A drafter's graph whose drafts branch; entries are kept as ``GraphDrafter`` keeps them.

    A node's children are ranked by the sampler: the first is what a chain would draft there. A
    child is run with the row that its parent recycles.
    """

    def _run_together(self, jobs: list[DraftJob], drafts: dict[int, Draft]) -> None:
        assert self.spec.tree is not None
        n_tokens = n_embeddings(self.runner.program)
        output = self.runner.process(self._missing(jobs))
        growths = [
            GrowingTree(self.spec.tree, min(job.k, self.spec.limit), n_tokens) for job in jobs
        ]
        self._branch([(job, growth, -1) for job, growth in zip(jobs, growths, strict=True)], output)
        while self._grow(jobs, growths):
            pass
        for job, growth in zip(jobs, growths, strict=True):
            drafts[job.seq] = growth.tree()
            if any(fed is None for fed in growth.fed):
                self._pause(job.seq, len(job.history) - 1)

    def _grow(self, jobs: list[DraftJob], growths: list[GrowingTree]) -> bool:
        """Run one more level of every tree; return whether there was one.

        The nodes on the way are run again with each level, for what ``explore`` wrote is forgotten:
        a level costs the rows of its paths, up to its depth times the tree's width. Keeping them
        would save that and cost a memory whose newest rows are a tree.
        """
        tokens: list[int] = []
        seqs: list[int] = []
        pos: list[int] = []
        parent: list[int] = []
        wanted: list[bool] = []
        slots: dict[str, list[np.ndarray]] = {slot: [] for slot in self._recycle}
        branching: list[Branch] = []
        for job, growth in zip(jobs, growths, strict=True):
            level = growth.next_level(self._room(job))
            rows = {node: None for at in level for node in growth.path(at)}
            number = {-1: -1}
            for node in sorted(rows):
                fed = growth.fed[node]
                assert fed is not None
                number[node] = len(tokens)
                tokens.append(growth.tokens[node])
                seqs.append(job.seq)
                pos.append(len(job.history) + growth.level(node) - 1)
                parent.append(number[growth.parent[node]])
                wanted.append(node in level)
                branching += [(job, growth, node)] if node in level else []
                for slot, found in slots.items():
                    found.append(fed[slot])
        if not branching:
            return False
        fed_rows = {slot: np.stack(found) for slot, found in slots.items()}
        output = self.runner.explore(
            Batch(tokens, seq=seqs, pos=pos, parent=parent, outputs=wanted, slots=fed_rows)
        )
        self._branch(branching, output)
        return True

    def _room(self, job: DraftJob) -> int:
        """Return how many rows a tree of this sequence may take in the drafter's context."""
        own = self.runner
        return min(own.n_ctx - len(job.history), own.n_batch, own.longest_draft)

    def _branch(self, branching: list[Branch], output: Output) -> None:
        """Give nodes their children, each from its row of logits, in order."""
        program = self.runner.program
        rows = {
            slot: output.tap(name)
            if program.shape(name)[0] == OUTPUTS
            else output.tap(name)[output.outputs]
            for slot, name in self._recycle.items()
        }
        sound = np.ones(len(branching), bool)
        for found in rows.values():
            sound &= np.isfinite(found).all(axis=1)
        for at, (job, growth, node) in enumerate(branching):
            path = [growth.tokens[one] for one in growth.path(node)]
            history = np.concatenate([job.history, np.array(path, np.int32)])
            ranking = job.sampler.rank(
                output.logits[at],
                history,
                job.n_prompt,
                len(history),
                growth.n_ranked(node),
                self._ids,
            )
            fed = {slot: found[at] for slot, found in rows.items()} if sound[at] else None
            growth.branch(node, ranking, fed, job.p_min)
