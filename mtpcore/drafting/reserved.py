"""Rows of a graph with reserved places, after which drafts are made and taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from mtpcore.backends.schedule import Schedule, Stage
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["ReservedRows", "run_reserved"]


class ReservedRows:
    """A batch that was checked, with its places and some after them reserved.

    Parameters
    ----------
    runner : GraphRunner
    batch : Batch
    ahead : mapping of int to int, optional
        How many places after its rows a sequence needs for its drafts.
    is_fed : bool
        Whether an earlier stage feeds its slots, and its rows are forgotten in any case.

    Raises
    ------
    BatchError, CapacityError, LinkError
        As ``process``; or the batch is longer than ``n_batch``.
    """

    def __init__(
        self,
        runner: GraphRunner,
        batch: Batch,
        ahead: Mapping[int, int] | None = None,
        *,
        is_fed: bool = False,
    ) -> None:
        checked, self._ranges, _ = runner.admit(batch if is_fed else runner.bring(batch))
        if len(batch) > runner.n_batch:
            raise BatchError("a draft runs in one piece", wanted=runner.n_batch, got=len(batch))
        if is_fed:
            checked = msgspec.structs.replace(checked, slots={})
        self._runner, self._is_fed = runner, is_fed
        self._before = {seq: runner.lengths[seq] for seq in self._ranges}
        if runner.memory:
            more = ahead or {}
            runner.memory.reserve(
                {seq: (begin, end + more.get(seq, 0)) for seq, (begin, end) in self._ranges.items()}
            )
        self.plan = runner.plan
        self.stage = Stage(plan=runner.plan, memory=runner.memory, batch=checked)

    def settle(self, *, has_run: bool) -> None:
        """Hold the rows of the batch if they were run, and none after them."""
        runner = self._runner
        if runner.memory and (self._is_fed or not has_run):
            runner.memory.give_back(self._ranges)
        for seq, (_, end) in self._ranges.items():
            if not self._is_fed:
                if runner.memory and has_run:
                    runner.memory.rewind(seq, end)
                runner.lengths[seq] = end if has_run else self._before[seq]


def run_reserved(
    schedule: Schedule, reserved: Sequence[tuple[ReservedRows, int]]
) -> list[list[int]]:
    """Run a schedule; return the drafts of each text.

    ``reserved`` are rows, each with the first stage that runs them; those of the first one first.
    """
    tokens, ran = reserved[0][0].plan.run_schedule(schedule)
    for rows, stage in reserved:
        rows.settle(has_run=ran[stage])
    return schedule.by_text(tokens)
