"""A verification that a backend runs together with the drafts, before ``verify`` is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtpcore.backends.base import CheckedBatch, FusedSampling, Verification
from mtpcore.cross.verification import RoundBatch
from mtpcore.runtime.admission import Admitted
from mtpcore.runtime.runner import GraphRunner

__all__ = ["VerificationAhead"]


class VerificationAhead:
    """The target's rows for drafts that are still to be made; their places are reserved.

    Parameters
    ----------
    target : GraphRunner
    rows : RoundBatch
        With placeholders for the drafted tokens.
    fused : FusedSampling, optional
        The samplers that choose the target's tokens.
    drafted : sequence of int
        The sequences of the schedule, in its order.

    Raises
    ------
    CapacityError
        There is no room; nothing changed.
    """

    def __init__(
        self,
        target: GraphRunner,
        rows: RoundBatch,
        fused: FusedSampling | None,
        drafted: Sequence[int],
    ) -> None:
        self._target = target
        checked, self._ranges, _ = target.admit(rows.batch(), fused)
        if target.memory:
            target.memory.reserve(self._ranges)
        self.verification = Verification(
            plan=target.plan,
            memory=target.memory,
            batch=checked,
            first=[rows.spans[seq][0] for seq in drafted],
        )

    def take(self, admitted: Admitted) -> dict[str, Any] | None:
        """Return what was made of these rows, if they were run; else give their places back."""
        made = self.verification.arrays
        if made is not None and _is_same(self.verification.batch, admitted[0]):
            return made
        self.give_back()
        return None

    def give_back(self) -> None:
        """Let memory hold what it held before."""
        if self._target.memory:
            self._target.memory.give_back(self._ranges)


def _is_same(ran: CheckedBatch, asked: CheckedBatch) -> bool:
    """Say whether two batches are the same but for drafted tokens, which were filled in."""
    fields = ("positions", "seq", "place", "outputs")
    pairs = [(getattr(ran, name), getattr(asked, name)) for name in fields]
    return (
        all(np.array_equal(one, other) for one, other in pairs)
        and _parents(ran) == _parents(asked)
        and _choices(ran) == _choices(asked)
    )


def _parents(batch: CheckedBatch) -> list[int] | None:
    """Return the parent of each row; None where all follow the row before."""
    return None if batch.parent is None else batch.parent.tolist()


def _choices(batch: CheckedBatch) -> tuple[Any, ...] | None:
    wanted = batch.fused_sampling
    if wanted is None:
        return None
    return tuple(wanted.samplers), tuple(wanted.indices), tuple(wanted.n_prompt)
