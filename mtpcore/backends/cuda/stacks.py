"""A shared expert as the last one of its experts' stack, which every row chooses with a share of 1.

Its products then run in the launches of those that are chosen, and are mixed with them: adding
what it makes is the last of a mix's multiply-adds, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mtpcore.graph.program import Node, Program, Value, Weight

__all__ = ["SHARED", "stack_shared_experts"]

SHARED = "shared"
"""The attribute of an ``expert_matmul`` that is the shared expert's ``Weight``, if it has one."""


class _Expert(NamedTuple):
    """The nodes of an expert, or of those that rows choose."""

    gate: Node
    up: Node
    gated: Node
    down: Node

    @property
    def products(self) -> tuple[Node, Node, Node]:
        """Nodes with weights."""
        return self.gate, self.up, self.down


class _Found(NamedTuple):
    """Experts that are chosen, with what chooses and mixes them, the shared one, and the sum."""

    route: Node
    chosen: _Expert
    mix: Node
    shared: _Expert
    total: Node


def stack_shared_experts(program: Program, are_alike: Callable[[Weight, Weight], bool]) -> Program:
    """Return a program in which shared experts are chosen, where they can be.

    Ids and shares have a rank more than the route has experts to choose: a route whose outputs are
    that wide chooses the expert after all others last. The node of a product names the tensor
    after its stack in the attribute ``SHARED``.

    Parameters
    ----------
    program : Program
    are_alike : callable
        Whether the second weight can be one more matrix of the first one, a stack.
    """
    walk, values = _Walk(program), list(program.values)
    instead: dict[int, Node | None] = {}  # of a node, by its first output
    for node in program.nodes:
        found = walk.shared_of(node) if node.op == "add" else None
        if found is None or not all(
            are_alike(_weight(one), _weight(other))
            for one, other in zip(found.chosen.products, found.shared.products, strict=True)
        ):
            continue
        for one, other in zip(found.chosen.products, found.shared.products, strict=True):
            attrs = one.attrs | {SHARED: _weight(other)}
            instead[one.outputs[0]] = msgspec.structs.replace(one, attrs=attrs)
        for gone in (*found.shared, found.total):
            instead[gone.outputs[0]] = None
        instead[found.mix.outputs[0]] = msgspec.structs.replace(
            found.mix, outputs=found.total.outputs
        )
        for wider in (found.route, *found.chosen):
            for value in wider.outputs:
                values[value] = _with_one_more(values[value])
    nodes = (instead.get(node.outputs[0], node) if node.outputs else node for node in program.nodes)
    kept = tuple(node for node in nodes if node is not None)
    return msgspec.structs.replace(program, values=tuple(values), nodes=kept)


def _with_one_more(value: Value) -> Value:
    """Return a value with one rank more, among one expert more."""
    n_rows, n_ranks, *width = value.shape
    n_experts = value.n_experts and value.n_experts + 1
    shape = (n_rows, int(n_ranks) + 1, *width)
    return msgspec.structs.replace(value, shape=shape, n_experts=n_experts)


def _weight(node: Node) -> Weight:
    (weight,) = filter(None, node.weights)
    return weight


class _Walk:
    """Who makes and reads the values of a program."""

    def __init__(self, program: Program) -> None:
        self._made_by = {value: node for node in program.nodes for value in node.outputs}
        self._readers: dict[int, list[Node]] = {value.id: [] for value in program.values}
        for node in program.nodes:
            for value in node.inputs:
                self._readers[value].append(node)
        self._outputs = set(program.outputs.values())

    def shared_of(self, total: Node) -> _Found | None:
        """Return what a sum adds, if that is a shared expert and a mix of others, and no more."""
        for mixed, alone in (total.inputs, total.inputs[::-1]):
            mix, shared = self._maker(mixed, "mix"), self._expert(alone, "matmul")
            if mix is None or shared is None:
                continue
            route = self._made_by.get(mix.inputs[1])
            chosen = self._expert(mix.inputs[0], "expert_matmul")
            if route is None or chosen is None:
                continue
            read = {value for node in (shared.gate, shared.up) for value in node.inputs}
            same = {node.inputs[0] for node in (chosen.gate, chosen.up)} == read
            same &= len(read) == 1 and chosen.gated.attrs == shared.gated.attrs
            if same and self._are_all_of(route, chosen, mix):
                return _Found(route, chosen, mix, shared, total)
        return None

    def _are_all_of(self, route: Node, chosen: _Expert, mix: Node) -> bool:
        """Whether these, and nobody else, read what a route chooses."""
        if route.op != "route" or self._outputs.intersection(route.outputs):
            return False
        ids, shares = route.outputs
        made = [{node.outputs[0] for node in self._readers[value]} for value in (ids, shares)]
        return (
            mix.inputs[1] == shares
            and {node.inputs[1] for node in chosen.products} == {ids}
            and made == [{node.outputs[0] for node in chosen.products}, {*mix.outputs}]
        )

    def _expert(self, value: int, op: str) -> _Expert | None:
        """Return the nodes that make a value by such products, without biases."""
        down = self._maker(value, op)
        gated = None if down is None else self._maker(down.inputs[0], "gated")
        if down is None or gated is None:
            return None
        gate, up = (self._maker(given, op) for given in gated.inputs)
        if gate is None or up is None:
            return None
        found = _Expert(gate, up, gated, down)
        has_biases = any(len([*filter(None, node.weights)]) > 1 for node in found.products)
        return None if has_biases else found

    def _maker(self, value: int, op: str) -> Node | None:
        """Return the node of this operation that makes a value, which is read once."""
        node = self._made_by.get(value)
        is_read_once = len(self._readers[value]) == 1 and value not in self._outputs
        return node if node is not None and node.op == op and is_read_once else None
