"""Rows of a whole sequence on their way into a graph that attends to all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtpcore.backends.base import F32
from mtpcore.errors import LinkError
from mtpcore.runtime.arrival import bring
from mtpcore.runtime.runner import GraphRunner

__all__ = ["WholeSequences"]


class WholeSequences:
    """Hands a graph each sequence when it is delivered; nothing waits here.

    Parameters
    ----------
    name : str
        For messages: ``role.slot``.
    slot : str
    runner : GraphRunner
        The reader, which keeps what it makes of the rows.
    """

    def __init__(self, name: str, slot: str, runner: GraphRunner) -> None:
        self.name, self._slot, self._runner = name, slot, runner

    def put(self, seq: int, place: int, *parts: F32, bad: Sequence[int] | None = None) -> None:
        """Deliver the rows of a sequence, from place 0 on.

        Parameters
        ----------
        parts : float32[n, *]
            The rows; of several parts each has some of their columns, in order.
        bad : sequence of int, optional
            As in ``Inbox.put``; here nobody asks for them.

        Raises
        ------
        BatchError, CapacityError, LinkError
            A part of a sequence; or as ``GraphRunner.receive``.
        """
        if place:
            raise LinkError(
                "a whole sequence is delivered at once",
                where=f"{self.name}, sequence {seq}, place {place}",
                fix="remove the sequence, and process all of it in one batch",
            )
        rows, _ = bring(parts[0], self._runner.backend)
        if len(parts) > 1:
            rows = np.concatenate([np.asarray(part) for part in parts], axis=1)
        self._runner.receive(self._slot, seq, rows)
