"""The shapes of drafts without branches, each as a round of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from mtpcore.backends.schedule import KNOWN, PENDING, DraftToken, Fill, Pick, Round, Stage
from mtpcore.drafting.rounds import RoundInput

__all__ = ["draft_block", "draft_chains", "draft_heads"]


class Chains:
    """Drafts one after the other, ``k[i]`` of each text i, numbered text by text."""

    def __init__(self, k: Sequence[int]) -> None:
        self.k = [max(n, 0) for n in k]
        self.first = [0, *accumulate(self.k)]
        self.drafts = [
            DraftToken(i, self.first[i] + j - 1 if j else PENDING)
            for i, n in enumerate(self.k)
            for j in range(n)
        ]
        self.most = max(self.k, default=0)

    def going(self, j: int) -> list[int]:
        """Return the texts that want more than ``j`` drafts."""
        return [i for i, n in enumerate(self.k) if n > j]

    def chosen(self, j: int) -> list[int]:
        """Return the numbers of all drafts j."""
        return [self.first[i] + j for i in self.going(j)]


def draft_chains(inputs: RoundInput) -> Round:
    """Draft token by token with one graph, whose first outputs are the newest rows of the texts.

    Each later stage has a row for each text that goes on, ``step`` places after the one before.
    """
    chains = Chains(inputs.wanted)
    stages = [Stage(picks=[*map(Pick, chains.going(0), chains.chosen(0))])]
    for j in range(1, chains.most):
        going, drafts = chains.going(j), chains.chosen(j)
        stages.append(
            Stage(
                rows="chain",
                fills=[Fill(i, chains.first[i] + j - 1, ahead=j * inputs.step) for i in going],
                feeds=inputs.feeds,
                picks=[*map(Pick, range(len(drafts)), drafts)],
            )
        )
    return Round(stages=stages, drafts=chains.drafts)


def draft_heads(inputs: RoundInput) -> Round:
    """Draft with heads, of which each makes a draft.

    Pass j has the texts that want more than j drafts (the first one: all), in order, each with all
    of its rows together and the newest one an output; the newest j, or as many as there are, are
    the drafts so far.
    """
    chains = Chains(inputs.wanted)
    stages = [Stage(picks=[*map(Pick, chains.going(0), chains.chosen(0))], runs_whole=True)]
    for j in range(1, min(chains.most, len(inputs.programs))):
        drafts = chains.chosen(j)
        stages.append(
            Stage(
                graph=j,
                fills=[
                    Fill(output, draft - back, ahead=1 - back)
                    for output, draft in enumerate(drafts)
                    for back in range(j, 0, -1)
                ],
                feeds=inputs.feeds,
                picks=[*map(Pick, range(len(drafts)), drafts)],
                runs_whole=True,
            )
        )
    return Round(stages=stages, drafts=chains.drafts)


def draft_block(inputs: RoundInput) -> Round:
    """Draft with one pass over a block, and what chooses of it, if there is a post-head.

    Outputs of the block choose all drafts, text by text, or feed the rows of the post-head, which
    has one for each: ``n_known`` of each text are before the one that chooses its first draft. Each
    but the first draft is chosen by a row that reads the one before it: by passes over all rows,
    after the block's own logits have chosen, or by each row alone, after the draft before.
    """
    chains = Chains(inputs.wanted)
    if len(inputs.programs) == 1 or not chains.drafts:
        numbers = range(len(chains.drafts))
        stages = [Stage(picks=[*map(Pick, numbers, numbers)], ends_at_nan=True)]
    else:
        stages = [*(_in_passes if inputs.n_passes else _in_order)(chains, inputs)]
    return Round(stages=stages, drafts=chains.drafts)


def _in_passes(chains: Chains, inputs: RoundInput) -> Iterator[Stage]:
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


def _in_order(chains: Chains, inputs: RoundInput) -> Iterator[Stage]:
    """Yield a block that chooses nothing, and a post-head that chooses draft after draft."""
    yield Stage()
    for j in range(chains.most):
        drafts = chains.chosen(j)
        yield Stage(
            graph=1,
            rows="chain",
            fills=[Fill(draft, chains.drafts[draft].parent, 0, draft) for draft in drafts],
            feeds=inputs.feeds,
            picks=[*map(Pick, range(len(drafts)), drafts)],
            ends_at_nan=True,
        )
