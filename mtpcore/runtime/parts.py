"""Running batches of any size with a plan that takes ``n_batch`` rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import Plan, Rows
from mtpcore.errors import BatchError
from mtpcore.runtime.admission import Ranges
from mtpcore.runtime.fused_sampling import choose_rows
from mtpcore.runtime.sequences import ContextMemory

__all__ = ["run_parts"]


def run_parts(
    plan: Plan, memory: ContextMemory | None, n_batch: int, rows: Rows, ranges: Ranges
) -> dict[str, NDArray[Any]]:
    """Run all rows, in as many parts as are needed; return read-only arrays by name.

    With choices one of them is ``chosen``, and logits are those of the outputs without a sampler.

    Raises
    ------
    BatchError, CapacityError
        A draft tree is longer than ``n_batch``, or there is no room.
    """
    choices, parts = rows.choices, []
    for part, places in _split(rows, ranges, n_batch):
        if memory:
            memory.reserve(places)
        parts.append(plan.run(part, memory))
    arrays = parts[0]
    if len(parts) > 1:
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in arrays}
    if choices is not None and "chosen" not in arrays:
        arrays["chosen"] = choose_rows(choices, arrays)
        arrays["logits"] = arrays["logits"][arrays["chosen"] < 0]
    if choices and choices.samplers and None not in choices.samplers:
        arrays.pop("logits", None)
    for array in arrays.values():
        if isinstance(array, np.ndarray):  # a device's own are not written to either
            array.setflags(write=False)
    return arrays


def _split(rows: Rows, ranges: Ranges, n_batch: int) -> list[tuple[Rows, Ranges]]:
    """Return parts of at most ``n_batch`` rows, each with the places that it takes.

    A chain may be cut anywhere, for what went before is stored by then. The rows of a sequence that
    branches see each other and stay together.

    Raises
    ------
    BatchError
        A draft tree is longer than ``n_batch``.
    """
    n = len(rows.tokens)
    if n <= n_batch:
        return [(rows, ranges)]
    joined = np.zeros(n + 1, bool)  # to the row before
    for seq in ranges if rows.parent is not None else ():
        mine = np.flatnonzero(rows.seq == seq)
        assert rows.parent is not None
        if (rows.parent[mine[1:]] != mine[:-1]).any():
            joined[mine[0] + 1 : mine[-1] + 1] = True
    free = np.flatnonzero(~joined)
    parts, begin = [], 0
    while begin < n:
        end = int(free[free <= begin + n_batch][-1])
        if end == begin:
            raise BatchError(
                "a draft tree runs in one piece",
                where=f"sequence {rows.seq[begin]}",
                wanted=f"at most {n_batch}",
                got=f"{int((rows.seq == rows.seq[begin]).sum())} rows",
                fix="make n_batch larger",
            )
        parts.append(_part(rows, begin, end))
        begin = end
    return parts


def _part(rows: Rows, begin: int, end: int) -> tuple[Rows, Ranges]:
    first, stop = np.searchsorted(rows.outputs, (begin, end)).tolist()
    parent, choices = rows.parent, rows.choices
    if parent is not None:  # a parent in an earlier part is the newest row stored
        parent = np.maximum(parent[begin:end] - np.int32(begin), np.int32(-1))
    part = Rows(
        tokens=rows.tokens[begin:end],
        positions=rows.positions[begin:end],
        seq=rows.seq[begin:end],
        place=rows.place[begin:end],
        outputs=(rows.outputs[first:stop] - begin).astype(np.int32),
        parent=parent,
        embeddings=None if rows.embeddings is None else rows.embeddings[begin:end],
        slots={name: slot[begin:end] for name, slot in rows.slots.items()},
        choices=choices and choices.part(first, stop),
    )
    taken = {}
    for seq in dict.fromkeys(part.seq.tolist()):
        places = part.place[part.seq == seq]
        taken[seq] = (int(places[0]), int(places[-1]) + 1)
    return part, taken
