"""From a Program to steps: one method an operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore._ext._matmul import PackedMatrix
from mtpcore._ext._plan import UNIT, expert_list_words
from mtpcore.backends.cpu.steps import Buffer, Step, View
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.cpu.weights import Weights
from mtpcore.errors import BackendError
from mtpcore.graph.ops import ACTIVATIONS
from mtpcore.graph.program import OUTPUTS, TOKENS, Node, Program
from mtpcore.memory.base import RANGE

__all__ = ["Lowering"]

_MEMORY = 1 << 20
"""Memory layer i counts as buffer ``_MEMORY + i`` when steps are put in order."""
_BYTES_PER_VALUE = 4  # of prepared activations, at most
_LANES = 16


class Lowering:
    """Steps, buffers and named arrays of one program.

    Attributes
    ----------
    steps : list of Step
        In the program's order.
    buffers : list of Buffer
    inputs, outputs : dict of str to int
        The buffers of slots and embeddings, and of the program's outputs.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        stores: Sequence[CpuStore],
        n_batch: int,
        n_ctx: int,
    ) -> None:
        self.program, self.weights, self.stores, self.n_batch = program, weights, stores, n_batch
        self._n_ranges = -(-n_ctx // RANGE)
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self._views: dict[int, View] = {}
        self._made: dict[Any, View] = {}
        self._n_uses = Counter(i for node in program.nodes for i in node.inputs)
        self._n_uses.update(program.outputs.values())
        for name, value_id in program.inputs.items():
            if name not in ("tokens", "positions"):
                view = self._views[value_id] = self._value(value_id)
                self.buffers[view.buffer].external = True
                self.inputs[name] = view.buffer
        for node in program.nodes:
            operation: Callable[[Node], None] | None = getattr(self, f"_lower_{node.op}", None)
            if operation is None:
                raise BackendError("operation that is not defined", where=node.name, got=node.op)
            operation(node)
        for name, value_id in program.outputs.items():
            self.outputs[name] = self._export(value_id)

    # Buffers and views

    def _buffer(self, n_bytes: Callable[[int], int]) -> int:
        """Return a new buffer of so many bytes for each number of rows."""
        self.buffers.append(Buffer(n_bytes(self.n_batch), n_bytes(min(UNIT, self.n_batch))))
        return len(self.buffers) - 1

    def _new(self, *shape: int) -> View:
        """Return a whole view of a new buffer; shape is [width] or [heads, width]."""
        n_heads, width = shape if len(shape) == 2 else (1, shape[0])
        buffer = self._buffer(lambda rows: 4 * rows * n_heads * width)
        return View(buffer, n_heads, 0, n_heads * width, width, width)

    def _value(self, value_id: int) -> View:
        return self._new(*(int(n) for n in self.program.values[value_id].shape[1:]))

    def _axis(self, value_id: int) -> int:
        return int(self.program.values[value_id].shape[0] == OUTPUTS)

    def _whole(self, view: View, axis: int) -> View:
        """Return the same heads following each other, copied if need be."""
        if view.is_whole:
            return view
        made = self._new(view.n_heads, view.width)
        self.steps.append(Step("copy", axis, [view], [made]))
        return made

    def _flat(self, view: View, axis: int) -> View:
        """Return a row's heads as one."""
        view = self._whole(view, axis)
        width = view.n_heads * view.width
        return View(view.buffer, 1, view.offset, view.row_stride, width, width)

    def _export(self, value_id: int) -> int:
        """Return the output buffer that holds a value."""
        view = self._views[value_id]
        buffer = self.buffers[view.buffer]
        width = view.n_heads * view.width
        is_alone = view.is_whole and view.offset == 0 and view.row_stride == width
        if buffer.external or not is_alone:
            copied = self._new(view.n_heads, view.width)
            self.steps.append(Step("copy", self._axis(value_id), [view], [copied]))
            view, buffer = copied, self.buffers[copied.buffer]
        buffer.external = True
        return view.buffer

    def _in(self, node: Node) -> list[View]:
        return [self._views[i] for i in node.inputs]

    def _add(self, node: Node, kind: str, inputs: list[View], **fields: Any) -> None:
        """Append a step that makes the node's only output."""
        out = self._views[node.outputs[0]] = self._value(node.outputs[0])
        self.steps.append(Step(kind, self._axis(node.outputs[0]), inputs, [out], **fields))

    def _once(self, key: Any, make: Callable[[], View]) -> View:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # Values side by side

    def _lower_heads(self, node: Node) -> None:
        view = self._flat(self._views[node.inputs[0]], self._axis(node.inputs[0]))
        n_heads = node.attrs["n_heads"]
        width = view.width // n_heads
        self._views[node.outputs[0]] = view._replace(
            n_heads=n_heads, head_stride=width, width=width
        )

    def _lower_rows(self, node: Node) -> None:
        view = self._flat(self._views[node.inputs[0]], self._axis(node.inputs[0]))
        self._views[node.outputs[0]] = view

    def _lower_repeat(self, node: Node) -> None:
        view = self._views[node.inputs[0]]
        self._views[node.outputs[0]] = view._replace(n_heads=node.attrs["n_heads"], head_stride=0)

    def _lower_slice(self, node: Node) -> None:
        view, start = self._views[node.inputs[0]], node.attrs["start"]
        self._views[node.outputs[0]] = view._replace(
            offset=view.offset + start, width=node.attrs["stop"] - start
        )

    def _lower_concat(self, node: Node) -> None:
        axis = self._axis(node.outputs[0])
        out = self._views[node.outputs[0]] = self._value(node.outputs[0])
        offset = 0
        for value_id, view in zip(node.inputs, self._in(node), strict=True):
            part = out._replace(offset=offset, width=view.width)
            if not self._make_in(value_id, part):
                self.steps.append(Step("copy", axis, [view], [part]))
            offset += view.width

    def _make_in(self, value_id: int, part: View) -> bool:
        """Let the step that makes a value write it there at once, if nothing else reads it."""
        view = self._views[value_id]
        makers = [i for i, step in enumerate(self.steps) if view.buffer in step.writes]
        if self._n_uses[value_id] > 1 or len(makers) != 1:
            return False
        step = self.steps[makers[0]]
        if step.kind == "expert_matmul" or step.outputs != [view] or part.n_heads != view.n_heads:
            return False  # experts write rows that follow each other
        self.steps[makers[0]] = msgspec.structs.replace(step, outputs=[part], writes=set())
        return True

    def _lower_outputs(self, node: Node) -> None:
        self._add(node, "take", self._in(node))

    # Values one by one

    def _lower_elementwise(self, node: Node) -> None:
        inputs = self._in(node)
        kind = node.attrs.get("kind")
        ints = [] if kind is None else [ACTIVATIONS.index(kind)]
        self._add(node, node.op, inputs, ints=ints, f=node.attrs.get("factor", 0.0))
        width = self._views[node.outputs[0]].width
        if all(view.is_whole for view in inputs) and width % _LANES:
            step, axis = self.steps[-1], self._axis(node.outputs[0])
            step.inputs = [self._flat(view, axis) for view in inputs]
            step.outputs = [self._flat(step.outputs[0], axis)]

    _lower_add = _lower_mul = _lower_scale = _lower_activation = _lower_gated = _lower_elementwise

    def _lower_norm(self, node: Node) -> None:
        weights = [self.weights.vector(weight) for weight in node.weights]
        self._add(node, node.op, self._in(node), weights=weights, f=node.attrs["eps"])

    _lower_rms_norm = _lower_layer_norm = _lower_norm

    def _lower_mix(self, node: Node) -> None:
        self._add(node, "mix", self._in(node))

    # Matrices

    def _lower_embed(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        rows = [self._views[i] for i in node.inputs[1:]]
        self._add(node, "embed", rows, matrices=[self.weights.matrix(weight)])

    def _prepared(self, view: View, axis: int, matrix: PackedMatrix) -> View:
        """Return a row's activations as the matrix wants them, made once for all that share it."""
        kind = matrix.activation

        def make() -> View:
            made = self._new(matrix.shape[1])
            self.steps.append(Step("prepare", axis, [view], [made], ints=[kind]))
            return made

        return self._once(("prepared", view, axis, kind), make)

    def _product(self, node: Node, matrix: PackedMatrix, bias: Any, out: View) -> None:
        axis = self._axis(node.inputs[0])
        view = self._flat(self._views[node.inputs[0]], axis)
        prepared = self._prepared(view, axis, matrix)
        self.steps.append(
            Step("matmul", axis, [prepared], [out], matrices=[matrix], weights=[bias])
        )

    def _lower_matmul(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        bias = self.weights.vector(node.weights[1]) if len(node.weights) > 1 else None
        out = self._views[node.outputs[0]] = self._value(node.outputs[0])
        self._product(node, self.weights.matrix(weight), bias, out)

    def _lower_route(self, node: Node) -> None:
        weight, attrs = node.weights[0], node.attrs
        assert weight is not None
        correction = self.weights.vector(node.weights[1]) if len(node.weights) > 1 else None
        logits = self._new(weight.shape[0])
        self._product(node, self.weights.exact_matrix(weight), None, logits)
        outs = [self._value(i) for i in node.outputs]
        self._views.update(zip(node.outputs, outs, strict=True))
        ints = [
            attrs["n_used"],
            int(attrs["gate"] == "softmax"),
            int(attrs["normalise"]),
            attrs["n_groups"],
            attrs["n_groups_used"],
            attrs["n_best_of_group"],
        ]
        self.steps.append(
            Step("route", 0, [logits], outs, weights=[correction], ints=ints, f=attrs["scale"])
        )

    def _lower_expert_matmul(self, node: Node) -> None:
        x, ids = self._in(node)
        weight = node.weights[0]
        assert weight is not None
        n_experts, n_used = weight.shape[0], ids.width
        x = self._whole(x, 0)

        def sort() -> View:
            made = self._buffer(lambda rows: 4 * expert_list_words(n_experts, rows * n_used))
            lists = View(made, 1, 0, 0, 0, n_used)
            self.steps.append(Step("sort_by_expert", 0, [ids], [lists], ints=[n_experts]))
            return lists

        lists = self._once(("lists", ids, n_experts), sort)
        self._products_by_lists(node, x, lists, self.weights.stack(weight))

    def _lower_head_matmul(self, node: Node) -> None:
        """Multiply as if head h were an expert that each row uses at rank h."""
        axis, weight = self._axis(node.inputs[0]), node.weights[0]
        assert weight is not None
        if axis:
            raise BackendError("heads are multiplied in rows of the batch", where=node.name)
        x, n_heads = self._views[node.inputs[0]], weight.shape[0]
        if not x.is_whole or x.row_stride != n_heads * x.width:
            x, view = self._new(n_heads, x.width), x
            self.steps.append(Step("copy", axis, [view], [x]))

        def sort() -> View:
            made = self._buffer(lambda rows: 4 * expert_list_words(n_heads, rows * n_heads))
            lists = View(made, 1, 0, 0, 0, n_heads)
            self.steps.append(Step("sort_by_head", 0, [], [lists]))
            return lists

        lists = self._once(("lists of heads", n_heads), sort)
        self._products_by_lists(node, x, lists, self.weights.stack(weight))

    def _products_by_lists(
        self, node: Node, x: View, lists: View, matrices: list[PackedMatrix]
    ) -> None:
        """Multiply the rows that each matrix has in ``lists``, one row a rank or one for all."""
        n_matrices, n_used, kind = len(matrices), lists.width, matrices[0].activation

        def prepare() -> View:
            width = _BYTES_PER_VALUE * n_used * x.width
            made = View(self._buffer(lambda rows: rows * width + 64 * n_matrices), 1, 0, 0, 0, 1)
            ints = [n_matrices, kind, int(len(self._shape(node.inputs[0])) == 3)]
            self.steps.append(Step("prepare_by_expert", 0, [x, lists], [made], ints=ints))
            return made

        prepared = self._once(("by expert", x, lists, kind), prepare)
        self._add(node, "expert_matmul", [prepared, lists], matrices=matrices, ints=[n_matrices])

    def _shape(self, value_id: int) -> tuple[Any, ...]:
        return self.program.values[value_id].shape

    # Positions and memory

    def _lower_rope(self, node: Node) -> None:
        attrs, n = node.attrs, len(node.attrs["frequencies"])
        factors = self.weights.vector(node.weights[0]) if node.weights else None
        numbers = np.array(attrs["frequencies"], np.float64)
        if factors is not None:
            numbers = numbers / factors
        numbers = np.append(numbers, attrs["magnitude"])
        axes = np.array(attrs["axes"], np.int32)
        axis = self._axis(node.inputs[0])
        if axis or self._shape(node.inputs[1])[0] != TOKENS:
            raise BackendError("rope turns rows of the batch", where=node.name)

        def make() -> View:
            made = self._new(2 * n)
            self.steps.append(Step("angles", 0, [], [made], numbers=numbers, axes=axes, ints=[n]))
            return made

        angles = self._once(("angles", numbers.tobytes(), axes.tobytes()), make)
        ints = [n, int(attrs["style"] == "pairs")]
        self._add(node, "rope", [self._views[node.inputs[0]], angles], ints=ints)

    def _lower_attention(self, node: Node) -> None:
        q, *remembered = self._in(node)
        attrs, layer = node.attrs, _MEMORY + node.attrs["layer"]
        held = [i for i, store in enumerate(self.stores) if attrs["layer"] in store.layers]
        if not held:
            raise BackendError("attention needs memory", where=node.name)
        k_offset, v_offset = self.stores[held[0]].offsets(attrs["layer"])
        self.steps.append(
            Step(
                "remember",
                0,
                remembered,
                [],
                ints=[k_offset, v_offset],
                writes={layer},
                memory=held[0],
            )
        )
        is_block = int(attrs["mask"] == "block")
        settings: dict[str, Any] = {
            "weights": [self.weights.vector(node.weights[0]) if node.weights else None],
            "ints": [
                *(k_offset, v_offset, remembered[0].n_heads, attrs["window"], is_block),
                self._n_ranges,
            ],
            "memory": held[0],
        }
        self._add(node, "attention", [q], f=attrs["scale"], reads={layer}, **settings)
        if self._n_ranges > 1:
            out = self._views[node.outputs[0]]
            shared = self._shared_ranges(out)
            attention = self.steps[-1]
            attention.outputs.append(shared)
            attention.writes.add(shared.buffer)
            self.steps.append(Step("merge", attention.axis, [shared], [out], **settings))

    def _shared_ranges(self, out: View) -> View:
        """Return a buffer for the ranges of places that threads share out, of a few rows."""
        width = _LANES + -(-out.width // _LANES) * _LANES
        n = min(self.n_batch, UNIT) * out.n_heads * self._n_ranges
        return View(self._buffer(lambda _: 4 * n * width), n, 0, 0, width, width)

    def _lower_cross_attention(self, node: Node) -> None:
        self._add(node, "cross_attention", self._in(node), f=node.attrs["scale"])
