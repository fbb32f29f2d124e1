"""The reference backend: programs run node by node and row by row, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mtpcore.backends.base import (
    F32,
    NUMBERS,
    CheckedBatch,
    Store,
    WeightSource,
    numbers_of,
)
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.host_rows import HostRows
from mtpcore.backends.reference import arithmetic, formulas
from mtpcore.backends.reference.activation import BLOCK_OF_TYPE
from mtpcore.backends.reference.attention import attention, cross_attention, remember
from mtpcore.backends.reference.matrix import QuantisedMatrix
from mtpcore.backends.reference.recurrent import causal_conv, delta_rule
from mtpcore.backends.reference.run import (
    Array,
    Operation,
    Run,
    by_block,
    by_row,
    with_positions,
)
from mtpcore.backends.reference.states import ReferenceStateStore
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.errors import BackendError
from mtpcore.graph.program import OUTPUTS, MemoryLayer, Node, Program, StateLayer, Weight
from mtpcore.memory.base import Memory, StateStore

__all__ = ["ReferenceBackend", "ReferencePlan"]

_MULTIPLIED = ("matmul", "matmul_by_position", "expert_matmul", "head_matmul", "rank_matmul")


def _outputs(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Keep the rows that were asked for."""
    return (inputs[0][run.batch.outputs],)


def _given_ids(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Take the ids that are in range, and one beyond it for all others."""
    given, n = inputs[0], attrs["n"]
    if attrs["rows"] == OUTPUTS:
        given = given[run.batch.outputs]
    return (np.where((given >= 0) & (given < n), given, np.int32(n)),)


class ReferenceBackend:
    """The definition; implements ``mtpcore.backends.base.Backend``.

    Parameters
    ----------
    dtype : {"f32", "f64"}
        Type of every intermediate value, and of the outputs.
    quantise_activations : bool
        Round activations to int8 blocks wherever they meet a matrix of a type whose kernels do so.
        An activation near the middle of two codes makes much of the last bit of an earlier sum;
        so with ``f32`` all else is computed as the kernels do it, too (``arithmetic``), and the
        results are the bits of the ``cpu`` backend. With ``f64`` the formulas stay what they are.
    """

    name = "reference"
    guarantee = "exact"
    packs_after_runs = True
    on_host = True

    operations: ClassVar[dict[str, Operation]] = {
        "embed": by_row(formulas.embed),
        "embed_by_position": by_row(formulas.embed_by_position),
        "embed_positions": by_row(formulas.embed_positions),
        "embed_codes": by_row(formulas.embed_codes),
        "embed_ids": by_row(formulas.embed_ids),
        "embedding_rows": by_row(formulas.embedding_rows),
        "matmul": by_row(formulas.matmul),
        "matmul_by_position": with_positions(by_row(formulas.matmul_by_position)),
        "rms_norm": by_row(formulas.rms_norm),
        "layer_norm": by_row(formulas.layer_norm),
        "l2_norm": by_row(formulas.l2_norm),
        "add": by_row(formulas.add),
        "mul": by_row(formulas.mul),
        "scale": by_row(formulas.scale),
        "clamp": by_row(formulas.clamp),
        "scale_by": by_row(formulas.scale_by),
        "scale_by_position": by_row(formulas.scale_by_position),
        "shift_by": by_row(formulas.shift_by),
        "activation": by_row(formulas.activation),
        "xielu": by_row(formulas.xielu),
        "gaussian_topk": by_row(formulas.gaussian_topk),
        "gated": by_row(formulas.gated),
        "concat": by_row(formulas.concat),
        "slice": by_row(formulas.slice_),
        "split_heads": by_row(formulas.split_heads),
        "merge_heads": by_row(formulas.merge_heads),
        "repeat": by_row(formulas.repeat),
        "rope": by_row(formulas.rope),
        "attention": attention,
        "remember": remember,
        "cross_attention": cross_attention,
        "causal_conv": causal_conv(formulas.convolve),
        "block_mean": by_block(formulas.block_mean),
        "block_mix": by_block(formulas.block_mix),
        "block_conv": by_block(formulas.block_conv),
        "block_attention": by_block(formulas.block_attention),
        "block_walk": by_block(formulas.block_walk),
        "keep_best": by_row(formulas.keep_best),
        "find_best": by_row(formulas.find_best),
        "delta_rule": delta_rule(formulas.read_state),
        "route": by_row(formulas.route),
        "expert_matmul": by_row(formulas.expert_matmul),
        "group_ids": by_row(formulas.group_ids),
        "given_ids": _given_ids,
        "pair_ids": by_row(formulas.pair_ids),
        "token_ids": by_row(formulas.token_ids),
        "scale_chosen": by_row(formulas.scale_chosen),
        "cluster_matmul": by_row(formulas.cluster_matmul),
        "head_matmul": by_row(formulas.head_matmul),
        "rank_matmul": by_row(formulas.rank_matmul),
        "mix": by_row(formulas.mix),
        "add_chosen": by_row(formulas.add_chosen),
        "outputs": _outputs,
    }

    def __init__(self, dtype: str = "f32", quantise_activations: bool = False) -> None:
        if dtype not in ("f32", "f64"):
            raise BackendError("unknown number type", wanted="f32, f64", got=dtype)
        self.dtype: type[np.floating[Any]] = np.float32 if dtype == "f32" else np.float64
        self.quantise_activations = quantise_activations
        self.has_kernel_arithmetic = quantise_activations and dtype == "f32"

    @classmethod
    def register(cls, op: str, operation: Operation) -> None:
        """Define an operation; ``by_row`` makes one of a formula for one row."""
        cls.operations[op] = operation

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> ReferenceStore:
        """Make the pages for these memory layers; ``dtype`` is ``f16``, ``f32`` or ``f64``."""
        return ReferenceStore(layers, n_pages, dtype)

    def state_store(
        self, layers: Sequence[StateLayer], n_slots: int, source: WeightSource
    ) -> ReferenceStateStore:
        """Make the slots for the states of these layers, of the backend's number type."""
        advance = arithmetic.advance if self.has_kernel_arithmetic else formulas.advance
        return ReferenceStateStore(layers, n_slots, self.dtype, advance, source.tensors)

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
    ) -> ReferencePlan:
        """Load the weights; sizes and threads make no difference here.

        Raises
        ------
        BackendError
            The program has an operation that is not defined.
        """
        unknown = sorted({node.op for node in program.nodes} - set(self.operations))
        if unknown:
            raise BackendError("operations that are not defined", got=", ".join(unknown))
        reference_stores = [store for store in stores if isinstance(store, ReferenceStore)]
        if len(reference_stores) < len(stores):
            raise BackendError("memory of another backend", got=type(stores[0]).__name__)
        if not isinstance(states, ReferenceStateStore | None):
            raise BackendError("memory of another backend", got=type(states).__name__)
        load = self._load_as_kernels if self.has_kernel_arithmetic else self._load
        weights = [
            [None if w is None else load(node, i, w, source) for i, w in enumerate(node.weights)]
            for node in program.nodes
        ]
        return ReferencePlan(self, program, weights, reference_stores)

    def operation(self, op: str) -> Operation:
        """Return how an operation is computed."""
        if self.has_kernel_arithmetic and op in arithmetic.OPERATIONS:
            return arithmetic.OPERATIONS[op]
        return self.operations[op]

    def _load_as_kernels(self, node: Node, index: int, weight: Weight, source: WeightSource) -> Any:
        """Return a weight as the kernels' arithmetic takes it."""
        key = ("reference arithmetic", node.op, index, weight.tensor)
        if key not in source.packed:
            tensor = source.tensors[weight.tensor]
            source.packed[key] = arithmetic.load(node.op, index, tensor, weight)
        return source.packed[key]

    def _load(self, node: Node, index: int, weight: Weight, source: WeightSource) -> Any:
        """Return a weight as the node's formula takes it, shared by all plans of the source."""
        tensor = source.tensors[weight.tensor]
        block = 0
        if self.quantise_activations and node.op in _MULTIPLIED:
            block = BLOCK_OF_TYPE.get(tensor.type, 0)
        key = ("reference", self.dtype, weight.tensor, block)
        if key not in source.packed:
            values = tensor.array().reshape(weight.shape)
            source.packed[key] = (
                QuantisedMatrix(values.astype(np.float64), block)
                if block
                else values.astype(self.dtype)
            )
        return source.packed[key]


class ReferencePlan:
    """A program with its weights; implements ``mtpcore.backends.base.Plan``."""

    progress = 0.0  # not measured
    is_warm = True

    def __init__(
        self,
        backend: ReferenceBackend,
        program: Program,
        weights: list[list[Any]],
        stores: Sequence[ReferenceStore],
    ) -> None:
        self.program, self.stores = program, stores
        self._dtype, self._weights = backend.dtype, weights
        self._operations = [backend.operation(node.op) for node in program.nodes]

    @property
    def bytes_to_pack(self) -> int:
        """0: weights are read when the plan is made."""
        return 0

    def prepare(self) -> None:
        """Do nothing: there is nothing to pack."""

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, F32]:
        """Run all rows and return new arrays by output name, of the backend's number type."""
        run = Run(batch, memory, self.stores, self._dtype)
        values = {i: self._input(name, batch) for name, i in self.program.inputs.items()}
        # Weights from outside may hold NaN and Inf; they flow through.
        with np.errstate(all="ignore"):
            for node, operation, weights in zip(
                self.program.nodes, self._operations, self._weights, strict=True
            ):
                inputs = [values[i] for i in node.inputs]
                n_rows = len(batch.outputs) if node.op == "outputs" else len(inputs[0])
                results = (
                    operation(run, inputs, weights, node.attrs)
                    if n_rows
                    else [self._zeros(i, 0) for i in node.outputs]
                )
                values.update(zip(node.outputs, map(self._round, results), strict=True))
        return {name: values[i].copy() for name, i in self.program.outputs.items()}

    def run_schedule(self, schedule: Schedule) -> Drafts:
        """Run a schedule, one stage after the other."""
        return run_schedule(schedule)

    def _round(self, values: Array) -> Array:
        return values if values.dtype == np.int32 else values.astype(self._dtype, copy=False)

    def _zeros(self, value_id: int, n_rows: int) -> Array:
        value = self.program.values[value_id]
        widths = [int(width) for width in value.shape[1:]]
        return np.zeros((n_rows, *widths), np.int32 if value.dtype == "i32" else self._dtype)

    def _input(self, name: str, batch: CheckedBatch) -> Array:
        if name == "tokens":
            return batch.tokens
        if name == "positions":
            return batch.positions
        if name in NUMBERS:
            numbers = numbers_of(batch, self.program, name)
            return numbers if numbers.dtype == np.int32 else numbers.astype(self._dtype)
        if name == "embeddings":
            if batch.embeddings is None:
                return self._zeros(self.program.inputs[name], len(batch.tokens))
            return batch.embeddings.astype(self._dtype)
        return batch.slots[name].astype(self._dtype)
