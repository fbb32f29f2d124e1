"""The CPU backend and its plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._cpu import check_environment
from mtpcore._ext._draft import run
from mtpcore._ext._plan import BY_COLUMNS, BY_ROWS, IN_COPIES, Executor
from mtpcore.backends.base import (
    CHOSEN,
    F32,
    NUMBERS,
    CheckedBatch,
    Store,
    WeightSource,
    numbers_of,
)
from mtpcore.backends.cpu.arrangement import allocate, arrange, copy_bytes, share_matmuls
from mtpcore.backends.cpu.fetch_cache import load_once
from mtpcore.backends.cpu.lower import Lowering
from mtpcore.backends.cpu.sharing import nanoseconds, share_out
from mtpcore.backends.cpu.states import CpuStateStore
from mtpcore.backends.cpu.steps import ExecutorStep, Sharing
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.backends.draft import run_schedule as run_by_definition
from mtpcore.backends.host_rows import HostRows
from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.errors import BackendError, BatchError
from mtpcore.graph.program import OUTPUTS, MemoryLayer, Program, StateLayer
from mtpcore.memory.base import Memory, StateStore
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables

__all__ = ["CpuBackend", "CpuPlan"]


class Binding(NamedTuple):
    """What a plan is bound to while a schedule runs: its executor, memory and arrays.

    ``outputs`` are buffers, and arrays with room for the outputs of any stage; ``made`` and
    ``slots`` are the buffers of outputs and inputs by name, and ``rows`` room for rows of slots,
    where stages have fills. A row of the buffer ``logits`` has ``n_logits``.
    """

    executor: Executor
    pages: list[PageTables]
    states: NDArray[np.int32] | None
    outputs: list[tuple[int, F32]]
    made: dict[str, int]
    slots: dict[str, int]
    rows: dict[str, F32]
    logits: int
    n_logits: int


WORTH_SHARING = 60_000.0
"""Nanoseconds of work below which other threads bring little, and a core that the host takes away
at a barrier costs more than all of it."""

WORTH_PREFETCHING = 32 << 20
"""Bytes of weights below which caches hold them, which processors read well by themselves:
instructions that prefetch take up to a sixth of such a pass and bring nothing."""

WORTH_PACKING_LATER = 32 << 20
"""Bytes of weights that are packed before the first run, in no time."""

MOST_PACKING = 0.2
"""Seconds before a run in which weights are packed: a text begins slowly, and never stops longer.
With less, more runs are slow until all are packed, and a gigabyte is so later."""

_SHARING = {Sharing.COPIES: IN_COPIES, Sharing.COLUMNS: BY_COLUMNS}

_MULTIPLICATIONS_PER_NS = 100.0  # of one thread, roughly


class CpuBackend:
    """Implements ``mtpcore.backends.base.Backend`` with batch-invariant kernels.

    A row's bits depend on its own tokens, positions and memory only: not on the batch around it,
    the size of batches, the number of threads, page numbers or the instruction set.

    Raises
    ------
    BackendError
        The environment variable MTPCORE_ISA or MTPCORE_FETCH names what cannot be used here.
    """

    name = "cpu"
    guarantee = "exact"
    packs_after_runs = True
    on_host = True

    def __init__(self) -> None:
        check_environment()
        load_once()

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> CpuStore:
        """Make the pages for these memory layers; ``dtype`` is one of ``KV_DTYPES``."""
        return CpuStore(layers, n_pages, dtype)

    def state_store(
        self, layers: Sequence[StateLayer], n_slots: int, source: WeightSource
    ) -> CpuStateStore:
        """Make the slots for the states of these recurrent layers."""
        return CpuStateStore(layers, n_slots, CpuWeights(source))

    def row_buffer(self, n_rows: int, width: int) -> HostRows:
        """Make room for rows that wait for a plan, in the memory of the host."""
        return HostRows(n_rows, width)

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
    ) -> CpuPlan:
        """Lower a program for batches of at most ``n_batch`` rows.

        Raises
        ------
        BackendError
            An operation is unknown, or attention has no memory.
        CapacityError
            There is no memory for packed weights or buffers.
        """
        if n_batch < 1:
            raise BackendError("a batch has at least one row", where="n_batch", got=n_batch)
        cpu_stores = [store for store in stores if isinstance(store, CpuStore)]
        if len(cpu_stores) < len(stores):
            raise BackendError("memory of another backend", got=type(stores[0]).__name__)
        if not isinstance(states, CpuStateStore | None):
            raise BackendError("memory of another backend", got=type(states).__name__)
        weights = CpuWeights(source)
        weights.prepare(program, threads)
        plan = CpuPlan(Lowering(program, weights, cpu_stores, n_batch, n_ctx, states), threads)
        if plan.bytes_to_pack < WORTH_PACKING_LATER:
            plan.prepare()
        return plan


class CpuPlan:
    """A lowered program; implements ``mtpcore.backends.base.Plan``."""

    def __init__(self, lowered: Lowering, threads: int) -> None:
        self.program, self.threads = lowered.program, threads
        shared = share_out(lowered.steps, lowered.buffers, max(threads, 1))
        self.steps: list[ExecutorStep] = arrange(shared, lowered.buffers)
        offsets, arena_bytes = allocate(self.steps, lowered.buffers, threads)
        share_matmuls(self.steps)
        self._executor = Executor(
            n_threads=threads,
            n_batch=lowered.n_batch,
            capacities=[buffer.n_bytes for buffer in lowered.buffers],
            copies=[copy_bytes(buffer) for buffer in lowered.buffers],
            offsets=offsets,
            arena_bytes=arena_bytes,
            n_ops=len(self.steps),
            n_vocab=lowered.program.n_embeddings,
            stores=lowered.stores,
            states=lowered.states,
        )
        for step in self.steps:
            self._executor.add(
                step.kind,
                step.barrier,
                step.axis,
                step.inputs,
                step.outputs,
                sharing=_SHARING.get(step.sharing, BY_ROWS),
                n_units=step.n_units,
                matrices=step.matrices,
                weights=step.weights,
                numbers=step.numbers,
                axes=step.axes,
                ints=step.ints,
                f=step.f,
                memory=step.memory,
            )
        self._executor.finish(*_work(self.steps), WORTH_SHARING, WORTH_PREFETCHING, MOST_PACKING)
        # Arrays of stages, kept from round to round: room for how many rows and outputs.
        self._room = 0, 0
        self._stage_outputs: list[tuple[int, F32]] = []
        self._stage_slots: dict[str, F32] = {}
        shapes = {name: self.program.shape(name) for name in lowered.outputs}
        self._outputs = [
            (name, buffer, shapes[name][0] == OUTPUTS, tuple(int(n) for n in shapes[name][1:]))
            for name, buffer in lowered.outputs.items()
        ]
        values = self.program.values
        self._ids = {name for name, i in self.program.outputs.items() if values[i].dtype == "i32"}
        self._slots = {
            name: (buffer, int(self.program.values[self.program.inputs[name]].shape[1]))
            for name, buffer in lowered.inputs.items()
        }
        self._made = dict(lowered.outputs)
        self._slot_buffers = {name: buffer for name, (buffer, _) in self._slots.items()}
        self._n_logits = int(shapes["logits"][1]) if "logits" in shapes else 0
        self._can_choose = "logits" in shapes and self._executor.can_choose(self._made["logits"])

    @property
    def bytes_to_pack(self) -> int:
        """Bytes, as packed, of the rows that are still to be packed after runs."""
        return self._executor.bytes_to_pack

    @property
    def is_warm(self) -> bool:
        """Whether the last run packed no weights and did not compare ways to prefetch them."""
        return self._executor.is_warm

    def prepare(self) -> None:
        """Pack all weights that are not packed yet."""
        self._executor.pack()

    @property
    def progress(self) -> float:
        """Share of the running batch that is done, 0 .. 1; 0 where none runs or it is short."""
        return self._executor.progress

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, NDArray[Any]]:
        """Run all rows and return new arrays by output name.

        They are the only memory that a run allocates, so arrays that callers hold do not change.

        Raises
        ------
        BatchError, SamplingError
            The batch or its fused sampling does not fit the plan; nothing was run.
        BackendError
            The memory is not paged, or another thread is running this plan.
        """
        n, n_outputs = len(batch.tokens), len(batch.outputs)
        # While logits are made no sum over all of them is known, as other choices need.
        fused_sampling = batch.fused_sampling if self._can_choose else None
        if fused_sampling is not None and fused_sampling.texts:
            fused_sampling = None
        external = self._inputs(batch)
        arrays: dict[str, NDArray[Any]] = {}
        for name, buffer, is_output, shape in self._outputs:
            n_rows = n_outputs if is_output else n
            if fused_sampling is not None and name == "logits":
                n_rows = fused_sampling.samplers.count(None)
            arrays[name] = array = np.empty((n_rows, *shape), np.float32)
            external.append((buffer, array))
        pages = self._pages(memory)
        logits = -1 if fused_sampling is None else self._made["logits"]
        chosen = self._executor.run(
            batch, pages, external, logits, arrays.get("logits"), _states_of(memory)
        )
        for name in self._ids:
            arrays[name] = arrays[name].view(np.int32)
        return arrays if chosen is None else {**arrays, CHOSEN: chosen}

    def run_schedule(self, schedule: Schedule) -> Drafts:
        """Run a schedule without the GIL.

        One with plans of another backend, or for other threads, or with processors, runs stage by
        stage, and so does one that gives a plan two memories, or embedding rows in a later stage.

        Raises
        ------
        BatchError, SamplingError
            It does not fit itself or the plans; nothing was run.
        """
        first, stages, memories = schedule.passes[0], schedule.round.stages, dict[object, Any]()
        is_alone = not schedule.takes_host and len(stages) > 0
        for one in schedule.passes:
            is_alone &= self._runs_with(one.plan)
            is_alone &= memories.setdefault(one.plan, one.memory) is one.memory
            is_alone &= one.batch.embeddings is None or one is first
        if first.batch.embeddings is not None:
            is_alone &= all(stage.graph or stage.rows != "given" for stage in stages[1:])
        return Drafts(*run(schedule)) if is_alone else run_by_definition(schedule)

    def _runs_with(self, plan: object) -> TypeGuard[CpuPlan]:
        """Whether stages of a plan can follow this one's without returning in between."""
        return isinstance(plan, CpuPlan) and plan.threads == self.threads

    def bind(self, memory: Memory | None, n: int, n_outputs: int, has_fills: bool) -> Binding:
        """Return what this plan is bound to while stages of it run.

        Parameters
        ----------
        memory : Memory, optional
        n, n_outputs : int
            Rows and outputs that a stage has at most.
        has_fills : bool
            Whether rows of slots are written.
        """
        most, most_outputs = self._room
        if n > most or n_outputs > most_outputs:
            most, most_outputs = max(n, most), max(n_outputs, most_outputs)
            self._stage_outputs = [
                (buffer, np.empty((most_outputs if is_output else most, *shape), np.float32))
                for _, buffer, is_output, shape in self._outputs
            ]
            self._stage_slots = {
                slot: np.empty((most, width), np.float32)
                for slot, width in self.program.slots().items()
            }
            self._room = most, most_outputs  # last: a signal may end this anywhere
        return Binding(
            executor=self._executor,
            pages=self._pages(memory),
            states=_states_of(memory),
            outputs=self._stage_outputs,
            made=self._made,
            slots=self._slot_buffers,
            rows=self._stage_slots if has_fills else {},
            logits=self._made.get("logits", -1),
            n_logits=self._n_logits,
        )

    def _pages(self, memory: Memory | None) -> list[PageTables]:
        if memory is None:
            return []
        if not isinstance(memory, (PagedKV, GroupedKV)):
            raise BackendError("attention needs paged memory", got=type(memory).__name__)
        return memory.page_tables

    def _inputs(self, batch: CheckedBatch) -> list[tuple[int, Any]]:
        """Return the arrays of slots, embeddings and numbers by buffer, as values of 4 bytes."""
        if batch.embeddings is not None and "embeddings" not in self.program.inputs:
            raise BatchError("the graph takes no embedding rows", where=self.program.name)
        inputs: list[tuple[int, Any]] = []
        for name, (buffer, width) in self._slots.items():
            if name in NUMBERS:
                given = numbers_of(batch, self.program, name)
                inputs.append((buffer, given.view(np.float32)))
                continue
            array = batch.embeddings if name == "embeddings" else batch.slots.get(name)
            if array is None and name == "embeddings":
                continue
            wanted = (len(batch.tokens), width)
            if array is None or array.shape != wanted or array.dtype != np.float32:
                raise BatchError(
                    "slot rows do not fit",
                    where=f"slot {name!r}",
                    wanted=f"float32{list(wanted)}",
                    got=None if array is None else f"{array.dtype}{list(array.shape)}",
                )
            inputs.append((buffer, array))
        return inputs


def _states_of(memory: Memory | None) -> NDArray[np.int32] | None:
    """Return what memory has decided for the states of its sequences, if it has any."""
    if isinstance(memory, GroupedKV) and memory.recurrent:
        return memory.recurrent.table
    return None


def _work(steps: Sequence[ExecutorStep]) -> tuple[float, float]:
    """Estimate nanoseconds of one thread: for any batch, and for each row more."""
    fixed = by_row = 0.0
    for step in steps:
        if step.kind == "matmul":
            n_outputs, n_inputs = step.matrices[0].shape
            fixed += nanoseconds(step)
            by_row += n_outputs * n_inputs / _MULTIPLICATIONS_PER_NS
        elif step.kind == "expert_matmul":
            by_row += nanoseconds(step)
    return fixed, by_row
