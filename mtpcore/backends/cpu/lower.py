"""From a Program to steps, with one method for each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import intern
from typing import Any

import numpy as np

from mtpcore._ext._matmul import PackedMatrix
from mtpcore._ext._plan import UNIT, expert_list_words
from mtpcore.backends.cpu.concat_targets import find_concat_targets
from mtpcore.backends.cpu.states import CpuStateStore
from mtpcore.backends.cpu.steps import Buffer, ExecutorStep, View
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.errors import BackendError
from mtpcore.graph.alibi import alibi_slopes
from mtpcore.graph.ops import ACTIVATIONS, MASKS
from mtpcore.graph.parts import part_sizes
from mtpcore.graph.program import OUTPUTS, TOKENS, ConvLayer, DeltaLayer, Node, Program, StateLayer
from mtpcore.memory.base import RANGE

__all__ = ["Lowering"]

_MEMORY = 1 << 20
"""Memory layer i counts as buffer ``_MEMORY + i`` when steps are put in order."""
_BYTES_PER_VALUE = 4  # of prepared activations, at most
_LANES = 16
_DECAY_BY_COLUMN = 2  # as recurrent/delta_step.h counts them


class Lowering:
    """Steps, buffers and named arrays of one program.

    Attributes
    ----------
    steps : list of ExecutorStep
        In the program's order.
    buffers : list of Buffer
    inputs, outputs : dict of str to int
        The buffers of slots and embeddings, and of the program's outputs.
    """

    def __init__(
        self,
        program: Program,
        weights: CpuWeights,
        stores: Sequence[CpuStore],
        n_batch: int,
        n_ctx: int,
        states: CpuStateStore | None = None,
    ) -> None:
        self.program, self.weights, self.n_batch = program, weights, n_batch
        self.stores, self.states = stores, states
        self._n_ranges = -(-n_ctx // RANGE)
        stored = (*program.memory, *program.shared)
        self._n_stored_heads = {layer.layer: layer.n_heads for layer in stored}
        self.steps: list[ExecutorStep] = []
        self.buffers: list[Buffer] = []
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self._views: dict[int, View] = {}
        self._made: dict[Any, View] = {}
        self._places = find_concat_targets(program)
        self._readers: dict[int, list[Node]] = {}
        for node in program.nodes:
            for value_id in {*node.inputs}:
                self._readers.setdefault(value_id, []).append(node)
        for name, value_id in program.inputs.items():
            if name not in ("tokens", "positions"):
                view = self._make(value_id)
                self.buffers[view.buffer].external = True
                self.inputs[name] = view.buffer
        for node in program.nodes:
            # Interned: the interpreter's cache of attributes keeps each string it is given.
            name = intern(f"_lower_{node.op}")
            operation: Callable[[Node], None] | None = getattr(self, name, None)
            if operation is None:
                raise BackendError("operation that is not defined", where=node.name, got=node.op)
            operation(node)
        for name, value_id in program.outputs.items():
            self.outputs[name] = self._export(value_id)

    # Buffers and views

    def _buffer(self, n_bytes: Callable[[int], int]) -> int:
        """Return a new buffer; ``n_bytes`` gives its size for a number of rows."""
        self.buffers.append(Buffer(n_bytes(self.n_batch), n_bytes(min(UNIT, self.n_batch))))
        return len(self.buffers) - 1

    def _new(self, *shape: int) -> View:
        """Return a whole view of a new buffer; shape is [width] or [heads, width]."""
        n_heads, width = shape if len(shape) == 2 else (1, shape[0])
        buffer = self._buffer(lambda rows: 4 * rows * n_heads * width)
        return View(buffer, n_heads, 0, n_heads * width, width, width)

    def _make(self, value_id: int) -> View:
        """Return where a value is written: inside another one, or into a new buffer."""
        if value_id not in self._views:
            shape = [int(n) for n in self.program.values[value_id].shape[1:]]
            place = self._places.get(value_id)
            if place is None:
                self._views[value_id] = self._new(*shape)
            else:
                self._views[value_id] = _part(self._make(place.whole), place.offset, shape[-1])
        return self._views[value_id]

    def _axis(self, value_id: int) -> int:
        return int(self.program.values[value_id].shape[0] == OUTPUTS)

    def _contiguous_heads(self, view: View, axis: int) -> View:
        """Return the heads of each row contiguous, copied if need be."""
        if view.has_contiguous_heads:
            return view
        copied = self._new(view.n_heads, view.width)
        self.steps.append(ExecutorStep("copy", axis, [view], [copied]))
        return copied

    def _contiguous_rows(self, view: View, axis: int) -> View:
        """Return the heads of all rows contiguous, copied if need be."""
        if view.row_stride == view.n_heads * view.head_stride and view.has_contiguous_heads:
            return view
        copied = self._new(view.n_heads, view.width)
        self.steps.append(ExecutorStep("copy", axis, [view], [copied]))
        return copied

    def _closed_rows(self, view: View, axis: int) -> View:
        """Return the heads of all rows at equal distances, copied if need be."""
        if view.n_heads == 1:  # whose stride means nothing by itself
            return view._replace(head_stride=view.row_stride)
        if view.row_stride == view.n_heads * view.head_stride:
            return view
        return self._contiguous_rows(view, axis)

    def _flat(self, view: View, axis: int) -> View:
        """Return a row's heads as one."""
        view = self._contiguous_heads(view, axis)
        width = view.n_heads * view.width
        return View(view.buffer, 1, view.offset, view.row_stride, width, width)

    def _export(self, value_id: int) -> int:
        """Return the output buffer that holds a value."""
        view = self._views[value_id]
        buffer = self.buffers[view.buffer]
        width = view.n_heads * view.width
        is_alone = view.has_contiguous_heads and view.offset == 0 and view.row_stride == width
        if buffer.external or not is_alone:
            copied = self._new(view.n_heads, view.width)
            self.steps.append(ExecutorStep("copy", self._axis(value_id), [view], [copied]))
            view, buffer = copied, self.buffers[copied.buffer]
        buffer.external = True
        return view.buffer

    def _in(self, node: Node) -> list[View]:
        return [self._views[i] for i in node.inputs]

    def _add(self, node: Node, kind: str, inputs: list[View], **fields: Any) -> None:
        """Append a step that makes the node's only output."""
        out = self._make(node.outputs[0])
        self.steps.append(ExecutorStep(kind, self._axis(node.outputs[0]), inputs, [out], **fields))

    def _cached(self, key: Any, make: Callable[[], View]) -> View:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # Values side by side

    def _lower_split_heads(self, node: Node) -> None:
        view = self._flat(self._views[node.inputs[0]], self._axis(node.inputs[0]))
        n_heads = node.attrs["n_heads"]
        width = view.width // n_heads
        self._views[node.outputs[0]] = view._replace(
            n_heads=n_heads, head_stride=width, width=width
        )

    def _lower_merge_heads(self, node: Node) -> None:
        view = self._flat(self._views[node.inputs[0]], self._axis(node.inputs[0]))
        self._views[node.outputs[0]] = view

    def _lower_repeat(self, node: Node) -> None:
        view = self._views[node.inputs[0]]
        self._views[node.outputs[0]] = view._replace(n_heads=node.attrs["n_heads"], head_stride=0)

    def _lower_slice(self, node: Node) -> None:
        view, start = self._views[node.inputs[0]], node.attrs["start"]
        self._views[node.outputs[0]] = _part(view, start, node.attrs["stop"] - start)

    def _lower_concat(self, node: Node) -> None:
        axis, out = self._axis(node.outputs[0]), self._make(node.outputs[0])
        offset = 0
        for view in self._in(node):
            part = _part(out, offset, view.width)
            if view != part:
                self.steps.append(ExecutorStep("copy", axis, [view], [part]))
            offset += view.width

    def _lower_outputs(self, node: Node) -> None:
        self._add(node, "take", self._in(node))

    # Values one by one

    def _lower_elementwise(self, node: Node, **fields: Any) -> None:
        inputs = self._in(node)
        kind = node.attrs.get("kind")
        ints = [] if kind is None else [ACTIVATIONS.index(kind), node.attrs.get("offset", 0)]
        number = node.attrs.get("factor", node.attrs.get("limit", 0.0))
        self._add(node, node.op, inputs, ints=ints, f=number, **fields)
        width = self._views[node.outputs[0]].width
        step, axis = self.steps[-1], self._axis(node.outputs[0])
        if all(view.has_contiguous_heads for view in (*inputs, *step.outputs)) and width % _LANES:
            step.inputs = [self._flat(view, axis) for view in inputs]
            step.outputs = [self._flat(step.outputs[0], axis)]

    _lower_add = _lower_scale = _lower_clamp = _lower_elementwise
    _lower_activation = _lower_gated = _lower_elementwise

    def _lower_xielu(self, node: Node) -> None:
        numbers = [node.attrs[name] for name in ("alpha_p", "alpha_n", "beta", "eps")]
        self._lower_elementwise(node, weights=[np.array(numbers, np.float32)])

    def _lower_gaussian_topk(self, node: Node) -> None:
        self._add(node, node.op, self._in(node), f=node.attrs["n_deviations"])

    def _lower_mul(self, node: Node) -> None:
        a, b = (self._shape(i) for i in node.inputs)
        if a == b:
            self._lower_elementwise(node)
        else:
            self._add(node, "mul_heads", self._in(node))

    def _lower_scale_by_position(self, node: Node) -> None:
        attrs, x = node.attrs, self._views[node.inputs[0]]
        self._add(node, node.op, [x], ints=[attrs["n"], attrs["offset"]], f=attrs["beta"])

    def _lower_norm(self, node: Node) -> None:
        weights = [self.weights.vector(weight) for weight in node.weights]
        self._add(node, node.op, self._in(node), weights=weights, f=node.attrs["eps"])

    _lower_rms_norm = _lower_layer_norm = _lower_l2_norm = _lower_norm

    def _lower_by_weight(self, node: Node) -> None:
        weight, width = self.weights.vector(node.weights[0]), int(self._shape(node.outputs[0])[-1])
        assert weight is not None
        each = np.ascontiguousarray(np.broadcast_to(weight, (*weight.shape[:-1], width)))
        n_of_head = width if weight.ndim == 2 else 0
        self._add(node, node.op, self._in(node), weights=[each.reshape(-1)], ints=[n_of_head])

    _lower_scale_by = _lower_shift_by = _lower_by_weight

    def _lower_scale_chosen(self, node: Node) -> None:
        factors = self.weights.vector(node.weights[0])
        assert factors is not None
        self._add(node, node.op, self._in(node), weights=[factors], ints=[len(factors)])

    def _lower_mix(self, node: Node) -> None:
        self._add(node, "mix", self._in(node))

    def _lower_add_chosen(self, node: Node) -> None:
        self._add(node, "add_chosen", self._in(node), ints=[node.attrs["n"]])

    # Matrices

    def _lower_embed(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        rows = [self._views[i] for i in node.inputs[1:]]
        matrix, attrs = self.weights.matrix(weight), node.attrs
        ints = [attrs["absent"] + 1, int(attrs["scale"] != 1)]
        self._add(node, "embed", rows, matrices=[matrix], ints=ints, f=attrs["scale"])

    def _lower_embed_by_position(self, node: Node) -> None:
        weight, attrs = node.weights[0], node.attrs
        assert weight is not None
        n_parts = attrs["n_parts"]
        rows = [self._views[i] for i in node.inputs[2:]]
        n_first, n_each = part_sizes(weight.shape[0], n_parts, attrs["n_first"])
        ints = [0, 0, n_parts, n_each, attrs["first"], n_first]
        self._add(node, "embed", rows, matrices=[self.weights.matrix(weight)], ints=ints)

    def _lower_embed_positions(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        self._add(node, node.op, [], matrices=[self.weights.matrix(weight)])

    def _lower_embed_codes(self, node: Node) -> None:
        weight, (codes,) = node.weights[0], self._in(node)
        assert weight is not None
        n_first, n_each = part_sizes(weight.shape[0], codes.width, node.attrs["n_first"])
        matrices = [self.weights.matrix(weight)]
        self._add(node, "embed_codes", [codes], matrices=matrices, ints=[n_each, n_first])

    def _lower_embed_ids(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        self._add(node, "embed_ids", self._in(node), matrices=[self.weights.matrix(weight)])

    def _lower_embedding_rows(self, node: Node) -> None:
        self._add(node, "embedding_rows", [self._views[node.inputs[1]]])

    def _prepared(self, view: View, axis: int, matrix: PackedMatrix) -> View:
        """Return activations as the matrix takes them, computed once for all of its kind."""
        kind = matrix.activation

        def make() -> View:
            prepared = self._new(matrix.shape[1])
            self.steps.append(ExecutorStep("prepare", axis, [view], [prepared], ints=[kind]))
            return prepared

        return self._cached(("prepared", view, axis, kind), make)

    def _multiply(self, node: Node, matrix: PackedMatrix, bias: Any, out: View) -> None:
        axis = self._axis(node.inputs[0])
        view = self._flat(self._views[node.inputs[0]], axis)
        prepared = self._prepared(view, axis, matrix)
        self.steps.append(
            ExecutorStep("matmul", axis, [prepared], [out], matrices=[matrix], weights=[bias])
        )

    def _lower_matmul(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        bias = self.weights.vector(node.weights[1]) if len(node.weights) > 1 else None
        out = self._make(node.outputs[0])
        self._multiply(node, self.weights.matrix(weight), bias, out)

    def _lower_route(self, node: Node) -> None:
        weight, attrs = node.weights[0], node.attrs
        assert weight is not None
        further = [self.weights.vector(one) for one in node.weights[1:]]
        correction, bias, factors = (*further, None, None, None)[:3]
        logits = self._new(weight.shape[0])
        self._multiply(node, self.weights.exact_matrix(weight), bias, logits)
        outs = [self._make(i) for i in node.outputs]
        ints = [
            attrs["n_used"],
            int(attrs["gate"] == "softmax"),
            int(attrs["normalise"]),
            attrs["n_groups"],
            attrs["n_groups_used"],
            attrs["n_best_of_group"],
        ]
        axis = self._axis(node.inputs[0])
        self.steps.append(
            ExecutorStep(
                "route",
                axis,
                [logits],
                outs,
                weights=[correction, factors],
                ints=ints,
                f=attrs["scale"],
            )
        )

    def _lower_group_ids(self, node: Node) -> None:
        n_experts = self.program.values[node.inputs[0]].n_experts
        ints = [n_experts, node.attrs["n_of_group"]]
        self._add(node, "group_ids", self._in(node), ints=ints)

    def _lower_given_ids(self, node: Node) -> None:
        self._add(node, "given_ids", self._in(node), ints=[node.attrs["n"]])

    def _lower_pair_ids(self, node: Node) -> None:
        ints = [node.attrs[name] for name in ("n_first", "column", "n_second")]
        self._add(node, "pair_ids", self._in(node), ints=ints)

    def _lower_token_ids(self, node: Node) -> None:
        ints = [node.attrs[name] for name in ("n_first", "n_second", "absent")]
        self._add(node, "token_ids", [self._views[node.inputs[1]]], ints=ints)

    def _lower_expert_matmul(self, node: Node) -> None:
        (x, ids), axis = self._in(node), self._axis(node.inputs[0])
        weight = node.weights[0]
        assert weight is not None
        if self._is_by_rank(node):
            x = self._closed_rows(x, axis)
        matrices = self.weights.stack(weight)
        if leaves_last := self._is_only_added(node.outputs[0], node.inputs[1]):
            matrices = matrices[:-1]
        lists = self._sorted_by_expert(ids, len(matrices), axis, leaves_last)
        bias = self.weights.vector(node.weights[1]) if len(node.weights) > 1 else None
        self._multiply_by_lists(node, x, lists, matrices, bias)

    def _is_only_added(self, value_id: int, ids: int) -> bool:
        """Say whether what is made with the last of some ids is read by nobody.

        That is so where in the end only what these ids chose is added.
        """
        return value_id not in self.program.outputs.values() and all(
            self._only_adds(node, value_id, ids) for node in self._readers.get(value_id, ())
        )

    def _only_adds(self, node: Node, value_id: int, ids: int) -> bool:
        if node.op == "add_chosen":
            return node.inputs[1:3] == (value_id, ids) and node.inputs.count(value_id) == 1
        goes_on = node.op in ("scale", "slice") or (
            node.op == "expert_matmul" and node.inputs == (value_id, ids)
        )
        return goes_on and self._is_only_added(node.outputs[0], ids)

    def _lower_cluster_matmul(self, node: Node) -> None:
        """Multiply as if each cluster were an expert, then put the products where they belong."""
        (x, ids), axis = self._in(node), self._axis(node.inputs[0])
        weight, ordering = node.weights
        assert weight is not None
        assert ordering is not None
        n_clusters = node.attrs["n_clusters"]
        size = weight.shape[0] // n_clusters
        rows, matrices = self.weights.clusters(weight, ordering, n_clusters)
        lists = self._sorted_by_expert(ids, n_clusters, axis)
        products = self._new(ids.width, size)
        self._multiply_by_lists(node, x, lists, matrices, out=products)
        out = self._make(node.outputs[0])
        ints = [size, n_clusters]
        self.steps.append(
            ExecutorStep("scatter", axis, [products, ids], [out], axes=rows, ints=ints)
        )

    def _sorted_by_expert(
        self, ids: View, n_experts: int, axis: int, leaves_last: bool = False
    ) -> View:
        """Return the rows that each expert has, by the ids of those that each row uses.

        ``leaves_last``: there is one more id, whose rows are in no list.
        """

        def sort() -> View:
            buffer = self._buffer(lambda rows: 4 * expert_list_words(n_experts, rows * ids.width))
            lists = View(buffer, 1, 0, 0, 0, ids.width)
            self.steps.append(
                ExecutorStep(
                    "sort_by_expert", axis, [ids], [lists], ints=[n_experts, int(leaves_last)]
                )
            )
            return lists

        return self._cached(("lists", ids, n_experts), sort)

    def _lower_head_matmul(self, node: Node) -> None:
        """Multiply as if head h were an expert that each row uses at rank h."""
        weight = node.weights[0]
        assert weight is not None
        self._multiply_heads(node, self.weights.stack(weight))

    def _lower_rank_matmul(self, node: Node) -> None:
        """Multiply as heads whose matrices are all the same."""
        weight, n = node.weights[0], int(self._shape(node.inputs[0])[1])
        assert weight is not None
        bias = self.weights.vector(node.weights[1]) if len(node.weights) > 1 else None
        biases = None if bias is None else np.tile(bias, (n, 1))
        self._multiply_heads(node, [self.weights.matrix(weight)] * n, biases)

    def _multiply_heads(self, node: Node, matrices: list[PackedMatrix], biases: Any = None) -> None:
        """Multiply each head by its matrix."""
        axis, n_heads = self._axis(node.inputs[0]), len(matrices)

        def sort() -> View:
            buffer = self._buffer(lambda rows: 4 * expert_list_words(n_heads, rows * n_heads))
            lists = View(buffer, 1, 0, 0, 0, n_heads)
            self.steps.append(ExecutorStep("sort_by_head", axis, [], [lists]))
            return lists

        x = self._contiguous_rows(self._views[node.inputs[0]], axis)
        lists = self._cached(("lists of heads", n_heads, axis), sort)
        self._multiply_by_lists(node, x, lists, matrices, biases)

    def _lower_matmul_by_position(self, node: Node) -> None:
        """Multiply as if the matrix of a row's position were the one expert that it uses."""
        axis, weight = self._axis(node.inputs[0]), node.weights[0]
        assert weight is not None
        n, first = weight.shape[0], node.attrs["first"]

        def sort() -> View:
            buffer = self._buffer(lambda rows: 4 * expert_list_words(n, rows))
            lists = View(buffer, 1, 0, 0, 0, 1)
            self.steps.append(ExecutorStep("sort_by_position", axis, [], [lists], ints=[n, first]))
            return lists

        x = self._flat(self._views[node.inputs[0]], axis)
        lists = self._cached(("lists of positions", n, first, axis), sort)
        self._multiply_by_lists(node, x, lists, self.weights.stack(weight))

    def _multiply_by_lists(
        self,
        node: Node,
        x: View,
        lists: View,
        matrices: list[PackedMatrix],
        bias: Any = None,
        out: View | None = None,
    ) -> None:
        """Multiply the rows that each matrix has in ``lists``, one row a rank or one for all.

        ``bias`` has a row for each matrix; ``out`` is the node's output, if left out.
        """
        n_matrices, n_used, kind = len(matrices), lists.width, matrices[0].activation

        def prepare() -> View:
            width = _BYTES_PER_VALUE * n_used * x.width
            activations = View(
                self._buffer(lambda rows: rows * width + 64 * n_matrices), 1, 0, 0, 0, 1
            )
            ints = [n_matrices, kind, int(self._is_by_rank(node))]
            axis = self._axis(node.inputs[0])
            self.steps.append(
                ExecutorStep("prepare_by_expert", axis, [x, lists], [activations], ints=ints)
            )
            return activations

        prepared = self._cached(("by expert", x, lists, kind), prepare)
        weights = [None if bias is None else bias.reshape(-1)]
        self.steps.append(
            ExecutorStep(
                "expert_matmul",
                self._axis(node.outputs[0]),
                [prepared, lists],
                [self._make(node.outputs[0]) if out is None else out],
                matrices=matrices,
                weights=weights,
                ints=[n_matrices],
            )
        )

    def _is_by_rank(self, node: Node) -> bool:
        """Say whether each rank has a row of its own, or all of them the same."""
        return len(self._shape(node.inputs[0])) == 3

    def _shape(self, value_id: int) -> tuple[Any, ...]:
        return self.program.values[value_id].shape

    # Positions and memory

    def _lower_rope(self, node: Node) -> None:
        attrs, n = node.attrs, len(node.attrs["frequencies"])
        factors = self.weights.vector(node.weights[0]) if node.weights else None
        numbers = np.array(attrs["frequencies"], np.float64)
        if factors is not None:
            numbers = numbers / factors[:n]
        numbers = np.append(numbers, attrs["magnitude"])
        axes = np.array(attrs["axes"], np.int32)
        axis = self._axis(node.inputs[0])
        if axis or self._shape(node.inputs[1])[0] != TOKENS:
            raise BackendError("rope rotates rows of the batch", where=node.name)

        def make() -> View:
            view = self._new(2 * n)
            self.steps.append(
                ExecutorStep("angles", 0, [], [view], numbers=numbers, axes=axes, ints=[n])
            )
            return view

        angles = self._cached(("angles", numbers.tobytes(), axes.tobytes()), make)
        ints = [n, int(attrs["style"] == "pairs")]
        self._add(node, "rope", [self._views[node.inputs[0]], angles], ints=ints)

    def _lower_attention(self, node: Node) -> None:
        _, *remembered = self._in(node)
        attrs = node.attrs
        sinks, bias = (*node.weights, None, None)[:2]
        offsets = self._remember(node, remembered) if remembered else self._offsets(node)
        n_heads, max_bias = int(self._shape(node.inputs[0])[1]), attrs["max_alibi_bias"]
        slopes = alibi_slopes(n_heads, max_bias) if max_bias else None
        self._attend(
            node,
            offsets,
            n_heads=self._n_stored_heads[attrs["layer"]],
            window=attrs["window"],
            mask=attrs["mask"],
            max_distance=attrs["max_distance"],
            softcap=attrs["softcap"],
            weights=[
                self.weights.vector(sinks),
                self.weights.bias(bias, attrs["max_distance"], ahead=attrs["mask"] == "block"),
                slopes,
            ],
        )

    def _lower_remember(self, node: Node) -> None:
        self._remember(node, self._in(node))

    def _lower_cross_attention(self, node: Node) -> None:
        self._attend(
            node, self._offsets(node), n_heads=node.attrs["n_heads"], mask="block", weights=[]
        )

    def _held(self, node: Node) -> int:
        """Return the group of memory layers that has a node's."""
        layer = node.attrs["layer"]
        held = [i for i, store in enumerate(self.stores) if layer in store.layers]
        if not held:
            raise BackendError("attention needs memory", where=node.name)
        return held[0]

    def _offsets(self, node: Node) -> tuple[int, int]:
        """Return where keys and values of a node's layer begin in a page."""
        return self.stores[self._held(node)].offsets(node.attrs["layer"])

    def _remember(self, node: Node, remembered: list[View]) -> tuple[int, int]:
        """Store keys and values; return where they begin in a page."""
        offsets = self._offsets(node)
        self.steps.append(
            ExecutorStep(
                "remember",
                0,
                remembered,
                [],
                ints=offsets,
                writes={_MEMORY + node.attrs["layer"]},
                memory=self._held(node),
            )
        )
        return offsets

    def _attend(
        self,
        node: Node,
        offsets: tuple[int, int],
        *,
        n_heads: int,
        weights: list[Any],
        mask: str,
        window: int = 0,
        max_distance: int = 0,
        softcap: float = 0.0,
    ) -> None:
        """Attend to what is stored of a node's layer."""
        layer = _MEMORY + node.attrs["layer"]
        settings: dict[str, Any] = {
            "weights": weights,
            "ints": [*offsets, n_heads, window, MASKS.index(mask), self._n_ranges, max_distance],
            "memory": self._held(node),
        }
        q, scale = self._views[node.inputs[0]], node.attrs["scale"] / (softcap or 1)
        cap = np.array([softcap]) if softcap else None
        self._add(node, "attention", [q], f=scale, numbers=cap, reads={layer}, **settings)
        if self._n_ranges > 1:
            out = self._views[node.outputs[0]]
            shared = self._shared_ranges(out)
            attention = self.steps[-1]
            attention.outputs.append(shared)
            attention.writes.add(shared.buffer)
            self.steps.append(ExecutorStep("merge", attention.axis, [shared], [out], **settings))

    def _shared_ranges(self, out: View) -> View:
        """Return a buffer for attention's ranges of a few rows, which threads share."""
        width = _LANES + -(-out.width // _LANES) * _LANES
        n = min(self.n_batch, UNIT) * out.n_heads * self._n_ranges
        return View(self._buffer(lambda _: 4 * n * width), n, 0, 0, width, width)

    def _slot_offsets(self, kind: type[StateLayer], node: Node) -> tuple[int, int]:
        """Return where a recurrent layer's base and log begin in a slot."""
        if self.states is None:
            raise BackendError("recurrent layers need memory", where=node.name)
        return self.states.offsets(kind, node.attrs["layer"])

    def _lower_causal_conv(self, node: Node) -> None:
        weight = node.weights[0]
        assert weight is not None
        offsets = self._slot_offsets(ConvLayer, node)
        is_silu = int(node.attrs["kind"] == "silu")
        x = self._flat(self._views[node.inputs[0]], self._axis(node.inputs[0]))
        self._add(
            node,
            "causal_conv",
            [x],
            weights=[self.weights.taps(weight)],
            ints=[*offsets, is_silu, weight.shape[1]],
        )

    def _lower_block_mean(self, node: Node) -> None:
        self._add(node, "block_mean", self._in(node), ints=[node.attrs["size"]])

    def _lower_block_mix(self, node: Node) -> None:
        weight = self.weights.vector(node.weights[0])
        assert weight is not None
        self._add(
            node, "block_mix", self._in(node), weights=[weight.reshape(-1)], ints=[len(weight)]
        )

    def _lower_block_conv(self, node: Node) -> None:
        kernels = self.weights.vector(node.weights[0])
        assert kernels is not None
        kernel = kernels[node.attrs["part"]]
        x, changes = self._in(node)
        sizes = [node.attrs["size"], len(kernel), changes.width // len(kernel)]
        self._add(node, "block_conv", [x, changes], weights=[kernel.reshape(-1)], ints=sizes)

    def _lower_keep_best(self, node: Node) -> None:
        self._add(node, "keep_best", self._in(node), ints=[node.attrs["n"]])

    def _lower_find_best(self, node: Node) -> None:
        outs = [self._make(i) for i in node.outputs]
        axis = self._axis(node.outputs[0])
        self.steps.append(
            ExecutorStep("find_best", axis, self._in(node), outs, ints=[node.attrs["n"]])
        )

    def _lower_block_attention(self, node: Node) -> None:
        bias, attrs = self.weights.vector(node.weights[0]), node.attrs
        assert bias is not None
        ints = [attrs["size"], len(bias), attrs["first"]]
        weights = [bias.reshape(-1)]
        self._add(
            node, "block_attention", self._in(node), weights=weights, ints=ints, f=attrs["scale"]
        )

    def _lower_block_walk(self, node: Node) -> None:
        ints = [node.attrs["size"], node.attrs["first"]]
        self._add(node, "block_walk", self._in(node), ints=ints)

    def _lower_delta_rule(self, node: Node) -> None:
        q, k, v, decay, beta = self._in(node)
        offsets = self._slot_offsets(DeltaLayer, node)
        has_rates, by_channel = bool(node.weights), len(self._shape(node.inputs[3])) == 3
        decays = _DECAY_BY_COLUMN if has_rates else int(by_channel)
        is_tiled = int(node.attrs["key_heads"] == "tiled")
        self._add(
            node,
            "delta_rule",
            [q, k, v, decay, beta],
            weights=[self.weights.rates(weight, v.n_heads) for weight in node.weights],
            ints=[*offsets, is_tiled, decays, int(node.attrs["corrects"])],
        )


def _part(view: View, offset: int, width: int) -> View:
    """Return some entries of each head."""
    head_stride = view.head_stride if view.n_heads > 1 else width
    return view._replace(offset=view.offset + offset, head_stride=head_stride, width=width)
