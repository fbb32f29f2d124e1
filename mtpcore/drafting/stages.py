"""The shapes of drafts, each as a round of stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mtpcore.backends.schedule import KNOWN, PENDING, Fill, Pick, Round, Stage
from mtpcore.drafting.levels import Levels, levels_for
from mtpcore.drafting.rounds import RoundInput
from mtpcore.graph.program import Program

__all__ = ["draft_block", "draft_heads", "draft_levels", "is_blind"]


def draft_levels(inputs: RoundInput) -> Round:
    """Draft level by level with one graph, whose first outputs are the newest rows of the texts.

    A level is a token of a chain, or what stands equally deep in a tree. Of a chain each later
    stage has a row for each text that goes on, ``step`` places after the one before.
    """
    is_tree = inputs.tree is not None
    has_paths = is_tree and inputs.programs[0].remembers
    levels = levels_for(inputs.tree, inputs.wanted, inputs.room, has_paths=has_paths)
    texts = range(len(inputs.wanted))
    roots = [(text, branch) for text in texts for branch in levels.choosing(text, 0)]
    stages = [Stage(picks=[pick for text, branch in roots for pick in branch.picks(text)])]
    for depth in range(1, levels.depth):
        fills, picks = list[Fill](), list[Pick]()
        for text in texts:
            for at, branch in levels.branches(text, depth):
                if at == depth:
                    picks += branch.picks(len(fills))
                fills.append(Fill(text, branch.draft, ahead=at * inputs.step))
        stages.append(
            Stage(rows="tree" if is_tree else "chain", fills=fills, feeds=inputs.feeds, picks=picks)
        )
    return Round(stages=stages, drafts=levels.drafts, bests=levels.bests)


def draft_heads(inputs: RoundInput) -> Round:
    """Draft with heads, of which each gives the branches of its level their children.

    Pass j has the texts that want more than j levels (the first one: all), in order, each with all
    of its rows together: of chains the newest one is an output, and the newest j, or as many as
    there are, are the drafts so far.
    """
    programs, is_tree = inputs.programs, inputs.tree is not None
    has_paths = not is_tree or any(program.remembers for program in programs)
    levels = levels_for(inputs.tree, inputs.wanted, inputs.room, has_paths=has_paths)
    stages = []
    for head in range(min(len(programs), max(levels.depth, 1))):
        runs_once = head == 0 or (is_tree and is_blind(programs[head], inputs.feeds))
        fills, picks = _read_by_head(head, levels, runs_once=runs_once)
        feeds = inputs.feeds if fills else {}
        stages.append(
            Stage(graph=head, fills=fills, feeds=feeds, picks=picks, runs_whole=not is_tree)
        )
    return Round(stages=stages, drafts=levels.drafts, bests=levels.bests)


def _read_by_head(depth: int, levels: Levels, *, runs_once: bool) -> tuple[list[Fill], list[Pick]]:
    """Return the fills and picks of a head, whose pass has rows of drafts after what else it reads.

    Those whose branches get children are outputs, the last ones of a text.
    """
    fills, picks, n_outputs = list[Fill](), list[Pick](), 0
    for text in range(len(levels.by_text)):
        choosing = levels.choosing(text, depth)
        if runs_once:
            for branch in choosing:
                picks += branch.picks(n_outputs)
            n_outputs += depth == 0 or bool(choosing)
            continue
        for branch in choosing:
            picks += branch.picks(n_outputs)
            n_outputs += 1
        branches = levels.branches(text, depth)
        for n_after, (_, branch) in zip(reversed(range(len(branches))), branches, strict=True):
            fills.append(Fill(n_outputs - 1, branch.draft, ahead=-n_after))
    return fills, picks


def is_blind(program: Program, feeds: Mapping[str, Sequence[str]]) -> bool:
    """Say whether what a head makes depends neither on drafts nor on where they stand."""
    reads = {i for node in program.nodes for i in node.inputs}
    inputs = program.inputs
    named = {inputs[name] for name in ("tokens", "positions") if name in inputs}
    return not (program.remembers or feeds or reads & named)


def draft_block(inputs: RoundInput) -> Round:
    """Draft with one pass over a block, and what chooses of it, if there is a post-head.

    Outputs of the block choose all drafts, text by text, or feed the rows of the post-head, which
    has one for each: ``n_known`` of each text are before the one that chooses its first draft. Each
    but the first draft is chosen by a row that reads the one before it: by passes over all rows,
    after the block's own logits have chosen, or by each row alone, after the draft before.
    """
    chains = levels_for(None, inputs.wanted, (), has_paths=False)
    if len(inputs.programs) == 1 or not chains.drafts:
        numbers = range(len(chains.drafts))
        stages = [Stage(picks=[*map(Pick, numbers, numbers)], ends_at_nan=True)]
    else:
        stages = [*(_in_passes if inputs.n_passes else _in_order)(chains, inputs)]
    return Round(stages=stages, drafts=chains.drafts)


def _in_passes(chains: Levels, inputs: RoundInput) -> Iterator[Stage]:
    """Yield a block that chooses all drafts, and a post-head that chooses them anew."""
    rows, fills = list[int](), list[Fill]()
    n_known = 0  # rows that choose nothing
    for draft, (_, parent) in enumerate(chains.drafts):
        if parent == PENDING:
            n_known += inputs.n_known
            for back in range(inputs.n_known, 0, -1):
                fills.append(Fill(draft, KNOWN, 0, draft + n_known - back, ahead=-back))
        rows.append(draft + n_known)
        fills.append(Fill(draft, parent, 0, rows[-1]))
    numbers = range(len(chains.drafts))
    yield Stage(picks=[*map(Pick, rows, numbers)], ends_at_nan=True)
    yield Stage(
        graph=1,
        fills=fills,
        feeds=inputs.feeds,
        picks=[*map(Pick, numbers, numbers)],
        repeats=inputs.n_passes,
        ends_at_nan=True,
    )


def _in_order(chains: Levels, inputs: RoundInput) -> Iterator[Stage]:
    """Yield a block that chooses nothing, and a post-head that chooses draft after draft."""
    texts = range(len(inputs.wanted))
    yield Stage()
    for depth in range(chains.depth):
        at = [branch for text in texts for branch in chains.choosing(text, depth)]
        yield Stage(
            graph=1,
            rows="chain",
            fills=[Fill(draft, of.draft, 0, draft) for of in at for _, draft in of.children],
            feeds=inputs.feeds,
            picks=[pick for row, branch in enumerate(at) for pick in branch.picks(row)],
            ends_at_nan=True,
        )
