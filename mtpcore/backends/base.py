"""The protocols of backends: they lower a Program to a Plan, and store pages of the KV cache.

The protocols here are all that contexts know of a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.batch import (
    CHOSEN,
    F32,
    I32,
    NUMBERS,
    ChangeLogits,
    CheckedBatch,
    FusedSampling,
    Verification,
    numbers_of,
)
from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.graph.program import MemoryLayer, Program, StateLayer
from mtpcore.memory.base import PAGE, Memory, StateStore, Store

__all__ = [
    "CHOSEN",
    "F32",
    "I32",
    "PAGE",
    "ChangeLogits",
    "Backend",
    "FusedSampling",
    "Plan",
    "RowBuffer",
    "CheckedBatch",
    "NUMBERS",
    "numbers_of",
    "StateStore",
    "Store",
    "Verification",
    "WeightSource",
    "WeightTensor",
]


class WeightTensor(Protocol):
    """A tensor of a model file; shapes are in NumPy order, ``type`` is GGUF's number."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, outermost axis first."""

    @property
    def type(self) -> int:
        """The GGUF type number."""

    @property
    def offset(self) -> int | None:
        """Where its bytes begin in a file that is mapped as a whole; None where they are a copy."""

    def raw(self) -> NDArray[np.uint8]:
        """Return the mapped bytes, uint8[n_bytes]."""

    def array(self) -> F32:
        """Return the values, float32[shape]."""

    def native(self, native_types: Collection[int]) -> tuple[int, NDArray[np.uint8]]:
        """Return (type, uint8[*shape[:-1], row bytes]); F32 is among the ``native_types``."""

    def rows(self, begin: int, end: int) -> F32:
        """Return values of rows, float32[end - begin, shape[-1]]; all outer axes count rows."""

    def release(self, begin: int, end: int) -> None:
        """Let the system reclaim the pages of rows [begin, end)."""

    def stream(
        self,
        native_types: Collection[int],
        ranges: Iterable[tuple[int, int]],
        start: Callable[[int], Callable[[int, NDArray[np.uint8]], None]],
    ) -> None:
        """Hand over ranges of rows in one of the ``native_types``, F32 among them; release them.

        ``start`` gets the type and returns what takes the first row and uint8[rows, row bytes];
        it may be called once more, with another type.
        """


class WeightSource(Protocol):
    """A model as backends see it: its tensors, and a table of the weights that they packed.

    ``packed`` holds packed weights by (backend, layout, *tensors), so that contexts share them.
    """

    @property
    def repack(self) -> bool:
        """Whether weights may be copied into another layout; else they stay in the file."""

    @property
    def tensors(self) -> Mapping[str, WeightTensor]:
        """Tensors by name."""

    @property
    def packed(self) -> MutableMapping[Any, Any]:
        """Packed weights, owned by the model."""


class Plan(Protocol):
    """A program ready to run on a backend."""

    program: Program

    @property
    def progress(self) -> float:
        """Share of the running batch that is done, 0 .. 1; 0 if none runs or it is not measured."""

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of weights that are still to be packed after runs; other threads may ask."""

    @property
    def is_warm(self) -> bool:
        """Whether the last run took no longer than such runs will: it tried out nothing."""

    def prepare(self) -> None:
        """Pack at once all weights that are to be packed after runs."""

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, NDArray[Any]]:
        """Run all rows (at most ``n_batch``) and return new arrays by output name.

        ``logits`` is float32[n_outputs, n_vocab]; every other output float32[n, width]. Where the
        batch comes with ``fused_sampling``, the plan may add ``CHOSEN`` int32[n_outputs], -1 for
        those without a sampler, ``NO_TOKEN`` where no token was left to choose; ``logits`` are then
        of those without one alone. The places of all rows are reserved in ``memory`` beforehand.

        A plan on a device may return arrays of its own kind: with a shape, a length, slices of
        rows, ``__array__``, which copies to the host, and ``find_not_finite``, which returns the
        rows that hold NaN or infinity, there or in other arrays beside them.
        """

    def run_schedule(self, schedule: Schedule) -> Drafts:
        """Run a schedule whose first pass is this plan's; no output of it is kept.

        The caller takes back what stages write to memories.
        """


class RowBuffer(Protocol):
    """Rows of one width that wait between two graphs, where the reader's backend keeps them."""

    def __len__(self) -> int: ...

    def write(self, at: int, parts: Sequence[F32]) -> None:
        """Store rows from row ``at`` on; of several parts, float32[n, *], each fills its columns.

        Parts are outputs of a plan, of this backend or another one, or arrays of a caller.
        """

    def read(self, begin: int, end: int) -> F32:
        """Return float32[end - begin, width], a copy for the slots of a plan of this backend."""


class Backend(Protocol):
    """Lowers programs; one object for each kind of device."""

    name: str
    guarantee: str
    packs_after_runs: bool
    """Whether plans run before all weights are packed; else the first run packs what is left."""
    on_host: bool
    """Whether plans run on the host. Else they also choose tokens after texts, and a schedule may
    end with the verification of its drafts, if all its plans are of one backend."""

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> Store:
        """Make ``n_pages`` pages for these memory layers; ``dtype`` is one of ``KV_DTYPES``."""

    def state_store(
        self, layers: Sequence[StateLayer], n_slots: int, source: WeightSource
    ) -> StateStore:
        """Make ``n_slots`` slots for the states of these recurrent layers, and their logs.

        ``source`` has the weights that states decay by.
        """

    def row_buffer(self, n_rows: int, width: int) -> RowBuffer:
        """Make room for rows [n_rows, width] that wait for a plan; their values are undefined."""

    def plan(
        self,
        program: Program,
        source: WeightSource,
        *,
        n_batch: int,
        n_ctx: int,
        threads: int,
        stores: Sequence[Store],
        states: StateStore | None = None,
    ) -> Plan:
        """Lower a program for batches of at most ``n_batch`` rows and places below ``n_ctx``.

        Weights come from ``source``; the plan computes with ``threads`` threads. ``stores`` hold
        the pages of the program's memory layers, one for each of the ``groups`` of the memory that
        the plan will run with; ``states`` holds those of its recurrent layers.
        """
