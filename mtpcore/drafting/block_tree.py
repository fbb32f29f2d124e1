"""Trees of one block: of all continuations the likeliest, each token as likely as its row says.

DDTree (arXiv 2604.12989) takes the best nodes one by one from a heap. Here each level is ranked at
once, as far as nodes of it may be among the best: children of a likelier draft are likelier, rank
by rank. So with the m + 1 likeliest drafts of a level, r + 1 children of each are at least as good
as child r of draft m, and all of these nodes and one of each level above must be among the best.
"""

from __future__ import annotations

from mtpcore.backends.schedule import BEST, PENDING, Best, DraftToken, Pick, Round, Stage
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_block

__all__ = ["draft_block_tree"]


def draft_block_tree(inputs: RoundInput) -> Round:
    """Draft a token for each row of a block, or a tree where one is asked for."""
    if inputs.tree is None:
        return draft_block(inputs)
    return (_draft_fixed if inputs.tree.paths else _draft_best)(inputs, inputs.tree)


def _draft_fixed(inputs: RoundInput, shape: TreeShape) -> Round:
    """Draft the nodes on fixed paths of ranks."""
    first = 0
    drafts, picks = list[DraftToken](), list[Pick]()
    for text, n_rows in enumerate(inputs.wanted):
        starts = (path[:n] for path in shape.paths for n in range(1, min(len(path), n_rows) + 1))
        number = {path: len(drafts) + i for i, path in enumerate(dict.fromkeys(starts))}
        drafts += [DraftToken(text, number.get(path[:-1], PENDING)) for path in number]
        level_by_level = sorted(number, key=lambda path: (len(path), path))
        picks += [Pick(first + len(path) - 1, number[path], path[-1]) for path in level_by_level]
        first += n_rows
    return Round(stages=[Stage(picks=picks, ends_at_nan=True)], drafts=drafts)


def _draft_best(inputs: RoundInput, shape: TreeShape) -> Round:
    """Draft the ``n_nodes`` likeliest nodes; no draft has more than ``width`` children."""
    first = 0
    drafts, bests, picks = list[DraftToken](), list[Best](), list[Pick]()

    def best_of(candidates: list[int], n: int, *, goes_on: bool) -> list[int]:
        numbers = [*range(len(drafts), len(drafts) + n)]
        drafts.extend([DraftToken(text, BEST)] * n)
        bests.append(Best(candidates, numbers, goes_on))
        return numbers

    for text, n_rows in enumerate(inputs.wanted):
        nodes, above = list[int](), [PENDING]
        for level in range(min(n_rows, shape.depth)):
            begin = len(drafts)
            for m, parent in enumerate(above):
                n = _n_children(shape.n_nodes, level, m)
                picks += [
                    Pick(first + level, len(drafts) + r, r) for r in range(min(n, shape.width))
                ]
                drafts += [DraftToken(text, parent)] * min(n, shape.width)
            candidates = [*range(begin, len(drafts))]
            nodes += candidates
            n_going = (shape.n_nodes - level) // 2  # each has a child, and one of each level above
            if level + 1 == min(n_rows, shape.depth) or not n_going:
                break
            above = best_of(candidates, min(n_going, len(candidates)), goes_on=True)
        if nodes:
            best_of(nodes, min(shape.n_nodes, len(nodes)), goes_on=False)
        first += n_rows
    stage = Stage(picks=picks, ends_at_nan=True)
    return Round(stages=[stage], drafts=drafts, bests=bests)


def _n_children(n_nodes: int, level: int, m: int) -> int:
    """Return how many children of draft m of the level above may be among the best nodes.

    Level 0 has the pending token's.
    """
    return n_nodes if level == 0 else (n_nodes - level + 1) // (m + 1) - 1
