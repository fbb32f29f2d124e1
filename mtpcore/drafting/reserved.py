"""Running a round: places are reserved, and what drafts wrote is taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from mtpcore.backends.base import Plan
from mtpcore.backends.schedule import Drafts, Pass, Schedule
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["ReservedRows", "run_reserved"]


class ReservedRows:
    """A pass of a round whose batch was checked, and whose places are reserved for it.

    Parameters
    ----------
    runner : GraphRunner
    batch : Batch
    is_fed : bool
        Whether an earlier stage feeds its slots.
    is_kept : bool
        Whether its rows are held if they were run.

    Raises
    ------
    BatchError, LinkError
        As ``process``; or the batch is longer than ``n_batch``.
    """

    def __init__(
        self, runner: GraphRunner, batch: Batch, *, is_fed: bool = False, is_kept: bool = True
    ) -> None:
        checked, self._ranges, _ = runner.admit(batch if is_fed else runner.bring(batch))
        if len(batch) > runner.n_batch:
            raise BatchError("a draft runs in one piece", wanted=runner.n_batch, got=len(batch))
        if is_fed:
            checked = msgspec.structs.replace(checked, slots={})
        self._runner, self._is_kept = runner, is_kept
        self._before = {seq: runner.lengths[seq] for seq in self._ranges}
        self.given = Pass(plan=runner.plan, memory=runner.memory, batch=checked)

    def reserve(self, ahead: Mapping[int, tuple[int, int]]) -> None:
        """Reserve the places of its rows, and those that stages write after them.

        ``ahead``: how far ahead of an output the first and the last of these are.

        Raises
        ------
        BatchError, CapacityError
            They write elsewhere, or there is no room; nothing changed.
        """
        if not self._runner.memory:
            return
        ranges, batch = dict(self._ranges), self.given.batch
        for output, (first, last) in ahead.items():
            if not 0 <= output < len(batch.outputs):
                raise BatchError("no such output", wanted=f"below {len(batch.outputs)}", got=output)
            row = batch.outputs[output]
            seq, place = int(batch.seq[row]), int(batch.place[row])
            begin, end = self._ranges[seq]
            free = end if self._is_kept else begin  # before it rows are kept
            if place + first < free:
                raise BatchError(
                    "a round writes after the rows that it begins with",
                    where=f"sequence {seq}",
                    wanted=f"places from {free} on",
                    got=place + first,
                )
            ranges[seq] = begin, max(ranges[seq][1], place + last + 1)
        self._runner.memory.reserve(ranges)

    def settle(self, *, has_run: bool) -> None:
        """Hold the rows of the batch if they were run, and none after them."""
        runner = self._runner
        if runner.memory and not (self._is_kept and has_run):
            runner.memory.give_back(self._ranges)
        for seq, (_, end) in self._ranges.items():
            if self._is_kept:
                if runner.memory and has_run:
                    runner.memory.rewind(seq, end)
                runner.lengths[seq] = end if has_run else self._before[seq]


def run_reserved(schedule: Schedule, reserved: Sequence[ReservedRows]) -> Drafts:
    """Run a schedule with the places that it needs, and take back what drafts wrote."""
    ahead, stages = schedule.round.ahead, schedule.round.stages
    for number, rows in enumerate(reserved):
        rows.reserve(ahead.get(number, {}))
    drafted = cast(Plan, schedule.passes[0].plan).run_schedule(schedule)
    for number, rows in enumerate(reserved):
        ran = zip(stages, drafted.ran, strict=True)
        rows.settle(has_run=any(has_run for stage, has_run in ran if stage.graph == number))
    return drafted
