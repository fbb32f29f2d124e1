"""Drafters made of proposers, which have no graph: they are asked, and not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.declarations.proposer import Proposal, Proposer
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.drafting.drafters import Drafter, DraftJob, Verify
from mtpcore.errors import PluginError, spell

__all__ = ["DeclaredProposer", "ProposerDrafter", "call_plugin", "read_answer"]

I32 = NDArray[np.int32]
_WHOLE = (list, Proposal, DraftTree)
"""What proposers mostly answer: nothing that is still to be made while it is read."""


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
        return call_plugin(self.spec, k, self._proposer, "propose", seq, tokens, k)


def call_plugin(spec: DrafterSpec, k: int, proposer: object, name: str, *given: object) -> object:
    """Return what a method of a plugin's proposer returns, of an iterator as much as ``k`` needs.

    Raises
    ------
    PluginError
        It raised something; names the plugin.
    """
    try:
        answer = getattr(proposer, name)(*given)
        if type(answer) in _WHOLE:
            return answer
        return list(islice(answer, k + 1)) if isinstance(answer, Iterator) else answer
    except Exception as error:  # whatever a plugin raises
        raise PluginError(
            f"{name} raised {type(error).__name__}: {spell(error, str)}",
            where=f"drafter {spec.full_name}",
        ) from error


def read_answer(answer: object, k: int) -> Draft | Proposal:
    """Return what a proposer answered; one id too many shows that there are more."""
    if type(answer) is list:
        return answer[: k + 1]
    if isinstance(answer, Proposal):
        if type(answer.draft) is list and len(answer.draft) <= k:
            return answer
        return Proposal(cast(Draft, read_answer(answer.draft, k)), answer.confidence)
    if isinstance(answer, DraftTree):
        return answer
    # What is no sequence is taken for one id: the Cross checks it, counts it and warns.
    is_several = isinstance(answer, Iterable) and getattr(answer, "ndim", None) != 0
    ids: Iterable[Any] = cast(Iterable[Any], answer) if is_several else [answer]
    return list(islice(ids, k + 1))


class ProposerDrafter(Drafter):
    """A drafter without a graph: the proposer is given the whole history each time."""

    def __init__(self, name: str, proposer: Proposer) -> None:
        super().__init__(name, {})
        self.proposer = proposer
        self.spec = proposer.spec if isinstance(proposer, DeclaredProposer) else None

    def draft(
        self, jobs: list[DraftJob], verify: Verify | None = None
    ) -> dict[int, Draft | Proposal]:
        """Ask the proposer for each sequence in turn."""
        made = {job.seq: self.propose(job.seq, job.history, job.k) for job in jobs}
        return {seq: answer for seq, answer in made.items() if answer is not None}

    def propose(self, seq: int, history: I32, k: int) -> Draft | Proposal | None:
        """Ask the proposer for up to ``k`` tokens after ``history`` int32[n]; None: it has none."""
        answer = self.proposer.propose(seq, history.copy(), k)
        draft = answer.draft if type(answer) is Proposal else answer
        if type(draft) is list and not draft:  # a confidence of nothing says nothing
            return None
        return read_answer(answer, k)
