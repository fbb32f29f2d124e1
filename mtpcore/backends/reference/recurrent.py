"""Recurrent operations: each row goes on from the state that the row before it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtpcore.backends.reference.run import Array, Operation, Run
from mtpcore.backends.reference.states import ReferenceLayerStates, ReferenceStateStore
from mtpcore.errors import BackendError
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.recurrent import NO_SLOT, RecurrentMemory

__all__ = ["causal_conv", "delta_rule"]


def causal_conv(convolve: Callable[..., Array]) -> Operation:
    """Make the operation of ``convolve(window, w, kind)``, window [kernel, channels]."""

    def operation(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        memory, store = _memory_of(run)
        (x,), out = inputs, np.empty_like(inputs[0])

        def read(row: int, before: Array, after: Array) -> None:
            window = np.concatenate([before, x[row : row + 1]])
            out[row] = convolve(window, weights[0], attrs["kind"])

        _walk(run, memory, store.convs[attrs["layer"]], inputs, read)
        return (out,)

    return operation


def delta_rule(read_state: Callable[[Array, Array], Array]) -> Operation:
    """Make the operation of ``read_state(state, q)``; the store has the update, with its rates."""

    def operation(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        memory, store = _memory_of(run)
        q, *logged = inputs
        out = np.empty_like(logged[1])
        n_heads, n_key_heads = out.shape[1], q.shape[1]
        heads = np.arange(n_heads)
        is_tiled = attrs["key_heads"] == "tiled"
        key_heads = heads % n_key_heads if is_tiled else heads // (n_heads // n_key_heads)

        def read(row: int, before: Array, after: Array) -> None:
            out[row] = read_state(after, q[row, key_heads])

        _walk(run, memory, store.deltas[attrs["layer"]], logged, read)
        return (out,)

    return operation


def _walk(
    run: Run,
    memory: RecurrentMemory,
    states: ReferenceLayerStates,
    logged: Sequence[Array],
    read: Callable[[int, Array, Array], None],
) -> None:
    """Go through the rows of each sequence, log them, and write the bases that are due.

    ``read(row, before, after)`` is told the states before and after each row.
    """
    batch = run.batch
    for one in memory.passes(batch.seq, batch.place, batch.parent):
        after = {-1: states.state(one.read, one.replayed)}
        is_chain = one.above == list(range(-1, len(one.rows) - 1))
        for i, (row, above) in enumerate(zip(one.rows, one.above, strict=True)):
            before = after[above]
            values = [array[row] for array in logged]
            if i == one.base_at and one.written != NO_SLOT:
                states.bases[one.written] = before
            if one.logged[i] >= 0:
                states.log(one.log, one.logged[i], values)
            after[i] = states.advance(before, *values)
            read(row, before, after[i])
            if is_chain:
                del after[above]
        if one.base_at == len(one.rows) and one.written != NO_SLOT:
            states.bases[one.written] = after[len(one.rows) - 1]


def _memory_of(run: Run) -> tuple[RecurrentMemory, ReferenceStateStore]:
    if isinstance(run.memory, GroupedKV) and run.memory.recurrent:
        store = run.memory.recurrent.store
        if isinstance(store, ReferenceStateStore):
            return run.memory.recurrent, store
    raise BackendError("recurrent layers need memory", got=type(run.memory).__name__)
