"""Running a round: places are reserved, and what drafts wrote is taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

from mtpcore.backends.base import Plan
from mtpcore.backends.schedule import Drafts, Schedule, Stage
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["ReservedRows", "run_reserved"]


class ReservedRows:
    """A batch that was checked; its places, and those of drafts after it, are reserved for a round.

    Parameters
    ----------
    runner : GraphRunner
    batch : Batch
    is_fed : bool
        Whether an earlier stage feeds its slots, and its rows are forgotten in any case.

    Raises
    ------
    BatchError, LinkError
        As ``process``; or the batch is longer than ``n_batch``.
    """

    def __init__(self, runner: GraphRunner, batch: Batch, *, is_fed: bool = False) -> None:
        checked, self._ranges, _ = runner.admit(batch if is_fed else runner.bring(batch))
        if len(batch) > runner.n_batch:
            raise BatchError("a draft runs in one piece", wanted=runner.n_batch, got=len(batch))
        if is_fed:
            checked = msgspec.structs.replace(checked, slots={})
        self._runner, self._is_fed = runner, is_fed
        self._before = {seq: runner.lengths[seq] for seq in self._ranges}
        self.stage = Stage(plan=runner.plan, memory=runner.memory, batch=checked)

    def reserve(self, stages: Iterable[Stage]) -> None:
        """Reserve the places of its rows, and those that these stages write after them.

        Raises
        ------
        BatchError, CapacityError
            They write elsewhere, or there is no room; nothing changed.
        """
        if not self._runner.memory:
            return
        ranges = dict(self._ranges)
        for stage in stages:
            batch = stage.batch
            if stage.plan is not self.stage.plan or batch is self.stage.batch:
                continue
            for seq, place in zip(batch.seq.tolist(), batch.place.tolist(), strict=True):
                begin, end = self._ranges.get(seq, (0, -1))
                first = begin if self._is_fed else end  # before it rows are kept
                if end < 0 or place < first:
                    raise BatchError(
                        "a round writes after the rows that it begins with",
                        where=f"sequence {seq}",
                        wanted=f"places from {first} on" if end >= 0 else [*self._ranges],
                        got=place,
                    )
                ranges[seq] = begin, max(ranges[seq][1], place + 1)
        self._runner.memory.reserve(ranges)

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


def run_reserved(schedule: Schedule, reserved: Sequence[ReservedRows]) -> Drafts:
    """Run a schedule with the places that it needs, and take back what drafts wrote."""
    for rows in reserved:
        rows.reserve(schedule.stages)
    drafted = cast(Plan, schedule.stages[0].plan).run_schedule(schedule)
    for rows in reserved:
        stages = zip(schedule.stages, drafted.ran, strict=True)
        rows.settle(has_run=any(ran for stage, ran in stages if stage.plan is rows.stage.plan))
    return drafted
