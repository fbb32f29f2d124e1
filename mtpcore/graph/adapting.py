"""Graphs whose products by some matrices are changed by adapters, row by row (LoRA).

After each product y = W x of a matrix that adapters change, three nodes make y + sum over i of
scale[t, i] * B[k] (A[k] x), with k = adapters[t, i], in the order of i::

    %y  = matmul(%x, W)
    %h  = expert_matmul(%x, %ids, A)          # [T, n_used, rank]
    %d  = expert_matmul(%h, %ids, B)          # [T, n_used, out]
    %y' = add_chosen(%y, %d, %ids, %scales)   # which later nodes read in place of %y

The A of matrices that read the same x are one stack, [n + 1, sum of ranks, in], and each B reads
its part of what that makes.

Of a stack of experts W [E, out, in], whose ids a route chose, n_used such sums are made, of stacks
A [n E + 1, rank, in] and B [n E + 1, out, rank] by pairs of ids (``pair_ids``).

Of a table W [V, width] of embeddings a token's row is changed, by its row of A [n V + 1, rank], in
which tables lie one after the other, and B [n + 1, width, rank]. A product by the same matrix is
another one, even where the file holds it once.

A vector that is added to rows, as a product's bias [out], is changed by the adapter's row of a
table [n + 1, out]. So is one that rows are multiplied by after a norm; what is added then is the
adapter's row times the norm without a weight.

``adapters`` and ``adapter_scales`` are inputs. Where a row has fewer than n_used adapters the
others are n, and matrix n of the stacks is zeros; their products, which are no numbers where x is
infinite, are not added. So a row without adapters has the bits of the graph without this change,
and no row's depend on those beside it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from mtpcore.graph.inference import check, infer
from mtpcore.graph.program import OUTPUTS, TOKENS, Node, Program, Value, Weight

__all__ = ["JOINT", "adapt_products", "adapted_products", "adapted_tables", "adapted_vectors"]

JOINT = " and "


def adapted_products(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the matrices whose products can be adapted: shapes by the names that are asked for.

    Stacks of experts have three axes.
    """
    tables, products = adapted_tables(program), _adapted(program, "matmul", "expert_matmul")
    return {name: shape for name, shape in products.items() if name not in tables}


def adapted_tables(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the tables in which tokens are looked up that can be adapted, in the same way."""
    return _adapted(program, "embed")


def adapted_vectors(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the biases and the weights of norms that can be adapted, as matrices of one row."""
    both = ((_gain(program, node), _bias(program, node)) for node in program.nodes)
    return {one.wanted: (1, *one.shape) for pair in both for one in pair if one is not None}


def _adapted(program: Program, *ops: str) -> dict[str, tuple[int, ...]]:
    weights = (_matrix(program, node) for node in program.nodes if node.op in ops)
    return {weight.wanted: weight.shape for weight in weights if weight is not None}


def _is_of_batch(program: Program, node: Node) -> bool:
    return program.values[node.inputs[0]].shape[0] in (TOKENS, OUTPUTS)


def _matrix(program: Program, node: Node) -> Weight | None:
    """Return the matrix, stack or table of rows of a batch that are made with one, if it is."""
    is_made = node.op in ("matmul", "expert_matmul", "embed")
    return node.weights[0] if is_made and _is_of_batch(program, node) else None


def _bias(program: Program, node: Node) -> Weight | None:
    """Return the vector that a node adds to rows of a batch, if it does."""
    may_add = node.op in ("matmul", "layer_norm") and len(node.weights) > 1
    has_heads = len(program.values[node.inputs[0]].shape) > 2
    if has_heads or not (may_add or node.op == "shift_by") or not _is_of_batch(program, node):
        return None
    bias = node.weights[-1]
    return bias if bias is not None and len(bias.shape) == 1 else None


def _gain(program: Program, node: Node) -> Weight | None:
    """Return the vector that a norm of rows of a batch, or of their heads, multiplies by."""
    is_norm = node.op in ("rms_norm", "layer_norm") and len(node.weights) > 0
    return node.weights[0] if is_norm and _is_of_batch(program, node) else None


def adapt_products(
    program: Program, ranks: dict[str, int], n: int, n_used: int, names: tuple[str, str]
) -> Program:
    """Return a program in which adapters change products.

    Parameters
    ----------
    program : Program
    ranks : dict of str to int
        By the name that is asked for of each matrix, table or vector that adapters change, the
        largest of their ranks.
    n : int
        How many adapters there are; stacks have n + 1 matrices, the last one zeros, and of a stack
        of experts n times as many as it has, and one more. Of a table A has n times as many rows,
        and one more. Of a vector A is a table of n + 1 rows, and there is no B.
    n_used : int
        How many a row has at most.
    names : (str, str)
        What follows a matrix's name in those of its stacks A [n + 1, rank, in] and B [n + 1, out,
        rank]; A of several matrices has all of their names, with ``JOINT`` between them. That of a
        norm of heads has its name, and its rows their values, once for each head.
    """
    return _Adapting(program, ranks, n, n_used, names).finish()


class _Adapting:
    """Values and nodes of the program that is being made."""

    def __init__(
        self,
        program: Program,
        ranks: dict[str, int],
        n: int,
        n_used: int,
        names: tuple[str, str],
    ) -> None:
        self._program, self._ranks, self._n, self._names = program, ranks, n, names
        self._values, self._nodes = list(program.values), list[Node]()
        self._inputs = dict(program.inputs)
        self._given = self._add_input("adapters", n_used, "i32")
        self._scales = self._add_input("adapter_scales", n_used, "f32")
        self._of_rows: dict[Any, tuple[Value, Value]] = {}
        self._changed: dict[int, int] = {}
        self._tables = adapted_tables(program)
        self._siblings: dict[int, dict[str, Weight]] = {}
        self._low: dict[int, Value] = {}
        for node in program.nodes:
            matrix = _matrix(program, node)
            if node.op == "matmul" and matrix is not None and self._is_adapted(matrix):
                self._siblings.setdefault(node.inputs[0], {})[matrix.wanted] = matrix

    def _is_adapted(self, matrix: Weight) -> bool:
        """Say whether products by a matrix are changed."""
        return matrix.wanted in self._ranks and matrix.wanted not in self._tables

    def finish(self) -> Program:
        for node in self._program.nodes:
            inputs = tuple(self._changed.get(i, i) for i in node.inputs)
            self._nodes.append(msgspec.structs.replace(node, inputs=inputs))
            self._adapt_node(node, self._nodes[-1])
        outputs = {name: self._changed.get(i, i) for name, i in self._program.outputs.items()}
        program = msgspec.structs.replace(
            self._program,
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            inputs=self._inputs,
            outputs=outputs,
        )
        check(program)
        return program

    def _adapt_node(self, node: Node, made: Node) -> None:
        """Change what a node of the program makes, whose copy in the new one is ``made``."""
        matrix, bias = _matrix(self._program, node), _bias(self._program, node)
        gain = _gain(self._program, node)
        if matrix is not None and matrix.wanted in self._ranks:
            if node.op == "embed":
                self._changed[node.outputs[0]] = self._adapt_table(made, matrix)
            elif node.op == "expert_matmul" and self._is_adapted(matrix):
                self._changed[node.outputs[0]] = self._adapt_experts(made, matrix)
            elif self._is_adapted(matrix):
                siblings = [*self._siblings[node.inputs[0]].values()]
                self._changed[node.outputs[0]] = self._adapt(made, matrix, siblings)
        if gain is not None and gain.wanted in self._ranks:
            self._changed[node.outputs[0]] = self._adapt_norm(made, gain)
        if bias is not None and bias.wanted in self._ranks:
            self._changed[node.outputs[0]] = self._adapt_bias(node, bias)

    def _adapt(self, node: Node, matrix: Weight, siblings: list[Weight]) -> int:
        """Add what adapters make of a product, and return the id of the sum.

        ``siblings`` are all matrices that its input is multiplied by.
        """
        x, y = (self._values[i] for i in (node.inputs[0], node.outputs[0]))
        ids, scales = self._rows_of(x)
        ranks = [self._ranks[one.wanted] for one in siblings]
        if x.id not in self._low:
            name = JOINT.join(one.wanted for one in siblings) + self._names[0]
            down = Weight(name, name, (self._n + 1, sum(ranks), matrix.shape[1]))
            self._low[x.id] = self._add("expert_matmul", f"{node.name}.adapter_a", [x, ids], [down])
        low = self._low[x.id]
        if len(siblings) > 1:
            start = sum(ranks[: siblings.index(matrix)])
            stop = start + self._ranks[matrix.wanted]
            low = self._add("slice", f"{node.name}.adapter_part", [low], start=start, stop=stop)
        _, up = self._stacks(matrix, self._n + 1)
        high = self._add("expert_matmul", f"{node.name}.adapter_b", [low, ids], [up])
        inputs = [y, high, ids, scales]
        return self._add("add_chosen", f"{node.name}.adapted", inputs, n=self._n).id

    def _adapt_table(self, node: Node, table: Weight) -> int:
        """Add what adapters make of a token to its row, and return the id of the sum."""
        tokens, y = (self._values[i] for i in (node.inputs[0], node.outputs[0]))
        ids, scales = self._rows_of(tokens)
        name, (n_rows, width), rank = node.name, table.shape, self._ranks[table.wanted]
        down, up = self._named(table, (self._n * n_rows + 1, rank), (self._n + 1, width, rank))
        sizes = {"n_first": self._n + 1, "n_second": n_rows, "absent": node.attrs["absent"]}
        rows = self._add("token_ids", f"{name}.adapter_rows", [tokens, ids], **sizes)
        low = self._add("embed_ids", f"{name}.adapter_a", [rows], [down])
        high = self._add("expert_matmul", f"{name}.adapter_b", [low, ids], [up])
        if (factor := node.attrs["scale"]) != 1:
            high = self._add("scale", f"{name}.adapter_scaled", [high], factor=factor)
        inputs = [y, high, ids, scales]
        return self._add("add_chosen", f"{name}.adapted", inputs, n=self._n).id

    def _adapt_bias(self, node: Node, bias: Weight) -> int:
        """Add what adapters add to a bias, and return the id of the sum."""
        (made,) = node.outputs
        y = self._values[self._changed.get(made, made)]
        ids, scales = self._rows_of(y)
        rows = self._vectors_of(f"{node.name}.adapter_bias", ids, bias)
        inputs = [y, rows, ids, scales]
        return self._add("add_chosen", f"{node.name}.adapted_bias", inputs, n=self._n).id

    def _adapt_norm(self, node: Node, gain: Weight) -> int:
        """Add what adapters make of a norm, and return the id of the sum."""
        x, y = (self._values[i] for i in (node.inputs[0], node.outputs[0]))
        ids, scales = self._rows_of(x)
        name, has_heads = node.name, len(x.shape) > 2
        n_heads = int(x.shape[1]) if has_heads else 1
        plain = self._add(node.op, f"{name}.adapter_norm", [x], **node.attrs)
        if has_heads:
            plain = self._add("merge_heads", f"{name}.adapter_norm_row", [plain])
            y = self._add("merge_heads", f"{name}.row", [y])
        plain = self._add("split_heads", f"{name}.adapter_norm_once", [plain], n_heads=1)
        if (n_used := int(ids.shape[1])) > 1:
            plain = self._add("repeat", f"{name}.adapter_norms", [plain], n_heads=n_used)
        factors = self._vectors_of(f"{name}.adapter_factors", ids, gain, n_heads)
        change = self._add("mul", f"{name}.adapter_change", [plain, factors])
        inputs = [y, change, ids, scales]
        changed = self._add("add_chosen", f"{name}.adapted", inputs, n=self._n)
        if has_heads:
            changed = self._add("split_heads", f"{name}.adapted_heads", [changed], n_heads=n_heads)
        return changed.id

    def _vectors_of(self, name: str, ids: Value, vector: Weight, n_times: int = 1) -> Value:
        """Add adapters' rows of the table of a vector, which has each n_times side by side."""
        table_name = JOINT.join([vector.wanted] * n_times) + self._names[0]
        table = Weight(table_name, table_name, (self._n + 1, n_times * vector.shape[0]))
        return self._add("embed_ids", name, [ids], [table])

    def _adapt_experts(self, node: Node, matrix: Weight) -> int:
        """Add what adapters make of products by experts, and return the id of the sum."""
        x, chosen, y = (self._values[i] for i in (*node.inputs, node.outputs[0]))
        ids, scales = self._rows_of(x)
        n_experts, n_used, name = matrix.shape[0], int(y.shape[1]), node.name
        down, up = self._stacks(matrix, self._n * n_experts + 1)
        sizes: dict[str, Any] = {"n_first": self._n + 1, "n_second": n_experts}
        changes: list[Value] = []
        for i in range(int(ids.shape[1])):
            pairs = self._add("pair_ids", f"{name}.pairs_{i}", [ids, chosen], column=i, **sizes)
            low = self._add("expert_matmul", f"{name}.adapter_a_{i}", [x, pairs], [down])
            high = self._add("expert_matmul", f"{name}.adapter_b_{i}", [low, pairs], [up])
            changes.append(self._add("merge_heads", f"{name}.merged_{i}", [high]))
        joined = changes[0]
        if len(changes) > 1:
            joined = self._add("concat", f"{name}.joined", changes)
        each = self._add("split_heads", f"{name}.each", [joined], n_heads=len(changes))
        row = self._add("merge_heads", f"{name}.row", [y])
        changed = self._add("add_chosen", f"{name}.changed", [row, each, ids, scales], n=self._n)
        return self._add("split_heads", f"{name}.adapted", [changed], n_heads=n_used).id

    def _stacks(self, matrix: Weight, n: int) -> tuple[Weight, Weight]:
        """Return the stacks of n matrices each that adapters have beside a matrix."""
        rank, (n_out, n_in) = self._ranks[matrix.wanted], matrix.shape[-2:]
        return self._named(matrix, (n, rank, n_in), (n, n_out, rank))

    def _named(self, matrix: Weight, *shapes: tuple[int, ...]) -> tuple[Weight, Weight]:
        named = (matrix.wanted + name for name in self._names)
        down, up = (Weight(one, one, shape) for one, shape in zip(named, shapes, strict=True))
        return down, up

    def _rows_of(self, x: Value) -> tuple[Value, Value]:
        """Return ids and scales of the rows that a value has."""
        rows = x.shape[0]
        if rows not in self._of_rows:
            name = "adapters" if rows == TOKENS else "adapters.outputs"
            ids = self._add("given_ids", name, [self._given], n=self._n, rows=rows)
            scales = self._scales
            if rows == OUTPUTS:
                scales = self._add("outputs", "adapter_scales.outputs", [scales])
            self._of_rows[rows] = ids, scales
        return self._of_rows[rows]

    def _add_input(self, name: str, n_used: int, dtype: Any) -> Value:
        value = Value(len(self._values), name, (TOKENS, n_used), dtype)
        self._values.append(value)
        self._inputs[name] = value.id
        return value

    def _add(
        self,
        op: str,
        name: str,
        inputs: list[Value],
        weights: Collection[Weight] = (),
        **attrs: Any,
    ) -> Value:
        shapes = [weight.shape for weight in weights]
        ((shape, dtype, n_experts),) = infer(op, name, inputs, shapes, attrs)
        value = Value(len(self._values), name, shape, dtype, n_experts)  # type: ignore[arg-type]
        self._values.append(value)
        ids = tuple(each.id for each in inputs)
        self._nodes.append(Node(op, name, ids, (value.id,), tuple(weights), attrs))
        return value
