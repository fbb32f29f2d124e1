"""The shapes of drafts without branches, each as a round of stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.schedule import KNOWN, OF_DRAFT, PENDING, DraftToken, Fill, Pick, Stage
from mtpcore.drafting.rounds import Round, RoundInput

__all__ = [
    "Chains",
    "block_stage",
    "chain_stages",
    "draft_block",
    "draft_chains",
    "draft_heads",
    "head_stages",
    "post_head_stages",
]

Feeds = Mapping[str, Sequence[str]]


class Chains:
    """Drafts one after the other, ``k[i]`` of each text i, numbered text by text."""

    def __init__(self, k: Sequence[int]) -> None:
        self.k = [max(n, 0) for n in k]
        self._first = [0, *accumulate(self.k)]
        self.drafts = [
            DraftToken(i, self._first[i] + j - 1 if j else PENDING)
            for i, n in enumerate(self.k)
            for j in range(n)
        ]

    def number(self, i: int, j: int) -> int:
        """Return the number of draft j of text i."""
        return self._first[i] + j

    def going(self, j: int) -> list[int]:
        """Return the texts that want more than ``j`` drafts."""
        return [i for i, n in enumerate(self.k) if n > j]

    @property
    def most(self) -> int:
        """How many drafts the longest chain has."""
        return max(self.k, default=0)


def draft_chains(inputs: RoundInput) -> Round:
    """Draft token by token with one graph."""
    chains, (first,) = Chains(inputs.wanted), inputs.passes
    stages = chain_stages(first, chains, inputs.feeds, step=inputs.step)
    return Round(stages=[*stages], drafts=chains.drafts)


def draft_heads(inputs: RoundInput) -> Round:
    """Draft with heads, of which each makes a draft."""
    chains = Chains(inputs.wanted)
    stages = head_stages(inputs.passes, chains, inputs.feeds)
    return Round(stages=[*stages], drafts=chains.drafts)


def draft_block(inputs: RoundInput) -> Round:
    """Draft with one pass over a block, and what chooses of it, if there is a post-head."""
    chains, (block, *post_head) = Chains(inputs.wanted), inputs.passes
    stages = [block_stage(block, chains)]
    if post_head:
        feeds, passes = inputs.feeds, inputs.n_passes
        stages = [*post_head_stages(block, post_head[0], chains, feeds, passes=passes)]
    return Round(stages=stages, drafts=chains.drafts)


def chain_stages(first: Stage, chains: Chains, feeds: Feeds, *, step: int = 1) -> Iterator[Stage]:
    """Yield stages that draft token by token with one plan.

    Parameters
    ----------
    first : Stage
        Its outputs are the newest rows of the texts, and choose their first drafts. A later stage
        has a row for each text that goes on, ``step`` places after the one before.
    chains : Chains
    feeds : mapping of str to sequence of str
        What the row before makes for slots.
    step : int
    """
    batch, source = first.batch, OF_DRAFT if feeds else KNOWN
    yield _choosing(first, chains, 0)
    going: list[int] = []
    ahead = step * np.arange(chains.most, dtype=np.int32)[:, None]
    for j in range(1, chains.most):
        if going != (going := chains.going(j)):
            newest, n = batch.outputs[going], np.arange(len(going), dtype=np.int32)
            seq, place = batch.seq[newest], batch.place[newest] + ahead
            positions = batch.positions[newest] + ahead[:, None]
        rows = CheckedBatch(tokens=n, positions=positions[j], seq=seq, place=place[j], outputs=n)
        yield Stage(
            plan=first.plan,
            memory=first.memory,
            batch=rows,
            fills=[Fill(row, chains.number(i, j - 1), source) for row, i in enumerate(going)],
            feeds=feeds,
            picks=[Pick(row, chains.number(i, j)) for row, i in enumerate(going)],
        )


def head_stages(heads: Sequence[Stage], chains: Chains, feeds: Feeds) -> Iterator[Stage]:
    """Yield stages of heads, of which each makes a draft.

    Stage j has the texts that want more than j drafts (the first one: all), in order, each with
    all of its rows together; the newest j of them, or as many as there are, are the drafts so far.
    """
    for j, head in enumerate(heads[: max(chains.most, 1)]):
        batch, fills = head.batch, []
        for i, newest in zip(chains.going(j) if j else (), batch.outputs.tolist(), strict=False):
            for before in range(j):
                row = newest - j + 1 + before
                if row >= 0 and batch.seq[row] == batch.seq[newest]:
                    source = OF_DRAFT if feeds else KNOWN
                    fills.append(Fill(row, chains.number(i, before), source))
        stage = replace(head, fills=sorted(fills), feeds=feeds if j else {}, runs_whole=True)
        yield _choosing(stage, chains, j)


def _choosing(stage: Stage, chains: Chains, j: int) -> Stage:
    """Return a stage that chooses draft j of each text; the first one has outputs of all."""
    at = chains.going(j) if j else range(len(chains.k))
    picks = [Pick(output, chains.number(i, j)) for output, i in enumerate(at) if chains.k[i] > j]
    return replace(stage, picks=picks)


def block_stage(block: Stage, chains: Chains) -> Stage:
    """Return the stage of a block whose outputs choose all drafts, text by text."""
    picks = [Pick(n, n) for n in range(len(chains.drafts))]
    return replace(block, picks=picks, ends_at_nan=True)


def post_head_stages(
    block: Stage, rows: Stage, chains: Chains, feeds: Feeds, *, passes: int = 0
) -> Iterator[Stage]:
    """Yield the stage of a block, and those of the post-head that chooses its drafts.

    Parameters
    ----------
    block : Stage
        Its outputs feed the rows of the post-head.
    rows : Stage
        A row for each of these outputs. The last ones of each text are outputs and choose its
        drafts; the row of any but the first draft reads the draft before it.
    chains : Chains
    feeds : mapping of str to sequence of str
        Outputs of the block, for slots of the post-head.
    passes : int
        How often all rows run at most, after the block's own logits have chosen; 0: each row runs
        alone, after the draft before.
    """
    batch, parents = rows.batch, [draft.parent for draft in chains.drafts]
    after = {row: parents[draft] for draft, row in enumerate(batch.outputs.tolist())}
    fills = [Fill(row, after.get(row, KNOWN), 0, row) for row in range(len(batch.tokens))]
    if passes:
        at = batch.outputs.tolist()
        yield replace(block, picks=[*map(Pick, at, range(len(at)))], ends_at_nan=True)
        picks = [Pick(draft, draft) for draft in range(len(at))]
        yield replace(rows, fills=fills, feeds=feeds, picks=picks, repeats=passes, ends_at_nan=True)
        return
    yield block
    for j in range(chains.most):
        drafts = [chains.number(i, j) for i in chains.going(j)]
        its = batch.outputs[drafts]
        one = CheckedBatch(
            tokens=batch.tokens[its],
            positions=batch.positions[its],
            seq=batch.seq[its],
            place=batch.place[its],
            outputs=np.arange(len(its), dtype=np.int32),
        )
        yield replace(
            rows,
            batch=one,
            fills=[fills[row]._replace(row=at) for at, row in enumerate(its.tolist())],
            feeds=feeds,
            picks=[*map(Pick, range(len(its)), drafts)],
            ends_at_nan=True,
        )
