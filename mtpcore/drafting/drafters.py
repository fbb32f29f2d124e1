"""The interface of drafters that a Cross uses, and what it asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

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
from mtpcore.sampling import DraftProcessor, Sampling

__all__ = [
    "DraftJob",
    "Drafter",
    "Verify",
    "texts_of",
]

I32 = NDArray[np.int32]
Verify = Callable[[Sequence[int], Sequence[int]], Verification | None]
"""``verify(seqs, n_drafts)``: what the target is to run after a schedule that drafts a chain of so
many tokens for each of these sequences; None where they are not all that it verifies."""

GREEDY = Sampling.greedy()


class DraftJob(msgspec.Struct, frozen=True):
    """What is asked of a drafter for one sequence.

    ``history`` int32[n + 1] are the sequence's tokens, the pending one last; at most ``k`` drafts
    are wanted, which is no more than the drafter's limit; a draft less probable than ``p_min`` ends
    them. ``rows`` are there where tokens are -1, for drafters that read them. ``sampling`` are the
    settings of the target's choices. ``processor`` changes logits before they choose.
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


def texts_of(jobs: Sequence[DraftJob]) -> list[Text]:
    """Return how drafts of these sequences are chosen."""
    return [
        Text(job.sampler, job.history, job.n_prompt, len(job.history), job.p_min, job.processor)
        for job in jobs
    ]


class Drafter(Protocol):
    """One role of a Cross that drafts."""

    @property
    def spec(self) -> DrafterSpec | None:
        """The declaration; None where there is no graph."""

    @property
    def runners(self) -> Mapping[str, GraphRunner]:
        """Its graphs by role; all of them follow the target."""

    @property
    def reads_rows(self) -> bool:
        """Whether it follows a target that read embedding rows: it reads them, too."""

    @property
    def reads_text(self) -> bool:
        """Whether its graphs must have read all that the target read, to draft after it."""

    @property
    def first(self) -> int:
        """The first place that it makes an entry of: what the target read before it is not read."""

    paused: int
    """How often a sequence got no further draft because a hidden row was not finite."""

    def draft(
        self, jobs: list[DraftJob], verify: Verify | None = None
    ) -> Mapping[int, Draft | Proposal]:
        """Return drafts by sequence; nothing in them is trusted.

        Where one schedule makes all of them, it may end with what ``verify`` returns.
        """

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Let each graph hold exactly the entries of these tokens, which the target processed.

        With ``rows`` where they are -1, for those that read them.
        """

    def rewind(self, seq: int, n: int) -> None:
        """Forget what depends on tokens from place ``n`` on."""

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` be a copy of ``seq``."""

    def remove(self, seq: int) -> None:
        """Forget a sequence."""
