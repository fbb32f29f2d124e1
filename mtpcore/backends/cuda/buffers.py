"""Which values of a program share memory: one is written over when nobody reads it any more."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mtpcore.graph.program import Node, Program

__all__ = ["VIEWS", "share_buffers"]

VIEWS = ("split_heads", "merge_heads")
"""Operations whose output is their input's memory with another shape."""


def share_buffers(
    program: Program, n_batch: int, groups: Sequence[Sequence[Node]]
) -> tuple[dict[int, int], list[int]]:
    """Return the buffer of each value, and the bytes of each buffer, for ``n_batch`` rows.

    ``groups`` are the program's nodes in the order in which they run, those of a group in any
    order. Inputs and outputs of the program have buffers of their own, and so has, within its
    group, each value that a group reads or makes.
    """
    sizes = [4 * n_batch * prod(int(n) for n in value.shape[1:]) for value in program.values]
    owner = list(range(len(sizes)))  # the value whose memory it is
    last = [-1] * len(sizes)  # the node that is the last to read an owner's memory
    for number, group in enumerate(groups):
        for node in group:
            if node.op in VIEWS:
                owner[node.outputs[0]] = owner[node.inputs[0]]
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
        for value in made:
            if owner[value] != value:
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
