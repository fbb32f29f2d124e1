"""Draft trees that grow on the device, and what verifies them, in one launch.

Which rows there are the host knows beforehand, as of chains (``drafts.py``). On the device tokens
are ranked and become nodes, and nodes and the rows that are recycled for them are placed in the
rows of later passes. Of a tree that grows by what nodes are worth, the device also finds which
nodes these rows are, and which rows they follow; so it does where the target verifies them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import (
    CheckedBatch,
    FusedSampling,
    GrownTree,
    TreeBranch,
    TreeRun,
    Verification,
)
from mtpcore.backends.cuda.choice import DraftedParts, list_drafts
from mtpcore.backends.cuda.launch.passes import (
    DRAFT,
    NEXT,
    NO_DRAFT,
    PAIR,
    WORDS,
    complete,
    place,
)
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import WINNER, Drafted, n_parts
from mtpcore.backends.cuda.launch.trees import (
    BRANCH_ROW,
    CHILD,
    MOST_RANKS,
    NO_NODE,
    NOT_FINITE,
    RANKED,
    SELECTION,
    TREE,
    VERIFIED_ROW,
    Found,
    follow_branches,
    grow,
    place_verified,
    select_best,
    show_verified,
)
from mtpcore.backends.cuda.rounds import EVERY_TOKEN, Rounds, n_tokens_of, without_drafts
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun, plan_runs
from mtpcore.graph.program import OUTPUTS

__all__ = ["TreeLoop"]


class TreeOrder:
    """The branches and nodes of a run by their passes, and the ways to them.

    Attributes
    ----------
    branches, nodes : list of range
        Of each pass.
    outputs : list of int
        The first row of logits of each pass, among those of all.
    """

    def __init__(self, run: TreeRun) -> None:
        self._run = run
        n, depths = len(run.passes), [branch.depth for branch in run.branches]
        ends = [*np.searchsorted(depths, range(n + 1)).tolist()]
        self.branches = [range(*ends[p : p + 2]) for p in range(n)]
        of = [node.branch for node in run.nodes]
        ends = [*np.searchsorted(of, ends).tolist()]
        self.nodes = [range(*ends[p : p + 2]) for p in range(n)]
        n_outputs = [len(one.batch.outputs) for one in run.passes]
        self.outputs = [0, *np.cumsum(n_outputs).tolist()]
        self.n_ranks = [max(run.nodes[node].rank for node in nodes) + 1 for nodes in self.nodes]

    def path(self, node: int | None) -> list[int]:
        """Return the nodes on the way to one, itself the last; none to the pending token."""
        found: list[int] = []
        while node is not None and node >= 0:
            found.append(node)
            node = self._run.branches[self._run.nodes[node].branch].node
        return found[::-1]

    def text(self, branch: TreeBranch) -> list[int]:
        """Return the nodes in the text of a branch; until it is known, as many of no node."""
        if branch.node is None:
            return [len(self._run.nodes)] * branch.depth
        return self.path(branch.node)

    def listed(self, sequence: int) -> list[int]:
        """Return all nodes of a sequence."""
        of = [self._run.branches[node.branch].sequence for node in self._run.nodes]
        return [node for node, i in enumerate(of) if i == sequence]

    def output(self, branch: int) -> int:
        """Return the row of logits that a branch's children are ranked from, among all passes'."""
        p = self._run.branches[branch].depth
        within = self._run.passes[p].outputs[branch - self.branches[p].start]
        return int(self.outputs[p]) + within

    def ranked(self, p: int) -> list[TreeBranch]:
        """Return of each output of a pass a branch whose children are ranked from it."""
        outputs = self._run.passes[p].outputs
        of = {output: self.branches[p][i] for i, output in enumerate(outputs)}
        return [self._run.branches[of[output]] for output in sorted(of)]


class TreeStage(NamedTuple):
    """A pass of a round with trees; see ``drafts.DeviceStage``.

    It makes ``n`` nodes, from number ``first`` of the round on, from ``n_outputs`` rankings of
    ``n_ranks`` tokens, whose rows are kept from ``first_output`` on. Where it ``may_end``, the next
    one runs only if there is a node to run.
    """

    plan: DevicePlan
    run: PlannedRun
    brought: dict[str, NDArray[Any]]
    first: int = 0
    n: int = 0
    first_output: int = 0
    n_outputs: int = 0
    n_ranks: int = 0
    may_end: bool = False

    @property
    def settings(self) -> Hashable:
        """What its launches depend on, besides its run and the arrays of the round."""
        return self[3:]

    @property
    def joins(self) -> bool:
        """Whether it runs where the one before it does: none has to."""
        return False

    @property
    def n_placed(self) -> int:
        """How many nodes are placed in its rows."""
        names = ("pairs of tokens", "branch rows", "verified rows")
        return max(len(self.brought.get(name, ())) for name in names)


class TreeShape(NamedTuple):
    """What the launches of a round depend on besides its passes; see ``drafts.DraftShape``.

    ``n_wanted`` nodes are verified, of ``n_nodes`` at most ``depth`` levels deep. Of ``n_lists``
    lists of nodes the best are; 0: it is known which.
    """

    recycled: tuple[tuple[str, str], ...]
    n_tokens: int
    n_readable: int
    n_wanted: int
    n_nodes: int
    depth: int
    n_lists: int


class TreeLoop:
    """Runs that grow trees, and begin with a plan.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan, self._rounds = plan, Rounds(plan)

    def can_grow(self, run: TreeRun) -> bool:
        """Say whether a run needs nothing of the host between its passes.

        Where several branches are ranked from the same logits, no penalty may change these; and
        rows may not see what is reserved for later passes.
        """
        here = self._rounds.is_here
        is_shared = any(len({*one.outputs}) < len(one.outputs) for one in run.passes)
        has_penalties = any(sampler.sampling.has_penalties for sampler in run.samplers)
        return (
            all(here(one.plan) for one in run.passes)
            and not any(_sees_ahead(cast(DevicePlan, one.plan)) for one in run.passes)
            and not (is_shared and has_penalties)
            and max(node.rank for node in run.nodes) < MOST_RANKS
        )

    def grow(self, run: TreeRun) -> list[GrownTree]:
        """Return the tree of each sequence; see ``Plan.grow``."""
        order = TreeOrder(run)
        stages = self._growing(run, order)
        n_tokens, verification = run.n_tokens or EVERY_TOKEN, run.verification
        if verification and self._rounds.is_here(verification.plan):
            follow = self._verifying_best if run.width else self._verifying
            stages += follow(run, order, verification.plan, verification)
        n_wanted, n_nodes = sum(map(len, run.order)), len(run.nodes)
        shape = TreeShape(
            *(tuple(run.recycle.items()), n_tokens, min(n_tokens, n_tokens_of(stages))),
            *(n_wanted, n_nodes, len(run.passes), len(run.order) if run.width else 0),
        )
        self._rounds.start(shape, stages, partial(self._launches, shape))
        nodes, branches = self._found(run, n_wanted)
        grown = _read(run, nodes, branches)
        tokens = [token for one in grown for token in one.tokens]
        is_whole = len(tokens) == n_wanted and max(tokens) < shape.n_readable
        # What verifies is left out where the last pass is, though there may be nodes enough.
        is_whole = is_whole and bool((branches[order.branches[-1]] != NO_NODE).any())
        if verification and not stages[-1].n and is_whole:
            if run.width:
                verification.batch = _verified(verification, grown)
            verification.arrays = stages[-1].plan.result(verification.batch)
        return grown

    def _found(self, run: TreeRun, n_wanted: int) -> tuple[NDArray[np.void], NDArray[np.int32]]:
        """Return ``DRAFT`` of each node, and the nodes of branches and of what is verified."""
        read, arrays = self._plan.device.read, self._rounds.arrays
        nodes = np.frombuffer(read(arrays["nodes"], 0, len(run.nodes) * DRAFT.itemsize), DRAFT)
        if not run.width:
            return nodes, _branches(run)
        n_bytes = 4 * (len(run.branches) + n_wanted)
        return nodes, np.frombuffer(read(arrays["branches"], 0, n_bytes), np.int32)

    # What the host plans

    def _growing(self, run: TreeRun, order: TreeOrder) -> list[TreeStage]:
        """Return the passes that make nodes, all checked before anything is uploaded."""
        batches = [_choosing(run, order, p) for p in range(len(run.passes))]
        plans = [cast(DevicePlan, one.plan) for one in run.passes]
        for plan, one, batch in zip(plans, run.passes, batches, strict=True):
            if len(batch.slots) < len(plan.program.slots()):  # they are filled in
                plan.check_memory(batch, one.memory)
            else:
                plan.check(batch, one.memory)
        texts = [
            list_drafts({at: order.text(branch) for at, branch in enumerate(order.ranked(p))})
            for p in range(len(run.passes))
        ]
        stages, takes = [], []
        for plan, one, batch, (_, parts) in zip(plans, run.passes, batches, texts, strict=True):
            take = partial(plan.take, batch, one.memory, has_odds=True, drafted=parts)
            takes.append((plan, take))
        for p, planned in enumerate(plan_runs(takes)):
            brought = {"children": _children(run, order, p), "drafted": texts[p][0]}
            if run.width:
                brought |= _branch_rows(run, order, p, texts[p][1])
                if p and plans[p].walks:
                    brought["trees"] = _trees(run.passes[p].batch.seq)
            else:
                brought |= _followed(run, order, p)
            nodes, n_outputs = order.nodes[p], len(batches[p].outputs)
            made = nodes.start, len(nodes), order.outputs[p], n_outputs, order.n_ranks[p]
            stages.append(TreeStage(plans[p], planned, brought, *made, max(run.p_min) > 0))
        none = [(NO_DRAFT, 0, 0)] * (len(run.nodes) + 1)  # the last one stays so
        known = {"branches": _branches(run), "nodes": np.array(none, DRAFT)}
        if run.width:
            lists = [order.listed(i) for i in range(len(run.order))]
            first = len(run.branches) + np.cumsum([0, *map(len, run.order)])
            known |= {
                "makers": np.array([node.branch for node in run.nodes], np.int32),
                "outputs": np.array([*map(order.output, range(len(run.branches)))], np.int32),
                "wanted": np.arange(len(run.branches), first[-1], dtype=np.int32),
                **_lists("of all", lists, first, [*map(len, run.order)]),
            }
        else:
            known["wanted"] = np.array([*chain(*run.order)], np.int32)
        stages[0].brought.update(known)
        self._make_room(run, stages)
        return stages

    def _verifying(
        self, run: TreeRun, order: TreeOrder, plan: DevicePlan, verification: Verification
    ) -> list[TreeStage]:
        """Return the pass of the target over nodes that are known beforehand."""
        first, memory = verification.first, verification.memory
        rows = {
            first[i] + 1 + at: order.path(node)
            for i, nodes in enumerate(run.order)
            for at, node in enumerate(nodes)
        }
        outputs = enumerate(verification.batch.outputs.tolist())
        paths = {output: rows[row] for output, row in outputs if row in rows}
        drafted, parts = list_drafts(paths)
        lengths = {output: len(path) for output, path in paths.items()}
        batch = without_drafts(verification.batch, lengths)
        plan.check(batch, memory)
        tokens = [(WORDS * path[-1] + NEXT, row) for row, path in rows.items()]
        brought = {"drafted": drafted, "pairs of tokens": np.array(tokens, PAIR)}
        return [TreeStage(plan, plan.take(batch, memory, drafted=parts), brought)]

    def _verifying_best(
        self, run: TreeRun, order: TreeOrder, plan: DevicePlan, verification: Verification
    ) -> list[TreeStage]:
        """Return the pass of the target over the best nodes, or none.

        There is none where rows see more than what is before them.
        """
        batch, memory, most = verification.batch, verification.memory, len(run.passes)
        if batch.parent is None or _sees_ahead(plan):
            return []
        output_of = {row: output for output, row in enumerate(batch.outputs.tolist())}
        samplers = batch.fused_sampling.samplers if batch.fused_sampling else ()
        choosers = np.cumsum([0, *(sampler is not None for sampler in samplers)]).tolist()
        depths = batch.positions[:, 0]
        verified: list[tuple[int, ...]] = []
        parts, lengths = dict[int, tuple[int, int]](), dict[int, int]()
        first = len(run.branches)
        for root, nodes in zip(verification.first, run.order, strict=True):
            above = output_of.get(root)
            for row in range(root + 1, root + 1 + len(nodes)):
                output = output_of.get(row)
                chooses = output is not None and samplers and samplers[output] is not None
                places = (choosers[output], choosers[above]) if chooses else (-1, -1)
                if output is not None:
                    parts[output] = most * len(verified), most
                    lengths[output] = int(depths[row] - depths[root])
                verified.append((row, root, first, len(nodes), *places, most * len(verified)))
            first += len(nodes)
        batch = without_drafts(batch, lengths)
        plan.check(batch, memory)
        drafted = np.full(most * len(verified), len(run.nodes), np.int32)
        brought = {"drafted": drafted, "verified rows": np.array(verified, VERIFIED_ROW)}
        if plan.walks:
            brought["trees"] = _trees(batch.seq, verification.first)
        self._rounds.room("depths", len(verified), np.int32)
        self._rounds.room("pairs of tokens", len(verified), PAIR)
        return [TreeStage(plan, plan.take(batch, memory, drafted=parts), brought)]

    def _make_room(self, run: TreeRun, stages: list[TreeStage]) -> None:
        """Make the arrays that nothing is brought to."""
        room, program = self._rounds.room, self._plan.program
        n_outputs = sum(stage.n_outputs for stage in stages)
        for slot, name in run.recycle.items():
            width = program.values[program.outputs[name]].shape[1]
            room(f"rows of {slot}", n_outputs, np.float32, int(width))
        room("marks", len(run.recycle) * max(stage.n_outputs for stage in stages), np.int32)
        room("worths", len(run.nodes), np.float64)
        if run.width:
            most = max(stage.n_placed for stage in stages)
            room("pairs of tokens", most, PAIR)
            room("pairs of rows", most, PAIR)
            room("places", len(run.nodes), np.int32)
        n_ranked = [stage.n_outputs * stage.n_ranks for stage in stages]
        n_logits = max(stage.plan.program.shape("logits")[1] for stage in stages)
        room("ranking", max(n_ranked), RANKED)
        room("candidates", max(n_ranked) * n_parts(int(n_logits)), WINNER)

    # What the device does

    def _launches(
        self, shape: TreeShape, stage: TreeStage, is_last: bool, following: Any
    ) -> Iterator[Launch]:
        """Yield the launches of a pass; ``following`` is the condition of the next one."""
        plan, arrays, program = stage.plan, self._rounds.arrays, stage.plan.program
        yield from self._find_rows(shape, stage)
        if n := stage.n_placed:
            pairs, tokens = arrays["pairs of tokens"], plan.arrays[program.inputs["tokens"]]
            yield place(arrays["nodes"], pairs, tokens, n, 1)
            for slot, _ in shape.recycled if stage.n else ():
                rows, to = arrays[f"rows of {slot}"], plan.arrays[program.inputs[slot]]
                yield place(rows, arrays["pairs of rows"], to, n, to.shape[1])
        drafted = Drafted(arrays["nodes"], arrays["drafted"])
        if not stage.n:
            yield from plan.launches(stage.run, drafted)
            return
        choice, choosing = plan.choice, stage.run.shape.choosing
        assert choice is not None
        assert choosing is not None
        yield from plan.launches(stage.run._replace(shape=stage.run.shape._replace(choosing=None)))
        ranking, n_outputs = arrays["ranking"], stage.n_outputs
        yield from choice.rank(choosing, arrays["candidates"], ranking, stage.n_ranks, drafted)
        for number, (slot, name) in enumerate(shape.recycled):
            made, rows = plan.arrays[program.outputs[name]], arrays[f"rows of {slot}"]
            which = None if program.shape(name)[0] == OUTPUTS else plan.rows.outputs
            first, marks = stage.first_output, arrays["marks"]
            yield copy_rows(made, rows, n_outputs, rows=which, to_row=first)
            yield mark_not_finite(rows, marks, first, n_outputs, number * n_outputs)
        yield grow(
            *(ranking, arrays["children"], arrays["branches"], arrays["marks"]),
            *(arrays["nodes"], arrays["worths"]),
            first=stage.first,
            n=stage.n,
            n_ranks=stage.n_ranks,
            n_outputs=n_outputs,
            n_marks=len(shape.recycled),
            n_tokens=shape.n_tokens,
            n_readable=shape.n_readable,
            condition=None if is_last else following,
        )
        if shape.n_lists and (is_last or following is not None):
            yield self._select_best("of all", shape.n_lists, is_to_run=False)
        if is_last and following is not None:
            n, wanted = shape.n_wanted, arrays["wanted"]
            if shape.n_lists:
                yield complete(arrays["branches"], wanted, n, following, stride=1)
            else:
                yield complete(arrays["nodes"], wanted, n, following)

    def _find_rows(self, shape: TreeShape, stage: TreeStage) -> Iterator[Launch]:
        """Yield what finds the nodes of a pass, and where its rows stand, if that is not known."""
        plan, arrays, n = stage.plan, self._rounds.arrays, stage.n_placed
        if not shape.n_lists or not n:
            return
        found = Found(arrays["branches"], arrays["makers"], arrays["outputs"])
        tokens, texts, parents = arrays["pairs of tokens"], arrays["drafted"], plan.rows.parent
        if stage.n:
            yield self._select_best("to run", len(stage.brought["lists to run"]), is_to_run=True)
            rows = arrays["pairs of rows"], parents, texts
            yield follow_branches(arrays["branch rows"], found, arrays["row of"], tokens, *rows, n)
            yield from self._walk_trees(stage)
            return
        program, verified, depths = plan.program, arrays["verified rows"], arrays["depths"]
        at = program.inputs.get("positions")
        yield place_verified(
            *(verified, found, tokens, depths, parents),
            None if at is None else plan.arrays[at],
            plan.choice.odds.choosers if plan.choice else None,
            texts,
            n=n,
            n_axes=0 if at is None else program.n_axes,
            most=shape.depth,
            nobody=shape.n_nodes,
        )
        for visible in plan.seen:
            yield show_verified(verified, depths, visible.array, n, visible.window)
        yield from self._walk_trees(stage)

    def _walk_trees(self, stage: TreeStage) -> Iterator[Launch]:
        """Yield what lets states of recurrent layers go on as rows were found to follow."""
        if stage.plan.walks:
            trees, parents = self._rounds.arrays["trees"], stage.plan.rows.parent
            yield stage.plan.walks.of_trees(trees, parents, len(stage.brought["trees"]))

    def _select_best(self, what: str, n: int, *, is_to_run: bool) -> Launch:
        """Return what finds the best nodes of n lists."""
        arrays = self._rounds.arrays
        lists = arrays[f"lists {what}"], arrays[f"listed {what}"]
        found = arrays["places"], arrays["branches"]
        return select_best(
            *lists, arrays["nodes"], arrays["worths"], *found, n, is_to_run=is_to_run
        )


def _sees_ahead(plan: DevicePlan) -> bool:
    """Whether rows see all that is reserved, and not what is before them alone."""
    return any(visible.mask == "block" for visible in plan.seen)


def _trees(seq: NDArray[np.int32], first: Sequence[int] | None = None) -> NDArray[np.void]:
    """Return ``TREE`` of the sequences of a batch, or of those that begin with these rows."""
    of = seq.tolist()
    sequences = [*dict.fromkeys(of)]
    begins = [of.index(sequence) for sequence in sequences] if first is None else first
    trees = [(sequences.index(of[row]), row, of.count(of[row])) for row in begins]
    return np.array(trees, TREE)


def _branches(run: TreeRun) -> NDArray[np.int32]:
    """Return the node of each branch, and those that are verified, as far as they are known."""
    nodes = [NO_NODE if branch.node is None else branch.node for branch in run.branches]
    wanted = [NO_NODE if run.width else node for node in chain(*run.order)]
    return np.array([*nodes, *wanted], np.int32)


def _read(run: TreeRun, nodes: NDArray[np.void], branches: NDArray[np.int32]) -> list[GrownTree]:
    """Return the trees, from ``DRAFT`` of each node and what ``_branches`` returns."""
    sequences = np.array([run.branches[node.branch].sequence for node in run.nodes])
    is_broken = nodes["goes_on"] == NOT_FINITE
    grown, first = [], len(run.branches)
    for i, order in enumerate(run.order):
        chosen = branches[first : first + len(order)].tolist()
        first += len(order)
        kept = [node for node in chosen if node >= 0 and nodes["token"][node] >= 0]
        place_of = {node: at for at, node in enumerate(kept)}
        above = [int(branches[run.nodes[node].branch]) for node in kept]
        parent = [place_of.get(node, -1) for node in above]
        is_finite = not is_broken[sequences == i].any()
        grown.append(GrownTree(nodes["token"][kept].tolist(), parent, is_finite))
    return grown


def _verified(verification: Verification, grown: list[GrownTree]) -> CheckedBatch:
    """Return what was verified, with the rows that nodes follow, their positions and indices."""
    batch, fused = verification.batch, verification.batch.fused_sampling
    assert batch.parent is not None
    parent, positions = batch.parent.copy(), batch.positions.copy()
    root_of = {}
    for root, tree in zip(verification.first, grown, strict=True):
        for row, above in enumerate(tree.parent, root + 1):
            parent[row], root_of[row] = root + 1 + above, root
            positions[row] = positions[parent[row]] + 1
    if fused is not None:
        output_of = {row: output for output, row in enumerate(batch.outputs.tolist())}
        indices = [*fused.indices]
        for row, root in root_of.items():
            if row in output_of and root in output_of:
                depth = int(positions[row, 0] - positions[root, 0])
                indices[output_of[row]] = indices[output_of[root]] + depth
        fused = msgspec.structs.replace(fused, indices=indices)
    return msgspec.structs.replace(batch, parent=parent, positions=positions, fused_sampling=fused)


def _choosing(run: TreeRun, order: TreeOrder, p: int) -> CheckedBatch:
    """Return a pass's batch with the samplers of its outputs, and the texts before all drafts."""
    branches = order.ranked(p)
    wanted = FusedSampling(
        samplers=[run.samplers[branch.sequence] for branch in branches],
        indices=[len(run.history[branch.sequence]) + branch.depth for branch in branches],
        token_ids=run.token_ids,
        texts=[run.history[branch.sequence] for branch in branches],
        n_prompt=[run.n_prompt[branch.sequence] for branch in branches],
    )
    return msgspec.structs.replace(run.passes[p].batch, fused_sampling=wanted)


def _children(run: TreeRun, order: TreeOrder, p: int) -> NDArray[np.void]:
    """Return ``CHILD`` of each node that may grow in a pass."""
    going = {branch.node for branch in run.branches}
    depth_of = {branch.sequence: branch.depth for branch in run.branches}  # of the last ones
    children = []
    for node in order.nodes[p]:
        branch, rank = run.nodes[node]
        output = order.output(branch) - order.outputs[p]
        sequence = run.branches[branch].sequence
        goes_on = p < depth_of[sequence] if run.width else node in going
        children.append((run.p_min[sequence], branch, output, rank, goes_on))
    return np.array(children, CHILD)


def _followed(run: TreeRun, order: TreeOrder, p: int) -> dict[str, NDArray[np.void]]:
    """Return what places nodes, and rows that are recycled for them, in the rows of a pass."""
    nodes = [
        (cast(int, run.branches[branch].node), row)
        for row, branch in enumerate(run.passes[p].rows)
        if branch >= 0
    ]
    if not nodes:
        return {}
    tokens = np.array([(WORDS * node + NEXT, row) for node, row in nodes], PAIR)
    rows = np.array([(order.output(run.nodes[node].branch), row) for node, row in nodes], PAIR)
    return {"pairs of tokens": tokens, **({"pairs of rows": rows} if run.recycle else {})}


def _lists(
    what: str, lists: list[list[int]], first: NDArray[Any] | list[int], n: list[int]
) -> dict[str, NDArray[Any]]:
    """Return ``SELECTION`` of lists of nodes, of which the best n go from ``first`` on."""
    begin = np.cumsum([0, *map(len, lists)])
    selections = np.zeros(len(lists), SELECTION)
    selections["begin"], selections["n_listed"] = begin[:-1], [*map(len, lists)]
    selections["first"], selections["n"] = [*first][: len(lists)], n
    listed = np.array([*chain(*lists)], np.int32)
    return {f"lists {what}": selections, f"listed {what}": listed}


def _branch_rows(
    run: TreeRun, order: TreeOrder, p: int, parts: DraftedParts
) -> dict[str, NDArray[Any]]:
    """Return what finds the branches of a pass, and what is placed in its rows.

    ``parts`` are of each output the nodes that its text goes on with.
    """
    if not p:
        return {}
    one, lists = run.passes[p], dict[int, list[int]]()
    for node in order.nodes[p - 1]:
        lists.setdefault(run.branches[run.nodes[node].branch].sequence, []).append(node)
    of = dict[int, list[int]]()
    for branch in order.branches[p]:
        of.setdefault(run.branches[branch].sequence, []).append(branch)
    row_of = np.full(len(run.branches), -1, np.int32)
    text_of = {int(one.batch.outputs[at]): begin for at, (begin, _) in parts.items()}
    made = []
    for row, branch in enumerate(one.rows):
        if branch < 0:
            continue
        sequence, depth, _ = run.branches[branch]
        row_of[branch] = row
        if depth == 1 and one.batch.parent is not None:  # the pending token's, if it is here
            row_of[order.branches[0][sequence]] = one.batch.parent[row]
        made.append((branch, row, text_of.get(row, -1), depth))
    first, n = [branches[0] for branches in of.values()], [*map(len, of.values())]
    return {
        "branch rows": np.array(made, BRANCH_ROW),
        "row of": row_of,
        **_lists("to run", [lists[i] for i in of], first, n),
    }
