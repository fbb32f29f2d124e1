"""Draft trees that grow on the device, and what verifies them, in one launch.

Which rows there are the host knows beforehand, as of chains (``drafts.py``). On the device tokens
are ranked and become nodes, and nodes and the rows that are recycled for them are placed in the
rows of later passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import (
    PENDING,
    CheckedBatch,
    FusedSampling,
    GrownTree,
    TreeBranch,
    TreePass,
    TreeRun,
    Verification,
)
from mtpcore.backends.cuda.choice import DraftedParts
from mtpcore.backends.cuda.drafts import EVERY_TOKEN, DraftLoop, n_tokens_of, without_drafts
from mtpcore.backends.cuda.launch.passes import (
    DRAFT,
    NEXT,
    NO_DRAFT,
    PAIR,
    WORDS,
    complete,
    place,
    spread,
)
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import WINNER, Drafted, n_parts
from mtpcore.backends.cuda.launch.trees import CHILD, MOST_RANKS, NOT_FINITE, RANKED, grow
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun
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

    def output(self, node: int) -> int:
        """Return the row of logits that a node was ranked from, among those of all passes."""
        branch = self._run.nodes[node].branch
        p = self._run.branches[branch].depth
        within = self._run.passes[p].outputs[branch - self.branches[p].start]
        return int(self.outputs[p]) + within

    def ranked(self, p: int) -> list[TreeBranch]:
        """Return of each output of a pass a branch whose children are ranked from it."""
        outputs = self._run.passes[p].outputs
        of = {output: self.branches[p][i] for i, output in enumerate(outputs)}
        return [self._run.branches[of[output]] for output in sorted(of)]


class TreeStage(NamedTuple):
    """A pass of a round with trees; see ``drafts.Stage``.

    It makes ``n`` nodes, from number ``first`` of the round on, from ``n_outputs`` rankings of
    ``n_ranks`` tokens, whose rows are kept from ``first_output`` on.
    """

    plan: DevicePlan
    run: PlannedRun
    brought: dict[str, NDArray[Any]]
    first: int = 0
    n: int = 0
    first_output: int = 0
    n_outputs: int = 0
    n_ranks: int = 0

    @property
    def key(self) -> Hashable:
        """What its launches depend on, besides the arrays of the round; it keeps the plan's."""
        lengths = tuple((name, len(values)) for name, values in self.brought.items())
        return (self.plan, self.run.shape, lengths, *self[3:])

    def n_placed(self, what: str) -> int:
        """Return how many tokens, or recycled rows, are placed in it."""
        return len(self.brought.get(f"pairs of {what}", ()))


class RoundShape(NamedTuple):
    """What the launches of a round depend on besides its passes; see ``drafts.RoundShape``."""

    recycled: tuple[tuple[str, str], ...]
    n_tokens: int
    n_readable: int
    n_wanted: int


class TreeLoop:
    """Runs that grow trees, and begin with a plan.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan, self._device, self._round = plan, plan.device, DraftLoop(plan)

    def can_grow(self, run: TreeRun) -> bool:
        """Say whether a run needs nothing of the host between its passes.

        Where several branches are ranked from the same logits, no penalty may change these.
        """
        here = self._round.is_here
        is_shared = any(len({*one.outputs}) < len(one.outputs) for one in run.passes)
        has_penalties = any(sampler.sampling.has_penalties for sampler in run.samplers)
        return (
            all(here(one.plan) and not one.plan.has_states for one in run.passes)
            and not (is_shared and has_penalties)
            and not run.width
            and max(node.rank for node in run.nodes) < MOST_RANKS
        )

    def grow(self, run: TreeRun) -> list[GrownTree]:
        """Return the tree of each sequence; see ``Plan.grow``."""
        order = TreeOrder(run)
        stages = self._growing(run, order)
        n_tokens, verification = run.n_tokens or EVERY_TOKEN, run.verification
        if verification and self._round.is_here(verification.plan):
            stages.append(self._verifying(run, order, verification.plan, verification))
        else:
            verification = None
        wanted = np.array([node for nodes in run.order for node in nodes], np.int32)
        stages[0].brought["wanted"] = wanted
        n_readable = min(n_tokens, n_tokens_of(stages))
        shape = RoundShape(tuple(run.recycle.items()), n_tokens, n_readable, len(wanted))
        self._round.start(shape, stages, partial(self._launches, shape), max(run.p_min) > 0)
        raw = self._device.read(self._round.arrays["nodes"], 0, len(run.nodes) * DRAFT.itemsize)
        nodes = np.frombuffer(raw, DRAFT)
        tokens = nodes["token"][wanted]
        if verification and tokens.min() >= 0 and tokens.max() < n_readable:
            verification.arrays = stages[-1].plan.result(verification.batch)
        return [self._read(run, nodes, i) for i in range(len(run.samplers))]

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
            _texts({at: order.path(branch.node) for at, branch in enumerate(order.ranked(p))})
            for p in range(len(run.passes))
        ]
        stages = []
        for p, planned in enumerate(_take(run.passes, batches, [parts for _, parts in texts])):
            brought = {"children": _children(run, order, p), "drafted": texts[p][0]}
            brought |= _followed(run, order, p)
            nodes, n_outputs = order.nodes[p], len(batches[p].outputs)
            made = nodes.start, len(nodes), order.outputs[p], n_outputs, order.n_ranks[p]
            stages.append(TreeStage(plans[p], planned, brought, *made))
        branches = [PENDING if branch.node is None else branch.node for branch in run.branches]
        stages[0].brought["branches"] = np.array(branches, np.int32)
        stages[0].brought["nodes"] = np.array([(NO_DRAFT, 0, 0)] * len(run.nodes), DRAFT)
        self._make_room(run, stages)
        return stages

    def _verifying(
        self, run: TreeRun, order: TreeOrder, plan: DevicePlan, verification: Verification
    ) -> TreeStage:
        """Return the pass of the target."""
        first, memory = verification.first, verification.memory
        rows = {
            first[i] + 1 + at: order.path(node)
            for i, nodes in enumerate(run.order)
            for at, node in enumerate(nodes)
        }
        outputs = enumerate(verification.batch.outputs.tolist())
        paths = {output: rows[row] for output, row in outputs if row in rows}
        drafted, parts = _texts(paths)
        sequence_of = {output: (0, len(path)) for output, path in paths.items()}
        batch = without_drafts(verification.batch, sequence_of)
        plan.check(batch, memory)
        tokens = [(WORDS * path[-1] + NEXT, row) for row, path in rows.items()]
        brought = {"drafted": drafted, "pairs of tokens": np.array(tokens, PAIR)}
        return TreeStage(plan, plan.take(batch, memory, drafted=parts), brought)

    def _make_room(self, run: TreeRun, stages: list[TreeStage]) -> None:
        """Make the arrays that nothing is brought to."""
        room, program = self._round.room, self._plan.program
        n_outputs = sum(stage.n_outputs for stage in stages)
        for slot, name in run.recycle.items():
            width = program.values[program.outputs[name]].shape[1]
            room(f"rows of {slot}", n_outputs, np.float32, int(width))
        room("marks", len(run.recycle) * max(stage.n_outputs for stage in stages), np.int32)
        room("worths", len(run.nodes), np.float64)
        n_ranked = [stage.n_outputs * stage.n_ranks for stage in stages]
        n_logits = max(stage.plan.program.shape("logits")[1] for stage in stages)
        room("ranking", max(n_ranked), RANKED)
        room("candidates", max(n_ranked) * n_parts(int(n_logits)), WINNER)

    # What the device does

    def _launches(
        self, shape: RoundShape, stage: TreeStage, table: int, is_last: bool, following: Any
    ) -> Iterator[Launch]:
        """Yield the launches of a pass; ``following`` is the condition of the next one."""
        plan, arrays, program = stage.plan, self._round.arrays, stage.plan.program
        n_brought = len(stage.run.parts) + len(stage.brought)
        yield spread(self._plan.staging.array, table, n_brought)
        if n := stage.n_placed("tokens"):
            pairs, tokens = arrays["pairs of tokens"], plan.arrays[program.inputs["tokens"]]
            yield place(arrays["nodes"], pairs, tokens, n, 1)
        if n := stage.n_placed("rows"):
            for slot, _ in shape.recycled:
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
        if is_last and following is not None:
            yield complete(arrays["nodes"], arrays["wanted"], shape.n_wanted, following)

    def _read(self, run: TreeRun, nodes: NDArray[np.void], i: int) -> GrownTree:
        """Return the tree of a sequence from ``DRAFT`` [n]."""
        kept = [node for node in run.order[i] if nodes["token"][node] >= 0]
        place_of = {node: at for at, node in enumerate(kept)}
        above = [run.branches[run.nodes[node].branch].node for node in kept]
        made = nodes["goes_on"][run.order[i]]
        return GrownTree(
            nodes["token"][kept].tolist(),
            [-1 if node is None else place_of.get(node, -1) for node in above],
            not (made == NOT_FINITE).any(),
        )


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


def _texts(paths: Mapping[int, list[int]]) -> tuple[NDArray[np.int32], DraftedParts]:
    """Return the nodes that the texts of outputs go on with, and the part of each."""
    numbers: list[int] = []
    parts = dict[int, tuple[int, int]]()
    for output, path in paths.items():
        parts[output] = len(numbers), len(path)
        numbers += path
    return np.array(numbers, np.int32), parts


def _take(
    passes: Sequence[TreePass], batches: list[CheckedBatch], parts: list[DraftedParts]
) -> list[PlannedRun]:
    """Return the runs of all passes.

    A plan's arrays may grow with a pass, so that those before it have to be planned again.
    """
    while True:
        planned = [
            cast(DevicePlan, one.plan).take(batch, one.memory, has_odds=True, drafted=part)
            for one, batch, part in zip(passes, batches, parts, strict=True)
        ]
        runs = [(one.plan, run.shape.choosing) for one, run in zip(passes, planned, strict=True)]
        newest = {plan: choosing.rooms for plan, choosing in runs if choosing}
        if all(choosing is None or choosing.rooms == newest[plan] for plan, choosing in runs):
            return planned


def _children(run: TreeRun, order: TreeOrder, p: int) -> NDArray[np.void]:
    """Return ``CHILD`` of each node that may grow in a pass."""
    going = {branch.node for branch in run.branches}
    children = []
    for node in order.nodes[p]:
        branch, rank = run.nodes[node]
        output = order.output(node) - order.outputs[p]
        p_min = run.p_min[run.branches[branch].sequence]
        children.append((p_min, branch, output, rank, node in going))
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
    rows = np.array([(order.output(node), row) for node, row in nodes], PAIR)
    return {"pairs of tokens": tokens, **({"pairs of rows": rows} if run.recycle else {})}
