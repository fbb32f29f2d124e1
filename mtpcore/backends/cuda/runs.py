"""A run that is planned: what its launches depend on, and what it brings; and what plans it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch, FusedSampling
from mtpcore.backends.cuda.choice import NO_DRAFTS, Choice, Choosing, DraftedParts
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.graphs import Graphs
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import Drafted
from mtpcore.backends.cuda.staging import Part, Staging
from mtpcore.backends.cuda.states import StateWalks
from mtpcore.backends.cuda.visible import Rows, Visible
from mtpcore.graph.program import Program
from mtpcore.memory.base import Memory

__all__ = ["DevicePlan", "PlannedRun", "Shape", "plan_choice", "plan_runs"]


class Shape(NamedTuple):
    """What the launches of a run depend on, besides the plan.

    ``tables`` number the arrays of page tables, of which there are others if memory differs.
    """

    n_rows: int
    n_outputs: int
    n_ranges: tuple[int, ...]
    tables: tuple[int, ...]
    n_parts: int
    choosing: Choosing | None


class PlannedRun(NamedTuple):
    """A run that is to come: its shape, and what it brings from the host, to be held."""

    shape: Shape
    parts: list[Part]


class DevicePlan(Protocol):
    """A plan on a device, as rounds use it: what it is made of, and its runs before they start.

    ``arrays`` are those of the program's values; ``walks`` say how states of recurrent layers go
    on, where there are any.
    """

    program: Program
    device: Device
    arrays: dict[int, DeviceArray]
    rows: Rows
    choice: Choice | None
    staging: Staging
    graphs: Graphs
    walks: StateWalks | None

    @property
    def seen(self) -> Collection[Visible]:
        """What rows see, once for each mask, window and group of memory."""

    def check(
        self, batch: CheckedBatch, memory: Memory | None, filled: Collection[str] = ()
    ) -> None:
        """Raise what a run raises of a batch; slots that are ``filled`` in may be missing."""

    def check_memory(self, batch: CheckedBatch, memory: Memory | None) -> None:
        """Check what is stored in memory, and what is seen of it."""

    def take(
        self,
        batch: CheckedBatch,
        memory: Memory | None,
        *,
        has_odds: bool = False,
        n_ranks: int = 0,
        drafted: DraftedParts = NO_DRAFTS,
    ) -> PlannedRun:
        """Return a run whose rows of floats, and page tables, are on the device already."""

    def launches(self, run: PlannedRun, drafted: Drafted | None = None) -> Iterator[Launch]:
        """Yield the launches of a run, after those that spread its parts."""

    def result(self, batch: CheckedBatch) -> dict[str, NDArray[Any]]:
        """Return what the last run made of a batch."""


def plan_choice(
    choice: Choice, wanted: FusedSampling, *, has_odds: bool, drafted: DraftedParts
) -> PlannedRun:
    """Return a run without a pass: a choice from the logits of the one before."""
    choosing, parts = choice.take(wanted, has_odds=has_odds, drafted=drafted)
    return PlannedRun(Shape(0, 0, (), (), len(parts), choosing), parts)


def plan_runs(takes: Sequence[tuple[DevicePlan, Callable[[], PlannedRun]]]) -> list[PlannedRun]:
    """Return runs that follow each other, each taken from its plan.

    A plan's arrays may grow with a run, so that those before it have to be planned again.
    """
    while True:
        runs = [take() for _, take in takes]
        choices = [(plan, run.shape.choosing) for (plan, _), run in zip(takes, runs, strict=True)]
        newest = {id(plan): choosing.rooms for plan, choosing in choices if choosing}
        if all(not choosing or choosing.rooms == newest[id(plan)] for plan, choosing in choices):
            return runs
