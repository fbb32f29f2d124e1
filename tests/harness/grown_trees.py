"""A tree run as its words say, pass by pass, with any backend's plans."""

import msgspec
import numpy as np

from mtpcore.backends.base import PENDING, GrownTree
from mtpcore.graph.program import OUTPUTS


def grow(run):
    """Return what ``Plan.grow`` returns; what verifies the trees is run if all nodes are there."""
    state = _Growth(run)
    for depth in range(len(run.passes)):
        state.run_pass(depth)
    orders = [state.order(i) for i in range(len(run.samplers))]
    grown = [state.tree(i, order) for i, order in enumerate(orders)]
    if run.verification and [*map(len, orders)] == [*map(len, run.order)]:
        _verify(run.verification, grown)
    return grown


class _Growth:
    def __init__(self, run):
        self.run = run
        self.node = [branch.node for branch in run.branches]  # of each branch
        self.token, self.worth, self.rows, self.goes_on = ({} for _ in range(4))  # of nodes

    def run_pass(self, depth):
        run, one = self.run, self.run.passes[depth]
        own = [i for i, branch in enumerate(run.branches) if branch.depth == depth]
        if run.width and depth:
            self.choose(own)
        batch = one.batch
        if not any(map(self.is_run, own)):
            return
        tokens, parent = batch.tokens.copy(), batch.parent
        slots = {slot: np.array(rows) for slot, rows in batch.slots.items()}
        for slot in run.recycle:
            width = one.plan.program.slots()[slot]
            slots.setdefault(slot, np.zeros((len(tokens), width), np.float32))
        parent = parent if parent is None else parent.copy()
        for row, branch in enumerate(one.rows):
            node = self.node[branch] if branch >= 0 else None
            if node not in self.token:
                continue
            tokens[row] = self.token[node]
            for slot in run.recycle:
                slots[slot][row] = self.rows[node][slot]
            above = run.nodes[node].branch
            if run.width and above in one.rows:
                parent[row] = [*one.rows].index(above)
        made = one.plan.run(
            msgspec.structs.replace(batch, tokens=tokens, slots=slots, parent=parent), one.memory
        )
        for at, branch in enumerate(own):
            if self.is_run(branch):
                self.branch(one, made, branch, one.outputs[at])

    def is_run(self, branch):
        return self.node[branch] == PENDING or self.goes_on.get(self.node[branch], False)

    def choose(self, own):
        """Let branches be the best nodes of their depth."""
        for i in {self.run.branches[branch].sequence for branch in own}:
            branches = [branch for branch in own if self.run.branches[branch].sequence == i]
            depth = self.run.branches[branches[0]].depth
            able = [n for n in self.token if self.goes_on[n] and self.place(n) == (i, depth)]
            best = sorted(able, key=lambda node: -self.worth[node])[: len(branches)]
            for branch, node in zip(branches, sorted(best), strict=False):
                self.node[branch] = node

    def place(self, node):
        above = self.run.branches[self.run.nodes[node].branch]
        return above.sequence, above.depth + 1

    def branch(self, one, made, branch, output):
        run, node, i = self.run, self.node[branch], self.run.branches[branch].sequence
        path, at = [], node
        while at != PENDING:
            path.append(self.token[at])
            at = self.node[run.nodes[at].branch]
        text = np.concatenate([run.history[i], np.array(path[::-1], np.int32)])
        children = [n for n, child in enumerate(run.nodes) if child.branch == branch]
        n_ranks = max(run.nodes[child].rank for child in children) + 1
        ranking = run.samplers[i].rank(
            np.asarray(made["logits"])[output], text, run.n_prompt[i], len(text), n_ranks,
            run.token_ids,
        )  # fmt: skip
        rows = {}
        for slot, name in run.recycle.items():
            is_of_outputs = one.plan.program.shape(name)[0] == OUTPUTS
            at = output if is_of_outputs else one.batch.outputs[output]
            rows[slot] = np.asarray(made[name])[at].copy()
        is_finite = all(np.isfinite(row).all() for row in rows.values())
        for child in children:
            rank = run.nodes[child].rank
            if rank < len(ranking[0]) and ranking[1][rank] >= run.p_min[i]:
                self.token[child], self.rows[child] = int(ranking[0][rank]), rows
                self.worth[child] = self.worth.get(node, 1.0) * float(ranking[2][rank])
                is_read = not run.n_tokens or self.token[child] < run.n_tokens
                self.goes_on[child] = is_read and is_finite

    def order(self, i):
        order = self.run.order[i]
        if self.run.width:
            own = [node for node in sorted(self.token) if self.place(node)[0] == i]
            return sorted(own, key=lambda node: -self.worth[node])[: len(order)]
        return [node for node in order if node in self.token]

    def tree(self, i, order):
        above = [self.node[self.run.nodes[node].branch] for node in order]
        parent = [-1 if node == PENDING else order.index(node) for node in above]
        own = [node for node in self.token if self.place(node)[0] == i]
        is_finite = all(np.isfinite(r).all() for n in own for r in self.rows[n].values())
        return GrownTree([self.token[node] for node in order], parent, is_finite)


def _verify(told, grown):
    """Run the pass over these trees, and say so in the batch."""
    batch = told.batch
    tokens, positions = batch.tokens.copy(), batch.positions.copy()
    parent = None if batch.parent is None else batch.parent.copy()
    for root, tree in zip(told.first, grown, strict=True):
        for row, (token, above) in enumerate(zip(tree.tokens, tree.parent, strict=True), root + 1):
            tokens[row] = token
            if parent is None:
                assert above == row - root - 2
                continue
            parent[row] = root + 1 + above
            positions[row] = positions[parent[row]] + 1
    fused = batch.fused_sampling
    if fused is not None:
        indices = [int(positions[row, 0]) + 1 for row in batch.outputs]
        fused = msgspec.structs.replace(fused, indices=indices)
    batch = msgspec.structs.replace(
        batch, tokens=tokens, positions=positions, parent=parent, fused_sampling=fused
    )
    told.arrays, told.batch = told.plan.run(batch, told.memory), batch
