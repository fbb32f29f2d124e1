"""What drafters have in common, and what a Cross asks of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import Verification
from mtpcore.backends.schedule import Text
from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.proposer import Proposal
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.runtime.runner import GraphRunner
from mtpcore.sampling import DraftProcessor, GrammarMatcher, Sampling

__all__ = [
    "NO_TEXT",
    "DraftJob",
    "Drafter",
    "Verify",
    "texts_of",
]

logger = logging.getLogger("mtpcore")

I32 = NDArray[np.int32]
Verify = Callable[[Sequence[int], Sequence[int]], Verification | None]
"""``verify(seqs, n_drafts)``: what the target is to run after a schedule that drafts a chain of so
many tokens for each of these sequences; None where they are not all that it verifies."""

GREEDY = Sampling.greedy()
NO_TEXT: I32 = np.zeros(0, np.int32)


class DraftJob(msgspec.Struct, frozen=True):
    """What is asked of a drafter for one sequence.

    ``history`` int32[n + 1] are the sequence's tokens, the pending one last; at most ``k`` drafts
    are wanted, which is no more than the drafter's limit; a draft less probable than ``p_min`` ends
    them. ``rows`` are there where tokens are -1, for drafters that read them. ``sampling`` are the
    settings of the target's choices. ``processor`` changes logits before they choose. Where
    the settings have a grammar, ``matcher`` says what may follow ``text``, int32[n_text].
    """

    seq: int
    history: I32
    n_prompt: int
    k: int
    sampler: Sampler
    p_min: float = 0.0
    rows: EmbeddingRows = NO_ROWS
    sampling: Sampling = GREEDY
    processor: DraftProcessor | None = None
    matcher: GrammarMatcher | None = None
    text: I32 = NO_TEXT


def texts_of(jobs: Sequence[DraftJob]) -> list[Text]:
    """Return how drafts of these sequences are chosen."""
    return [
        Text(job.sampler, job.history, job.n_prompt, len(job.history), job.p_min, job.processor)
        for job in jobs
    ]


class Drafter:
    """One role of a Cross that drafts, with any number of graphs.

    Parameters
    ----------
    name : str
        The role.
    runners : mapping of str to GraphRunner
        Its graphs by role; all of them are rewound, forked and emptied with the target.

    Attributes
    ----------
    spec : DrafterSpec or None
        The declaration; None where there is no graph.
    reads_rows : bool
        Whether it follows a target that read embedding rows: it reads them, too.
    reads_text : bool
        Whether its graphs must have read all that the target read, to draft after it.
    first : int
        The first place that it makes an entry of: what the target read before it is not read.
    round_size : int
        How many drafts a round makes whose first rows are none that a text is read with, as those
        of masks; 0 where texts are read with all of them.
    paused : int
        How often a sequence got no further draft because a row was not finite, the drafter does not
        have a token, or none was left to choose.
    """

    spec: DrafterSpec | None = None
    reads_rows = False
    reads_text = True
    first = 0
    round_size = 0

    def __init__(self, name: str, runners: Mapping[str, GraphRunner]) -> None:
        self.name, self.runners = name, runners
        self.paused = 0

    def draft(
        self, jobs: list[DraftJob], verify: Verify | None = None
    ) -> Mapping[int, Draft | Proposal]:
        """Return drafts by sequence; nothing in them is trusted.

        Where one schedule makes all of them, it may end with what ``verify`` returns.
        """
        raise NotImplementedError

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Let each graph hold exactly the entries of these tokens, which the target processed.

        With ``rows`` where they are -1, for those that read them. Without a graph there are none.
        """

    def rewind(self, seq: int, n: int) -> None:
        """Forget the entries from place ``n`` on, and the rows that they were made of."""
        for runner in self.runners.values():
            if runner.lengths[seq] > n:
                runner.sequences.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` be a copy of ``seq``."""
        for runner in self.runners.values():
            if runner.host is None:
                runner.sequences.fork(seq, new)

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
        for runner in self.runners.values():
            runner.sequences.rewind(seq, 0)

    def _pause(self, seq: int, place: int) -> None:
        """Count a sequence that gets no further draft; warn of the first one."""
        if not self.paused:
            logger.warning(
                "drafter %s: sequence %d, place %d has a hidden row that is not finite, a "
                "token that the drafter does not have, or none left to choose; no drafts from it "
                "(said once, counted)",
                self.name,
                seq,
                place,
            )
        self.paused += 1
