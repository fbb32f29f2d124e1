"""A run that is planned: what its launches depend on, and what it brings; and what plans it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
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

__all__ = ["PlannedRun", "DevicePlan", "Shape"]


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

    def check(self, batch: CheckedBatch, memory: Memory | None) -> None:
        """Raise what a run raises of a batch."""

    def check_memory(self, batch: CheckedBatch, memory: Memory | None) -> None:
        """Check what is stored in memory, and what is seen of it."""

    def take(
        self,
        batch: CheckedBatch,
        memory: Memory | None,
        *,
        has_odds: bool = False,
        drafted: DraftedParts = NO_DRAFTS,
    ) -> PlannedRun:
        """Return a run whose rows of floats, and page tables, are on the device already."""

    def launches(self, run: PlannedRun, drafted: Drafted | None = None) -> Iterator[Launch]:
        """Yield the launches of a run, behind those that spread its parts."""

    def result(self, batch: CheckedBatch) -> dict[str, NDArray[Any]]:
        """Return what the last run made of a batch."""
