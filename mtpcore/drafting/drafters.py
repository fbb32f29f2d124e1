"""The interface of drafters that a Cross uses, and drafters made of proposers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import Plan, Verification
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.errors import PluginError, spell
from mtpcore.runtime.runner import GraphRunner
from mtpcore.sampling import Sampling

__all__ = [
    "DeclaredProposer",
    "DraftJob",
    "Drafter",
    "call_plugin",
    "draft_settings",
    "ProposerDrafter",
    "Verify",
    "read_answer",
    "warn_unreadable",
]

I32 = NDArray[np.int32]
Verify = Callable[[Plan, Sequence[int], Sequence[int] | Sequence[DraftTree]], Verification | None]
"""``verify(plan, seqs, drafts)``: what the target is to run behind a draft run of ``plan``, which
drafts so much for each of these sequences, or trees with these parents; None where they are not all
that it verifies."""

GREEDY = Sampling.greedy()
logger = logging.getLogger("mtpcore")


class DraftJob(msgspec.Struct, frozen=True):
    """What is asked of a drafter for one sequence.

    ``history`` int32[n + 1] are the sequence's tokens, the pending one last; at most ``k`` drafts
    are wanted, which is no more than the drafter's limit; a draft less probable than ``p_min`` ends
    them. ``rows`` are there where tokens are -1, for drafters that read them. ``sampling`` are the
    settings of the target's choices.
    """

    seq: int
    history: I32
    n_prompt: int
    k: int
    sampler: Sampler
    p_min: float = 0.0
    rows: EmbeddingRows = NO_ROWS
    sampling: Sampling = GREEDY


def draft_settings(
    jobs: Sequence[DraftJob], recycle: Mapping[str, str], token_ids: I32 | None
) -> dict[str, Any]:
    """Return the fields of ``DraftRun`` that say how drafts of these sequences are chosen."""
    return {
        "samplers": [job.sampler for job in jobs],
        "history": [job.history for job in jobs],
        "n_prompt": [job.n_prompt for job in jobs],
        "p_min": [job.p_min for job in jobs],
        "recycle": recycle,
        "token_ids": token_ids,
    }


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
        """Whether its graphs must have read all that the target read, to draft behind it."""

    paused: int
    """How often a sequence got no further draft because a hidden row was not finite."""

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> Mapping[int, Draft]:
        """Return drafts by sequence; ids are not trusted.

        Where one draft run makes all of them, it may end with what ``verify`` returns.
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


def warn_unreadable(drafter: str, seq: int, place: int) -> None:
    """Say that a sequence gets no further draft."""
    logger.warning(
        "drafter %s: sequence %d, position %d has a hidden row that is not finite, or a token that "
        "the drafter does not have; no drafts from it (said once, counted)",
        drafter,
        seq,
        place,
    )


class DeclaredProposer(Proposer):
    """A plugin's proposer: what it raises names the plugin."""

    def __init__(self, proposer: Proposer, spec: DrafterSpec) -> None:
        self._proposer, self.spec = proposer, spec

    def propose(self, seq: int, tokens: I32, k: int) -> Any:
        """Return what the plugin's proposer guesses; see ``Proposer``.

        Raises
        ------
        PluginError
            It raised something.
        """
        return call_plugin(self.spec, "propose", lambda: self._proposer.propose(seq, tokens, k), k)


def call_plugin(spec: DrafterSpec, name: str, call: Callable[[], object], k: int) -> object:
    """Return what a plugin's function returns, of an iterator as much as may be needed.

    Raises
    ------
    PluginError
        It raised something; names the plugin.
    """
    try:
        answer = call()
        return list(islice(answer, k + 1)) if isinstance(answer, Iterator) else answer
    except Exception as error:  # whatever a plugin raises
        raise PluginError(
            f"{name} raised {type(error).__name__}: {spell(error, str)}",
            where=f"drafter {spec.name!r} of plugin {spec.plugin!r}",
        ) from error


def read_answer(answer: object, k: int) -> Draft:
    """Return what a proposer answered; one id too many shows that there are more."""
    if isinstance(answer, DraftTree):
        return answer
    # What is no sequence is taken for one id: the Cross checks it, counts it and warns.
    is_several = isinstance(answer, Iterable) and getattr(answer, "ndim", None) != 0
    ids: Iterable[Any] = cast(Iterable[Any], answer) if is_several else [answer]
    return list(islice(ids, k + 1))


class ProposerDrafter:
    """A drafter without a graph."""

    runners: Mapping[str, GraphRunner] = {}
    reads_rows, reads_text = False, True
    paused = 0

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.spec = proposer.spec if isinstance(proposer, DeclaredProposer) else None

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Ask the proposer for each sequence in turn."""
        return {job.seq: self._ask(job) for job in jobs}

    def _ask(self, job: DraftJob) -> Draft:
        return read_answer(self.proposer.propose(job.seq, job.history.copy(), job.k), job.k)

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Do nothing."""

    def rewind(self, seq: int, n: int) -> None:
        """Do nothing: a proposer is given the whole history each time."""

    def fork(self, seq: int, new: int) -> None:
        """Do nothing."""

    def remove(self, seq: int) -> None:
        """Do nothing."""
