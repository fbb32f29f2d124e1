"""The rules of ``ops.py`` applied: shapes of a node's outputs, and checks of whole programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from mtpcore.errors import GraphError
from mtpcore.gguf.axes import fit_axes
from mtpcore.graph.ops import OPS, Mismatch, OpRule, WeightShapes
from mtpcore.graph.program import SOURCES, TOKENS, Program, Shape, Value, Weight

__all__ = ["check", "fit_weights", "infer"]

_FIX = (
    "convert the model again, or give the right file: its tensors do not fit each other or its "
    "metadata (in a new graph: see what this node reads)"
)


_LOOKED_UP = ("embed", "embed_by_position")
"""Operations that look tokens up."""
_READ_GIVEN = (*_LOOKED_UP, "embedding_rows")
"""Operations that read embedding rows for the tokens in whose place they stand."""


def fit_weights(
    op: str, inputs: Sequence[Value], weights: Sequence[Weight | None]
) -> tuple[Weight | None, ...]:
    """Return weights in the shapes in which an operation reads them.

    Files leave axes of 1 out, or spell out more of them than there need be; what norms each head by
    weights of its own is a matrix of vectors; files of ik_llama.cpp hold matrices of heads as one
    matrix. Other shapes are left to ``infer``, which refuses them.
    """
    if op not in OPS or len(weights) > len(OPS[op].axes):
        return tuple(weights)
    rule, fitted = OPS[op], list(weights)
    for i, weight in enumerate(weights):
        if weight is not None:
            shape = weight.shape
            if op == "causal_conv" and len(shape) > 2 and shape[-2] == 1:
                shape = (*shape[:-2], shape[-1])  # as checkpoints have it: [channels, 1, kernel]
            if i == 0 and rule.joins_heads:
                shape = _split_heads(shape, inputs[0].shape)
            is_of_heads = shape == (*inputs[0].shape[1:-1], 1)
            if rule.axes[i] == 1 and math.prod(shape) == inputs[0].shape[-1] and not is_of_heads:
                shape = (math.prod(shape),)
            fitted[i] = msgspec.structs.replace(weight, shape=fit_axes(shape, rule.axes[i]))
    return tuple(fitted)


def _split_heads(matrix: tuple[int, ...], rows: Shape) -> tuple[int, ...]:
    """Return the stack [heads, outputs, inputs] that a matrix is for rows of that many heads."""
    matrix = fit_axes(matrix, 2)
    n_heads = rows[1] if len(rows) == 3 else 0
    if len(matrix) != 2 or not isinstance(n_heads, int) or n_heads < 1 or matrix[0] % n_heads:
        return matrix
    return (n_heads, matrix[0] // n_heads, matrix[1])


def infer(
    op: str,
    node: str,
    inputs: Sequence[Value],
    weights: WeightShapes,
    attrs: dict[str, Any],
    tensors: Sequence[str] = (),
) -> tuple[tuple[Shape, str, int], ...]:
    """Return of each output of ``op`` its shape, dtype, and among how many experts it chooses.

    Raises
    ------
    GraphError
        Unknown operation, wrong number of inputs or weights, numbers of another type, attributes
        that differ from the table's, or shapes that do not fit; names the node, its tensors (or
        inputs, where it reads none) and shapes.
    """
    where = f"{node} ({', '.join([op, *(tensors or [value.name for value in inputs])])})"
    if op not in OPS:
        raise GraphError("unknown operation", where=where, wanted=", ".join(OPS))
    rule = OPS[op]
    for what, span, count in (
        ("inputs", rule.inputs, len(inputs)),
        ("weights", rule.weights, len(weights)),
    ):
        if not span[0] <= count <= span[1]:
            raise GraphError(
                f"wrong number of {what}", where=where, wanted=f"{span[0]} to {span[1]}", got=count
            )
    if set(attrs) != rule.attrs:
        raise GraphError(
            "wrong attributes", where=where, wanted=sorted(rule.attrs), got=sorted(attrs)
        )
    for i, value in enumerate(inputs):
        wanted = "i32" if i in rule.integers else "f32"
        if value.dtype != wanted:
            raise GraphError(
                "numbers of another type",
                where=where,
                wanted=f"{wanted} as input {i + 1}",
                got=f"{value.name}, {value.dtype}",
            )
    try:
        outputs = rule.shape([value.shape for value in inputs], weights, attrs)
        _check_ids(rule, inputs, weights, attrs)
    except Mismatch as error:
        raise GraphError(
            error.what, where=where, wanted=error.wanted, got=error.got, fix=_FIX
        ) from None
    return tuple(
        (shape, dtype, _n_choices(op, inputs, weights, attrs) if dtype == "i32" else 0)
        for shape, dtype in outputs
    )


def _n_choices(
    op: str, inputs: Sequence[Value], weights: WeightShapes, attrs: dict[str, Any]
) -> int:
    """Return among how many experts, groups of them or columns the ids that ``op`` makes choose."""
    if op == "given_ids":
        return int(attrs["n"]) + 1
    if op == "token_ids":
        return (inputs[1].n_experts - 1) * int(attrs["n_second"]) + 1
    if op == "pair_ids":
        return (inputs[0].n_experts - 1) * inputs[1].n_experts + 1
    if op == "group_ids":
        return inputs[0].n_experts // int(attrs["n_of_group"])
    return int(weights[0][0] if weights and weights[0] else inputs[0].shape[-1])


def _check_ids(
    rule: OpRule, inputs: Sequence[Value], weights: WeightShapes, attrs: dict[str, Any]
) -> None:
    """Refuse ids of experts where none belong, and those of other experts than are stacked."""
    for i, value in enumerate(inputs):
        if i not in rule.ids:
            if value.n_experts:
                raise Mismatch("ids of experts", "tokens or positions", value.name)
            continue
        if not value.n_experts:
            raise Mismatch("no ids", "what a route chose, or find_best found", value.name)
        if "column" in attrs:
            n = attrs[("n_first", "n_second")[i]]
            if n != value.n_experts:
                raise Mismatch("not as many ids as are paired", value.n_experts, n)
            continue
        if "absent" in attrs:
            if attrs["n_first"] != value.n_experts:
                raise Mismatch("not as many tables as ids", value.n_experts, attrs["n_first"])
            continue
        if "n" in attrs:
            if attrs["n"] + 1 != value.n_experts:
                raise Mismatch("not as many ids as are chosen of", value.n_experts - 1, attrs["n"])
            continue
        if "n_of_group" in attrs:
            if value.n_experts % attrs["n_of_group"]:
                raise Mismatch("groups do not fit", f"a divisor of {value.n_experts}", attrs)
            continue
        stack = weights[0] if weights else None
        n = attrs.get("n_clusters", attrs.get("width", stack[0] if stack else 0))
        if n != value.n_experts:
            raise Mismatch(
                "not one matrix, row or column for each id", (value.n_experts, "..."), stack or n
            )


def check(program: Program) -> None:
    """Check a whole program against the rules of its operations.

    Raises
    ------
    GraphError
        A node reads a value that no earlier node made, a shape differs from what the rule gives,
        an input is none that a batch has, an output names nothing, or embedding rows are not read
        by every ``embed`` and by it alone.
    """
    for name, i in program.inputs.items():
        _check_input(name, program.values[i])
    whole = [name for name, i in program.inputs.items() if program.values[i].shape[0] == SOURCES]
    if len(whole) > 1:
        raise GraphError(
            "one slot of a graph is fed whole sequences", where=program.name, got=", ".join(whole)
        )
    known = set(program.inputs.values())
    for node in program.nodes:
        missing = [i for i in node.inputs if i not in known]
        if missing:
            raise GraphError("reads values that nothing made", where=node.name, got=missing)
        inferred = infer(
            node.op,
            node.name,
            [program.values[i] for i in node.inputs],
            [w.shape if w else None for w in node.weights],
            node.attrs,
            [w.tensor for w in node.weights if w],
        )
        outputs = [program.values[i] for i in node.outputs]
        declared = tuple((value.shape, value.dtype, value.n_experts) for value in outputs)
        if inferred != declared:
            raise GraphError(
                "shape differs from the rule's", where=node.name, wanted=inferred, got=declared
            )
        known.update(node.outputs)
    lost = [name for name, i in program.outputs.items() if i not in known]
    if lost:
        raise GraphError("outputs that nothing made", where=program.name, got=lost)
    _check_embeddings(program)


def _check_input(name: str, value: Value) -> None:
    """Refuse an input that is neither tokens, positions nor float32 rows."""
    kinds = {
        "tokens": ("i32", 1),
        "positions": ("i32", 2),
        "codes": ("i32", 2),
        "adapters": ("i32", 2),
    }
    dtype, n_axes = kinds.get(name, ("f32", 2))
    fits = value.dtype == dtype and len(value.shape) == n_axes and value.n_experts == 0
    rows, *widths = value.shape
    is_slot = name not in ("tokens", "positions", "embeddings")
    counts = rows == TOKENS or (is_slot and rows == SOURCES)
    if not fits or not counts or not all(isinstance(n, int) for n in widths):
        raise GraphError(
            "an input that no batch has",
            where=name,
            wanted="tokens i32[n_tokens], positions i32[n_tokens, axes], codes or adapters "
            "i32[n_tokens, n], or f32[n_tokens, width]",
            got=f"{value.dtype}{list(value.shape)}",
        )


def _check_embeddings(program: Program) -> None:
    """Refuse a graph that needs more of embedding rows than the rows of tokens that are -1."""
    rows = program.inputs.get("embeddings")
    if rows is None:
        return
    for node in program.nodes:
        lacks = node.op in _LOOKED_UP and rows not in node.inputs
        if lacks and node.attrs.get("absent", -1) < 0:
            raise GraphError(
                "a token may be -1, for an embedding row stands in its place",
                where=node.name,
                wanted="embed(..., embeddings=True), or absent=, as elsewhere in this graph",
            )
        if rows in node.inputs and node.op not in _READ_GIVEN:
            raise GraphError(
                "embedding rows are there for some tokens only",
                where=node.name,
                wanted="what embed(..., embeddings=True) or embedding_rows() returns",
            )
    named = [name for name, i in program.outputs.items() if i == rows]
    if named:
        raise GraphError(
            "embedding rows are there for some tokens only",
            where=f"{program.name}, outputs {', '.join(named)}",
            wanted="what embed(..., embeddings=True) or embedding_rows() returns",
        )
