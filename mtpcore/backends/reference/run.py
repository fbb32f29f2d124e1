"""The data that operations get in a run, and operations defined by a formula for one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.memory.base import Memory

__all__ = ["Array", "Operation", "Run", "by_block", "by_row", "with_positions"]

Array = NDArray[Any]


class Run(NamedTuple):
    """One call of ``Plan.run``: its rows, the memory, its stores and the number type."""

    batch: CheckedBatch
    memory: Memory | None
    stores: Sequence[ReferenceStore]
    dtype: type[np.floating[Any]]


Operation = Callable[..., tuple[Array, ...]]
"""``operation(run, inputs, weights, attrs) -> outputs``; arrays have rows on their first axis."""


def by_row(formula: Callable[..., Any]) -> Operation:
    """Make an operation of a formula for one row.

    ``formula(*inputs, *weights, **attrs)`` gets row t of each input and returns row t of the output
    (or a tuple of them). No row can see another, so results cannot depend on the batch.
    """

    def operation(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        results = [formula(*row, *weights, **attrs) for row in zip(*inputs, strict=True)]
        if results and isinstance(results[0], tuple):
            return tuple(np.stack(column) for column in zip(*results, strict=True))
        return (np.stack(results),)

    operation.__name__ = formula.__name__
    operation.__doc__ = formula.__doc__
    return operation


def by_block(formula: Callable[..., Array]) -> Operation:
    """Make an operation of a formula for a block's rows: ``formula(*inputs, *weights, **attrs)``.

    A block has ``size`` rows of a sequence, or as many as its weight is for. No block can see
    another.
    """

    def operation(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        made: dict[int, Array] = {}  # by row
        size = attrs["size"] if "size" in attrs else len(weights[0])
        further = {name: value for name, value in attrs.items() if name != "size"}
        for seq in np.unique(run.batch.seq):
            rows = np.flatnonzero(run.batch.seq == seq)
            for begin in range(0, len(rows), size):
                block = rows[begin : begin + size]
                results = formula(*(x[block] for x in inputs), *weights, **further)
                made.update(zip(block.tolist(), results, strict=True))
        return (np.stack([made[row] for row in range(len(made))]),)

    return operation


def with_positions(operation: Operation) -> Operation:
    """Give rows whose outputs are wanted their own positions, the second input, of the batch's."""

    def by_output(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        x, positions = inputs
        if len(x) < len(positions):
            positions = positions[run.batch.outputs]
        return operation(run, [x, positions], weights, attrs)

    return by_output
