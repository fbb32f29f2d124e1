"""Which values are written where a concat needs them, so that the concat copies nothing.

The plan rests on one rule: a value has one view of one buffer, which is settled before the first
step that touches it and never changes; each place of a buffer is written once, before it is read.

``slice``, ``heads``, ``rows`` and ``repeat`` make no array of their own: they return another name
for what they read. So an array is read wherever one of its names is. Only one that is read in a
single place, whole, by a concat, may be made inside the concat's rows: then nobody else looks for
it, and no step reads from the buffer that it writes to.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mtpcore.graph.program import Program

__all__ = ["ConcatTarget", "find_concat_targets"]

_NAMES = frozenset({"slice", "split_heads", "merge_heads", "repeat"})
_OF_ALL = frozenset({"split_heads", "merge_heads"})
"""Names for a whole array."""
_CLOSE = frozenset({"expert_matmul", "head_matmul", "matmul_by_position", "rank_matmul"})
"""Operations that write rows which follow each other."""


class ConcatTarget(NamedTuple):
    """Where a value is written: in the rows of value ``whole``, from entry ``offset`` on."""

    whole: int
    offset: int


def find_concat_targets(program: Program) -> dict[int, ConcatTarget]:
    """Return where values are written that are parts of another one."""
    array_of = {value.id: value.id for value in program.values}
    is_part: set[int] = set()  # names for less than an array, or for more
    is_close = set(program.inputs.values())
    n_readings: Counter[int] = Counter()
    for node in program.nodes:
        if node.op in _NAMES:
            (result,), (source,) = node.outputs, node.inputs
            array_of[result] = array_of[source]
            if node.op not in _OF_ALL or source in is_part:
                is_part.add(result)
        else:
            n_readings.update(array_of[i] for i in node.inputs)
        if node.op in _CLOSE:
            is_close.update(node.outputs)
    n_readings.update(array_of[i] for i in program.outputs.values())
    places: dict[int, ConcatTarget] = {}
    for node in program.nodes:
        offset = 0
        for i in node.inputs if node.op == "concat" else ():
            array = array_of[i]
            is_alone = n_readings[array] == 1 and array not in is_close
            if is_alone and i not in is_part and (i == array or _has_one_head(program, array, i)):
                places[array] = ConcatTarget(node.outputs[0], offset)
            offset += int(program.values[i].shape[-1])
    return places


def _has_one_head(program: Program, *values: int) -> bool:
    """Say whether rows of all these values are one head's, or have no heads."""
    return all(program.values[i].shape[1:-1] in ((), (1,)) for i in values)
