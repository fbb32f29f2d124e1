"""The grammar at work: what a node makes, and whether a whole program keeps to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtpcore.errors import GraphError
from mtpcore.graph.ops import OPS, Made, Mismatch, Weights
from mtpcore.graph.program import Program, Value

__all__ = ["check", "infer"]


def infer(
    op: str,
    node: str,
    inputs: Sequence[Value],
    weights: Weights,
    attrs: dict[str, Any],
    tensors: Sequence[str] = (),
) -> Made:
    """Return shape and dtype of each output of ``op``.

    Raises
    ------
    GraphError
        Unknown operation, wrong number of inputs or weights, numbers of another type, attributes
        that differ from the table's, or shapes that do not fit; names node, tensors and shapes.
    """
    where = f"{node} ({op}{''.join(f', {t}' for t in tensors)})"
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
        return rule.shape([value.shape for value in inputs], weights, attrs)
    except Mismatch as error:
        raise GraphError(error.what, where=where, wanted=error.wanted, got=error.got) from None


def check(program: Program) -> None:
    """Verify a whole program against the grammar.

    Raises
    ------
    GraphError
        A node reads a value that no earlier node made, a shape differs from what the rule gives,
        an output names nothing, or embedding rows are not read by every ``embed`` and by it alone.
    """
    known = set(program.inputs.values())
    for node in program.nodes:
        missing = [i for i in node.inputs if i not in known]
        if missing:
            raise GraphError("reads values that nothing made", where=node.name, got=missing)
        made = infer(
            node.op,
            node.name,
            [program.values[i] for i in node.inputs],
            [w.shape if w else None for w in node.weights],
            node.attrs,
            [w.tensor for w in node.weights if w],
        )
        found = tuple((program.values[i].shape, program.values[i].dtype) for i in node.outputs)
        if made != found:
            raise GraphError(
                "shape differs from the rule's", where=node.name, wanted=made, got=found
            )
        known.update(node.outputs)
    lost = [name for name, i in program.outputs.items() if i not in known]
    if lost:
        raise GraphError("outputs that nothing made", where=program.name, got=lost)
    _check_embeddings(program)


def _check_embeddings(program: Program) -> None:
    """Refuse a graph that needs more of embedding rows than the rows of tokens that are -1."""
    rows = program.inputs.get("embeddings")
    if rows is None:
        return
    for node in program.nodes:
        if node.op == "embed" and len(node.inputs) < 2:
            raise GraphError(
                "a token may be -1, for an embedding row stands in its place",
                where=node.name,
                wanted="embed(..., rows=True), as elsewhere in this graph",
            )
        if rows in node.inputs and node.op != "embed":
            raise GraphError(
                "embedding rows are there for some tokens only",
                where=node.name,
                wanted="what embed(..., rows=True) returns",
            )
    named = [name for name, i in program.outputs.items() if i == rows]
    if named:
        raise GraphError(
            "embedding rows are there for some tokens only",
            where=f"{program.name}, outputs {', '.join(named)}",
            wanted="what embed(..., rows=True) returns",
        )
