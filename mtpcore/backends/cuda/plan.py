"""A program as launches over arrays that stay where they are.

============== ============================ ==================================================
when           method                       what happens
============== ============================ ==================================================
once           ``CudaPlan(...)``            shared experts join the others' stacks (``stacks``),
                                            nodes become groups (``fusion``), values get arrays
                                            (``buffers``), groups get launchers; kernels are
                                            compiled
each batch     ``check``                    all that may be wrong with it is raised
               ``take``                     rows and page tables go to the device; what else
                                            changes from run to run are parts of one block
               ``staging.send``             the block goes to the device
               ``launches``                 the block is spread to where its parts belong, then
                                            each group launches for as many rows as there are
               ``result``                   outputs are copied to arrays of their own
again          ``graphs.start``             launches that come a second time are recorded, and are
                                            one call from then on
============== ============================ ==================================================

An example: a token of a dense layer, quantised, is five launches (docs/cuda.md). ``take`` has its
token, position, place and page table as parts; the first kernel of ``launches`` spreads them, and
the other arguments never change, so that a recorded graph serves every token of a range of
contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.base import (
    CHOSEN,
    F32,
    NUMBERS,
    CheckedBatch,
    WeightSource,
    numbers_of,
)
from mtpcore.backends.cuda.buffers import columns_of_others, share_buffers
from mtpcore.backends.cuda.checks import check_batch, check_places, check_sequences
from mtpcore.backends.cuda.choice import NO_DRAFTS, Choice, DraftedParts
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.drafts import DraftLoop
from mtpcore.backends.cuda.fusion import Group, fuse
from mtpcore.backends.cuda.graphs import Graphs
from mtpcore.backends.cuda.launch import LAUNCHERS
from mtpcore.backends.cuda.launch.attention import Heads, Joined
from mtpcore.backends.cuda.launch.blocks import LAUNCHERS as OVER_BLOCKS
from mtpcore.backends.cuda.launch.fused import FusedStep, fused
from mtpcore.backends.cuda.launch.passes import KERNELS as BETWEEN
from mtpcore.backends.cuda.launch.passes import spread
from mtpcore.backends.cuda.launch.recurrent import LAUNCHERS as RECURRENT
from mtpcore.backends.cuda.launch.recurrent import StepStates
from mtpcore.backends.cuda.launch.step import Launch, Step, start
from mtpcore.backends.cuda.launch.tokens import KERNELS as CHOOSING
from mtpcore.backends.cuda.launch.tokens import Drafted
from mtpcore.backends.cuda.layout import FORMATS
from mtpcore.backends.cuda.outputs import DeviceRows
from mtpcore.backends.cuda.runs import PlannedRun, Shape
from mtpcore.backends.cuda.sequences import SequenceRows
from mtpcore.backends.cuda.stacks import stack_shared_experts
from mtpcore.backends.cuda.staging import Part, Staging
from mtpcore.backends.cuda.states import CudaStateStore
from mtpcore.backends.cuda.store import CudaStore
from mtpcore.backends.cuda.visible import Attended, Rows, Tables, Visible
from mtpcore.backends.cuda.weights import CudaWeights
from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.errors import BackendError
from mtpcore.graph.program import OUTPUTS, Node, Program
from mtpcore.memory.base import Memory
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables
from mtpcore.memory.recurrent import RecurrentMemory, StatePass

__all__ = ["CudaPlan"]

_ATTENDING = {"attention": True, "cross_attention": True, "remember": False}
"""Operations with pages of keys and values, and whether they read them."""


class CudaPlan:
    """A program with its weights on a device; implements ``mtpcore.backends.base.Plan``.

    Raises
    ------
    BackendError
        An operation has no kernel, or attention no memory; names the node.
    """

    progress = 0.0  # not measured

    def __init__(
        self,
        device: Device,
        program: Program,
        source: WeightSource,
        *,
        n_batch: int,
        n_ctx: int,
        threads: int,
        stores: Sequence[CudaStore],
        states: CudaStateStore | None = None,
    ) -> None:
        self.device, self._stores = device, stores
        self._n_batch, self._n_ctx, self._states = n_batch, n_ctx, states
        self.walks = states.walks(n_batch) if states else None
        self._scratch: dict[tuple[Any, ...], DeviceArray] = {}
        self._cos_sin: dict[tuple[Any, ...], tuple[Node, DeviceArray]] = {}
        self._constants: dict[tuple[str, bytes], DeviceArray] = {}
        self.rows = Rows(device, n_batch)
        self._tables = [Tables(device) for _ in stores]
        self._sequences: SequenceRows | None = None  # where rows of a sequence are blocks
        self._remembering: set[int] = set()  # groups in which rows are stored
        self._visible: dict[tuple[int, str, int], Visible] = {}  # by group, mask and window
        self._weights, self.is_warm = CudaWeights(device, source, threads), True
        self.program = program = stack_shared_experts(program, self._weights.are_alike)
        groups = fuse(program, self._block_of)
        self.arrays = self._make_arrays(groups)
        self._steps = [self._planned(group) for group in groups]
        self.staging, self.graphs = Staging(device), Graphs(device)
        self._loop = DraftLoop(self)
        logits = program.outputs.get("logits")
        self.choice = None if logits is None else Choice(device, self.arrays[logits])
        for launcher, step, _ in self._steps:
            for n_rows in (1, n_batch):
                for launch in launcher(step, n_rows):
                    device.load(launch.kernel)
        for kernel in (*BETWEEN, *(CHOOSING if self.choice else ())):
            device.load(kernel)

    @property
    def seen(self) -> Collection[Visible]:
        """What rows see, once for each mask, window and group of memory."""
        return self._visible.values()

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of matrices that are still to be sent to the device before a run."""
        return self._weights.bytes_left

    def prepare(self) -> None:
        """Send all matrices to the device that are not there yet."""
        self._weights.send()

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, Any]:
        """Run all rows and return new ``DeviceRows`` by output name.

        Raises
        ------
        BatchError, SamplingError
            The batch or its fused sampling does not fit the plan, or the memory; nothing was run.
        BackendError
            The memory is not paged, or another plan's.
        CapacityError
            Rows were not reserved in the memory of recurrent layers, or follow none that it has.
        """
        self.check(batch, memory)
        run = self.take(batch, memory)
        (table,) = self.staging.send([run.parts])
        launches = chain([spread(self.staging.array, table, len(run.parts))], self.launches(run))
        key = (run.shape, self.staging.array.shape)
        self.graphs.start(key, lambda is_recorded: start(self.device, launches))
        return self.result(batch)

    def result(self, batch: CheckedBatch) -> dict[str, Any]:
        """Return what the last run made of a batch, in arrays that no later run writes over."""
        wanted, made = batch.fused_sampling, dict[str, Any]()
        for name, i in self.program.outputs.items():
            if wanted is None or name != "logits":
                is_of_outputs = self.program.shape(name)[0] == OUTPUTS
                n = len(batch.outputs if is_of_outputs else batch.tokens)
                made[name] = self._output(self.arrays[i], n)
        if self.choice and wanted is not None:
            made[CHOSEN], made["logits"] = self.choice.result(wanted)
        return made

    def check(
        self, batch: CheckedBatch, memory: Memory | None, filled: Collection[str] = ()
    ) -> None:
        """Raise what ``run`` raises of a batch; slots that are ``filled`` in may be missing."""
        check_batch(batch, self.program, self._n_batch, filled)
        self.check_memory(batch, memory)
        if self.choice and batch.fused_sampling is not None:
            self.choice.check(batch.fused_sampling, len(batch.outputs))

    def check_memory(self, batch: CheckedBatch, memory: Memory | None) -> None:
        """Check what is stored in memory, and what is seen of it."""
        for number, group in enumerate(self._groups(memory)):
            self._check_group(batch, number, group.pages)

    def take(
        self,
        batch: CheckedBatch,
        memory: Memory | None,
        *,
        has_odds: bool = False,
        n_ranks: int = 0,
        drafted: DraftedParts = NO_DRAFTS,
    ) -> PlannedRun:
        """Return a run whose rows of floats, and page tables, are on the device already.

        Slots that the batch lacks are filled in on the device. ``has_odds`` asks how probable the
        chosen tokens are, ``n_ranks`` for so many ranked ones in their place; ``drafted`` are parts
        of the list that ``launches`` is given.

        Raises
        ------
        CapacityError
            As ``run``; nothing changed.
        """
        passes: list[StatePass] = []
        if self._states:
            passes = _recurrent(memory).passes(batch.seq, batch.place, batch.parent)
        self.is_warm = not self._weights.send()
        groups, parts = self._groups(memory), list[Part]()
        for name, i in self.program.inputs.items():
            given, array = self._given(name, batch), self.arrays[i]
            if isinstance(given, DeviceRows) and given.device is self.device:
                size = given.row_bytes
                self.device.copy(given.array, given.begin * size, array, 0, len(given) * size)
            elif given is not None and given.dtype == np.int32:
                parts.append(Part(given, array))
            elif given is not None:
                self.device.upload(np.asarray(given), array)
        parts += self.rows.parts(batch)
        for tables, group in zip(self._tables, groups, strict=True):
            tables.take(group.pages)
        for (number, _, _), visible in self._visible.items():
            parts.append(visible.part(batch, groups[number].pages))
        if self._sequences:
            parts += self._sequences.parts(batch.seq)
        if self.walks and passes:
            parts.append(self.walks.part(passes))
        choosing = None
        if self.choice and batch.fused_sampling is not None:
            choosing, more = self.choice.take(
                batch.fused_sampling, has_odds=has_odds, n_ranks=n_ranks, drafted=drafted
            )
            parts += more
        n_ranges = tuple(visible.n_ranges for visible in self._visible.values())
        tables_of = tuple(tables.n_made for tables in self._tables)
        n_rows, n_outputs = len(batch.tokens), len(batch.outputs)
        shape = Shape(n_rows, n_outputs, n_ranges, tables_of, len(parts), choosing)
        return PlannedRun(shape, parts)

    def launches(self, run: PlannedRun, drafted: Drafted | None = None) -> Iterator[Launch]:
        """Yield the launches of a run, after those that spread its parts."""
        shape = run.shape
        for visible, n_ranges in zip(self._visible.values(), shape.n_ranges, strict=True):
            visible.n_ranges = n_ranges
        for launcher, step, is_of_outputs in self._steps:
            n = shape.n_outputs if is_of_outputs else shape.n_rows
            if n:
                yield from launcher(step, n)
        if self.choice and shape.choosing:
            yield from self.choice.launches(shape.choosing, drafted)

    def run_schedule(self, schedule: Schedule) -> Drafts:
        """Run a schedule, in one launch unless that takes the host."""
        return self._loop.run(schedule)

    def _block_of(self, node: Node) -> int:
        """Return how many activations share a scale where a node multiplies, or 0."""
        layout = FORMATS.get(self._weights.load(node, 0).type)
        return layout.block if layout else 0

    def _make_arrays(self, groups: Sequence[Group]) -> dict[int, DeviceArray]:
        """Return the array of each value that is made here."""
        nodes = [group.nodes for group in groups]
        columns = columns_of_others(self.program, self._block_of)
        buffer_of, sizes = share_buffers(self.program, self._n_batch, nodes, columns)
        buffers = [self.device.empty((n_bytes // 4,), np.float32) for n_bytes in sizes]
        arrays = {}
        for value in self.program.values:
            if value.id in buffer_of:
                shape = (self._n_batch, *(int(width) for width in value.shape[1:]))
                dtype = np.dtype(np.int32 if value.dtype == "i32" else np.float32)
                memory, place = buffers[buffer_of[value.id]].memory, columns.get(value.id)
                lies = (place.begin, place.pitch) if place else (0, 0)
                arrays[value.id] = DeviceArray(shape, dtype, memory, *lies)
        return arrays

    def _planned(
        self, group: Group
    ) -> tuple[Callable[[Any, int], list[Launch]], Step | FusedStep, bool]:
        """Return what launches a group, with its arrays, and whether its rows are outputs."""
        first = group.maker or group.products[0]
        is_of_outputs = self._makes_outputs(first)
        if len(group.nodes) == 1 and not group.n_before and not group.is_stored:
            return LAUNCHERS[first.op], self._step(first), is_of_outputs
        return fused, self._fused_step(group), is_of_outputs

    def _fused_step(self, group: Group, room: str = "codes") -> FusedStep:
        """Return a group with its arrays; no codes are made where others are still to be read.

        Of several products one may be normalised before the others have read theirs, so that those
        of groups of which each runs the maker of the next take turns.
        """
        if group.n_before:
            room = f"codes of a row {group.n_before % 2}"
        followers = (self._fused_step(one, f"{room} {i}") for i, one in enumerate(group.followers))
        return FusedStep(
            op=group.maker.op if group.maker else "",
            maker=self._step(group.maker or group.products[0]),
            ropes=tuple(map(self._step, group.ropes)),
            norm=self._step(group.norm) if group.norm else None,
            route=self._step(group.route) if group.route else None,
            products=tuple(map(self._step, group.products)),
            totals=tuple(map(self._step, group.totals)),
            followers=tuple(followers),
            next=self._fused_step(group.next) if group.next else None,
            n_before=group.n_before,
            heads=self._heads(group, group.stores_for) if group.stores_for else None,
            is_stored=group.is_stored,
            is_kept=group.is_kept,
            is_sorted=group.is_sorted,
            source=None if group.source is None else self.arrays[group.source],
            block=self._block_of(group.products[0]) if group.products else 0,
            room=room,
        )

    def _heads(self, group: Group, attention: Node) -> Heads | Joined:
        """Return what becomes of heads; the first layer makes cosines and sines for all."""
        of_q, of_k = group.ropes
        attrs = {name: str(value) for name, value in of_q.attrs.items()}
        key = (of_q.inputs[1], of_q.weights, *sorted(attrs.items()))
        if key not in self._cos_sin:
            shape = (self._n_batch, 2 * len(of_q.attrs["frequencies"]))
            self._cos_sin[key] = attention, self.device.empty(shape, np.float32)
        first, cos_sin = self._cos_sin[key]
        given = (
            self._step(attention),
            (self._step(of_q), self._step(of_k)),
            tuple(self.arrays[node.outputs[0]] for node in group.heads),
            cos_sin,
            first is attention,
        )
        return Joined(*given, self._step(group.norm)) if group.norm else Heads(*given)

    def _step(self, node: Node) -> Step:
        weights = tuple(
            None if weight is None else self._weights.load(node, i)
            for i, weight in enumerate(node.weights)
        )
        return Step(
            tuple(self.arrays[i] for i in node.inputs),
            weights,
            tuple(self.arrays[i] for i in node.outputs),
            node.attrs,
            self._temporary,
            self._constant,
            self.rows.outputs if self._makes_outputs(node) else None,
            self._memory_of(node),
        )

    def _memory_of(self, node: Node) -> Attended | StepStates | SequenceRows | None:
        """Return what a node reaches of its rows' sequences, and of what is kept of them."""
        if node.op in _ATTENDING:
            return self._attended(node)
        if node.op in OVER_BLOCKS:
            self._sequences = self._sequences or SequenceRows(self.device, self._n_batch)
            return self._sequences
        if node.op not in RECURRENT:
            return None
        if self._states is None or self.walks is None:
            raise BackendError("recurrent layers need memory", where=node.name)
        return self._states.states_of(node, self.walks)

    def _makes_outputs(self, node: Node) -> bool:
        """Whether a node's rows are those whose outputs are wanted."""
        return any(self.program.values[i].shape[0] == OUTPUTS for i in node.outputs)

    def _attended(self, node: Node) -> Attended:
        number = node.attrs["layer"]
        found = [i for i, store in enumerate(self._stores) if number in store.layers]
        if not found:
            raise BackendError("layer has no memory", where=node.name, got=f"layer {number}")
        group, visible = found[0], None
        if len(node.inputs) > 1:
            self._remembering.add(group)
        if _ATTENDING[node.op]:
            mask, window = node.attrs.get("mask", "block"), node.attrs.get("window", 0)
            visible = self._visible.setdefault(
                (group, mask, window),
                Visible(
                    self.device,
                    n_batch=self._n_batch,
                    n_ctx=self._n_ctx,
                    mask=mask,
                    window=window,
                ),
            )
        layer = self._stores[group].layer(number)
        return Attended(layer, self.rows, self._tables[group], visible)

    def _output(self, array: DeviceArray, n_rows: int) -> DeviceRows:
        """Return a copy of what a run made, which later runs write over."""
        copied = self.device.empty((n_rows, *array.shape[1:]), array.dtype)
        rows = DeviceRows(self.device, copied, 0, n_rows)
        self.device.copy(array, 0, copied, 0, n_rows * rows.row_bytes)
        return rows

    def _groups(self, memory: Memory | None) -> Sequence[PagedKV]:
        """Return the groups of memory, one for each store."""
        if not self._stores:
            return ()
        if not isinstance(memory, (PagedKV, GroupedKV)):
            raise BackendError("attention needs paged memory", got=type(memory).__name__)
        if len(memory.groups) != len(self._stores):
            raise BackendError(
                "memory of another plan",
                wanted=f"{len(self._stores)} groups",
                got=len(memory.groups),
            )
        return memory.groups

    def _check_group(self, batch: CheckedBatch, number: int, pages: PageTables) -> None:
        """Check what is stored in a group of memory, and what is seen of it."""
        n_pages = self._stores[number].n_pages
        if number in self._remembering:
            check_places(batch, pages, n_pages)
        if any(group == number for group, _, _ in self._visible):
            check_sequences(batch, pages, n_pages, number not in self._remembering)

    def _given(self, name: str, batch: CheckedBatch) -> F32 | NDArray[np.int32] | None:
        """Return the rows of an input; None where the batch has none."""
        if name == "tokens":
            return batch.tokens
        if name == "positions":
            return batch.positions
        if name in NUMBERS:
            return numbers_of(batch, self.program, name)
        if name == "embeddings":
            return batch.embeddings
        return batch.slots.get(name)

    def _temporary(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        key = (name, shape, np.dtype(dtype))
        if key not in self._scratch:
            self._scratch[key] = self.device.empty(shape, dtype)
        return self._scratch[key]

    def _constant(self, array: NDArray[Any]) -> DeviceArray:
        key = (array.dtype.str, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.device.upload(array)
        return self._constants[key]


def _recurrent(memory: Memory | None) -> RecurrentMemory:
    """Return what memory keeps of recurrent layers."""
    if isinstance(memory, GroupedKV) and memory.recurrent:
        return memory.recurrent
    raise BackendError("recurrent layers need memory", got=type(memory).__name__)
