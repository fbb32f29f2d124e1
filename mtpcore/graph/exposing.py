"""Graphs that hand out what matrices are multiplied with, beside what they make.

What several matrices read is handed out once::

    %q = matmul(%x, Wq)
    %k = matmul(%x, Wk)               # output "read %x", of Wq and Wk
    %u = expert_matmul(%x, %ids, U)   # outputs "read %x" and "read %ids", of U

Nodes that keep the rows whose logits are wanted fall away: all rows are handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from mtpcore.graph.inference import check
from mtpcore.graph.program import OUTPUTS, SOURCES, TOKENS, Node, Program, Weight

__all__ = ["ProductInput", "delivered_products", "expose_products"]

Read = Literal["one", "heads", "ids"]

_PRODUCTS: dict[str, Read] = {
    "matmul": "one",
    "rank_matmul": "one",
    "cluster_matmul": "one",
    "route": "one",
    "head_matmul": "heads",
    "expert_matmul": "ids",
}
"""Operations that multiply by their first weight, and by which of its matrices."""


class ProductInput(msgspec.Struct, frozen=True):
    """Rows that matrices are multiplied with.

    Attributes
    ----------
    rows : str
        The output that has them: f32[n_tokens, width], or f32[n_tokens, n, width] of ranks or
        heads.
    ids : str or None
        The output i32[n_tokens, n_used] that says by which matrices of a stack a row is
        multiplied: row t, or its rank r, by matrix ids[t, r].
    read : {"one", "heads", "ids"}
        By which matrix a row is multiplied: by the one there is, that of its head, or those of its
        ids.
    weights : tuple of Weight
        The matrices.
    """

    rows: str
    ids: str | None
    read: Read
    weights: tuple[Weight, ...]


def expose_products(
    program: Program, *, logits: bool, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Program, tuple[ProductInput, ...]]:
    """Return a program that hands out what its products read, and what that is.

    Not among it are rows of whole sequences that another graph delivers, for which see
    ``delivered_products``, and what is multiplied by a matrix for each position.

    Parameters
    ----------
    program : Program
    logits : bool
        Whether logits are still made, then of every row. What only they need falls away with them.
    wanted : callable
        Says of a tensor whether what it is multiplied with is handed out; default: of all.
    """
    whole = _of_all_rows(program)
    outputs = {name: i for name, i in whole.outputs.items() if logits or name != "logits"}
    found: dict[tuple[int, int | None, Read], list[Weight]] = {}
    for node in whole.nodes:
        read, weight = _PRODUCTS.get(node.op), node.weights[0] if node.weights else None
        rows = node.inputs[0] if node.inputs else -1
        if read is None or weight is None or not wanted(weight.tensor):
            continue
        if whole.values[rows].shape[0] == SOURCES:
            continue
        ids = node.inputs[1] if read == "ids" else None
        found.setdefault((rows, ids, read), []).append(weight)
    exposed = []
    for (rows, ids, read), weights in found.items():
        outputs[f"read %{rows}"] = rows
        if ids is not None:
            outputs[f"read %{ids}"] = ids
        of_ids = None if ids is None else f"read %{ids}"
        exposed.append(ProductInput(f"read %{rows}", of_ids, read, tuple(weights)))
    made = msgspec.structs.replace(whole, outputs=outputs, nodes=_needed(whole.nodes, outputs))
    check(made)
    return made, tuple(exposed)


def delivered_products(program: Program) -> tuple[Weight, ...]:
    """Return the matrices that the rows of whole sequences, which others deliver, go through."""
    rows = {i for i in program.inputs.values() if program.values[i].shape[0] == SOURCES}
    return tuple(
        weight
        for node in program.nodes
        if _PRODUCTS.get(node.op) == "one" and node.inputs[0] in rows
        for weight in node.weights[:1]
        if weight is not None
    )


def _of_all_rows(program: Program) -> Program:
    """Return a program in which every row is an output."""
    kept: dict[int, int] = {}
    nodes = []
    for node in program.nodes:
        inputs = tuple(kept.get(i, i) for i in node.inputs)
        if node.op == "outputs":
            kept[node.outputs[0]] = inputs[0]
        else:
            nodes.append(msgspec.structs.replace(node, inputs=inputs))
    values = tuple(
        msgspec.structs.replace(value, shape=(TOKENS, *value.shape[1:]))
        if value.shape[0] == OUTPUTS
        else value
        for value in program.values
    )
    outputs = {name: kept.get(i, i) for name, i in program.outputs.items()}
    return msgspec.structs.replace(program, values=values, nodes=tuple(nodes), outputs=outputs)


def _needed(nodes: tuple[Node, ...], outputs: dict[str, int]) -> tuple[Node, ...]:
    """Return the nodes that outputs are made by, and those that store something."""
    read, needed = set(outputs.values()), []
    for node in reversed(nodes):
        if read.intersection(node.outputs) or "layer" in node.attrs:
            read.update(node.inputs)
            needed.append(node)
    return tuple(reversed(needed))
