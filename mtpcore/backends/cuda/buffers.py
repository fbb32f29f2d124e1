"""Which values of a program share memory: one is written over when nobody reads it any more.

Parts that are cut out of rows, or joined to rows, lie in these where kernels can read and write so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from mtpcore.graph.program import Node, Program

__all__ = ["VIEWS", "Columns", "columns_of_others", "share_buffers"]

VIEWS = ("split_heads", "merge_heads")
"""Operations whose output is their input's memory with another shape."""


_READERS = ("rope", "rms_norm", "layer_norm", "l2_norm", "head_matmul", "concat")
_WRITERS = ("rope", "rms_norm", "layer_norm", "l2_norm", "head_matmul")
"""Operations that can read, or write, columns of wider rows."""
_ALIGNED = 4
"""Values that kernels read at once."""


class Columns(NamedTuple):
    """Where a value lies: from column ``begin`` on in another's rows, of ``pitch`` values each."""

    of: int
    begin: int
    pitch: int


def columns_of_others(program: Program, block_of: Callable[[Node], int]) -> dict[int, Columns]:
    """Return values that are no memory of their own: parts that are cut out of rows, or joined.

    ``block_of`` is that of ``fusion.fuse``.
    """
    return _Columns(program, block_of).found


class _Columns:
    """A walk through a program, which looks at what makes and reads parts."""

    def __init__(self, program: Program, block_of: Callable[[Node], int]) -> None:
        self.found: dict[int, Columns] = {}
        self._values, self._block_of = program.values, block_of
        self._own = {*program.inputs.values(), *program.outputs.values()}
        self._made_by = {value: node for node in program.nodes for value in node.outputs}
        self._readers: dict[int, list[Node]] = {value.id: [] for value in program.values}
        for node in program.nodes:
            for value in node.inputs:
                self._readers[value].append(node)
        for node in program.nodes:
            if node.op == "slice":
                self._cut(node)
            if node.op == "concat":
                self._join(node)

    def _cut(self, node: Node) -> None:
        """Let those that read a slice read it where it is."""
        (x,), (part,) = node.inputs, node.outputs
        seen = self._seen_as(part)
        readers = [n for value in seen for n in self._readers[value] if n.op not in VIEWS]
        can_read = all(self._can(n, _READERS) and not self._is_attended(n) for n in readers)
        self._put(seen if can_read and x not in self.found else [], x, node.attrs["start"])

    def _join(self, node: Node) -> None:
        """Let those that make parts make them where they are joined."""
        (whole,), to = node.outputs, 0
        for part in node.inputs:
            made = part
            while (maker := self._made_by.get(made)) and maker.op in VIEWS:
                (made,) = maker.inputs
            seen = self._seen_as(made)
            readers = [n for value in seen for n in self._readers[value] if n.op not in VIEWS]
            is_alone = part in seen and readers == [node] and list(node.inputs).count(part) == 1
            can_write = maker is not None and self._can(maker, _WRITERS)
            self._put(seen if is_alone and can_write else [], whole, to)
            to += self._width(part)

    def _put(self, values: Sequence[int], of: int, begin: int) -> None:
        pitch = self._width(of)
        if begin % _ALIGNED == pitch % _ALIGNED == 0 and not self._own.intersection(values):
            self.found.update(dict.fromkeys(values, Columns(of, begin, pitch)))

    def _seen_as(self, value: int) -> list[int]:
        """Return a value with its views, if all have the same rows; nothing otherwise."""
        seen = [value]
        for one in seen:
            seen += [n.outputs[0] for n in self._readers[one] if n.op in VIEWS]
        return seen if {self._width(one) for one in seen} == {self._width(value)} else []

    def _can(self, node: Node, operations: tuple[str, ...]) -> bool:
        return node.op in operations and (node.op != "head_matmul" or self._block_of(node) > 0)

    def _is_attended(self, node: Node) -> bool:
        """Whether attention rotates what it reads."""
        readers = (n for value in node.outputs for n in self._readers[value])
        return node.op == "rope" and any(n.op == "attention" for n in readers)

    def _width(self, value: int) -> int:
        return int(self._values[value].shape[-1])


def share_buffers(
    program: Program,
    n_batch: int,
    groups: Sequence[Sequence[Node]],
    columns: Mapping[int, Columns] = MappingProxyType({}),
) -> tuple[dict[int, int], list[int]]:
    """Return the buffer of each value, and the bytes of each buffer, for ``n_batch`` rows.

    ``groups`` are the program's nodes in the order in which they run, those of a group in any
    order. Inputs and outputs of the program have buffers of their own, and so has, within its
    group, each value that a group reads or makes, but for ``columns`` of others.
    """
    sizes = [4 * n_batch * prod(int(n) for n in value.shape[1:]) for value in program.values]
    owner = list(range(len(sizes)))  # the value whose memory it is
    last = [-1] * len(sizes)  # the node that is the last to read an owner's memory
    for node in program.nodes:
        if node.op in VIEWS:
            owner[node.outputs[0]] = owner[node.inputs[0]]
    for value, place in columns.items():
        owner[value] = owner[place.of]
    for number, group in enumerate(groups):
        for node in group:
            for value in (*node.inputs, *node.outputs):
                last[owner[value]] = number
    kept = {owner[value] for value in (*program.inputs.values(), *program.outputs.values())}

    buffers: dict[int, int] = {}
    n_bytes: list[int] = []
    free: list[int] = []
    for value in sorted(program.inputs.values()):
        buffers[value] = len(n_bytes)
        n_bytes.append(sizes[value])
    for number, group in enumerate(groups):
        made = [value for node in group for value in node.outputs]
        for value in dict.fromkeys(owner[value] for value in made):
            if value in buffers:
                continue
            if value in kept or not free:
                buffers[value] = len(n_bytes)
                n_bytes.append(sizes[value])
                continue
            # The smallest that has room, or else the largest, which grows.
            fitting = [buffer for buffer in free if n_bytes[buffer] >= sizes[value]]
            size = n_bytes.__getitem__
            taken = min(fitting, key=size) if fitting else max(free, key=size)
            free.remove(taken)
            n_bytes[taken] = max(n_bytes[taken], sizes[value])
            buffers[value] = taken
        read = [value for node in group for value in node.inputs]
        for value in {owner[value] for value in (*read, *made)} - kept:
            if last[value] == number:
                free.append(buffers[value])
    of_values = {value: buffers[own] for value, own in enumerate(owner) if own in buffers}
    return of_values, n_bytes
