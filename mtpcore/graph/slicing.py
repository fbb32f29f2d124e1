"""Programs that compute a part of an output, with some rows of its matrix."""

from __future__ import annotations

import msgspec

from mtpcore.errors import GraphError
from mtpcore.graph.program import Node, Program, Weight

__all__ = ["slice_output"]

_EACH_ALONE = ("scale", "activation")
"""Operations that make each entry of their output from the same entry of their input."""


def slice_output(program: Program, output: str, n: int, suffix: str) -> tuple[Program, list[str]]:
    """Return a program whose ``output`` has ``n`` entries a row, and the tensors cut for that.

    Its matmul reads tensors of these names with ``suffix`` appended, which must hold ``n`` of
    their rows. Nothing else changes.

    Raises
    ------
    GraphError
        The output does not come from a matmul and operations on single entries, or the graph
        itself reads it.
    """
    made_by = {value: node for node in program.nodes for value in node.outputs}
    shrunk = [program.outputs[output]]
    while (node := made_by.get(shrunk[-1])) is not None and node.op in _EACH_ALONE:
        shrunk.append(node.inputs[0])
    readers = [
        reader.name
        for reader in program.nodes
        if set(reader.inputs) & set(shrunk) and not set(reader.outputs) & set(shrunk)
    ]
    others = [name for name, value in program.outputs.items() if value in shrunk and name != output]
    if node is None or node.op != "matmul" or readers or others:
        raise GraphError(
            f"{output} cannot be made in part",
            where=program.name,
            wanted="a product by a matrix, with nothing but scale and activation after it, and "
            "no other reader",
            got=", ".join([*readers, *others]) or (node.op if node else "an input"),
        )
    cut = [weight.tensor for weight in node.weights if weight is not None]
    values = [
        msgspec.structs.replace(value, shape=(value.shape[0], n)) if value.id in shrunk else value
        for value in program.values
    ]
    nodes = [_cut(each, n, suffix) if each is node else each for each in program.nodes]
    return msgspec.structs.replace(program, values=tuple(values), nodes=tuple(nodes)), cut


def _cut(node: Node, n: int, suffix: str) -> Node:
    def rows_of(weight: Weight | None) -> Weight | None:
        if weight is None:
            return None
        return msgspec.structs.replace(
            weight, tensor=weight.tensor + suffix, shape=(n, *weight.shape[1:])
        )

    return msgspec.structs.replace(node, weights=tuple(map(rows_of, node.weights)))
