"""States of recurrent layers, and logs of rows after them, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mtpcore.backends.base import WeightTensor
from mtpcore.backends.reference.run import Array
from mtpcore.graph.program import ConvLayer, DeltaLayer, StateLayer
from mtpcore.memory.base import LOG
from mtpcore.memory.recurrent import NO_SLOT

__all__ = ["ReferenceLayerStates", "ReferenceStateStore", "slide"]

StateUpdate = Callable[..., Array]
"""``advance(state, *logged) -> state``: what a row, as it is logged, makes of a state."""


def slide(window: Array, row: Array) -> Array:
    """Return the newest rows, [kernel - 1, channels], after one more."""
    return np.concatenate([window, row[None]])[1:]


class ReferenceLayerStates:
    """The states of one layer: ``bases`` [n_slots, ...], ``logs`` of arrays [n_slots, LOG, ...]."""

    def __init__(self, layer: StateLayer, n_slots: int, dtype: Any, advance: StateUpdate) -> None:
        self.advance = advance
        state, logged = _shapes(layer)
        self.bases = np.zeros((n_slots, *state), dtype)
        self.logs = [np.zeros((n_slots, LOG, *shape), dtype) for shape in logged]

    def state(self, slot: int, rows: Sequence[int]) -> Array:
        """Return the state after a slot's base and rows of its log; zeros where there is none."""
        if slot == NO_SLOT:
            return np.zeros_like(self.bases[0])
        state: Array = self.bases[slot].copy()
        for row in rows:
            state = self.advance(state, *(log[slot, row] for log in self.logs))
        return state

    def log(self, slot: int, row: int, values: Sequence[Array]) -> None:
        """Write a row of a slot's log."""
        for log, value in zip(self.logs, values, strict=True):
            log[slot, row] = value


class ReferenceStateStore:
    """Implements ``mtpcore.memory.base.StateStore``.

    ``convs`` and ``deltas`` hold the layers of either kind by their numbers.

    Parameters
    ----------
    layers : sequence of StateLayer
    n_slots : int
    dtype : type
        Of states and logs; nothing is rounded on its way there.
    advance : callable
        ``advance(state, k, v, decay, beta, corrects=, rates=)`` is the update of a delta rule, all
        by head.
    tensors : mapping of str to WeightTensor
        Those that layers name as their rates.
    """

    def __init__(
        self,
        layers: Sequence[StateLayer],
        n_slots: int,
        dtype: Any,
        advance: StateUpdate,
        tensors: Mapping[str, WeightTensor],
    ) -> None:
        self.convs = {
            layer.layer: ReferenceLayerStates(layer, n_slots, dtype, slide)
            for layer in layers
            if isinstance(layer, ConvLayer)
        }
        self.deltas = {
            layer.layer: ReferenceLayerStates(
                layer, n_slots, dtype, _update_of(layer, advance, tensors, dtype)
            )
            for layer in layers
            if isinstance(layer, DeltaLayer)
        }
        self._layers = [
            (self.convs if isinstance(layer, ConvLayer) else self.deltas)[layer.layer]
            for layer in layers
        ]

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return sum(array.nbytes for layer in self._layers for array in (layer.bases, *layer.logs))

    def settle(self, slot: int, rows: Sequence[int]) -> bytes:
        """Return the state after a slot's base and these rows, layer by layer."""
        with np.errstate(all="ignore"):
            return b"".join(layer.state(slot, rows).tobytes() for layer in self._layers)

    @property
    def base_bytes(self) -> int:
        """Bytes of a slot's base, all layers together."""
        return sum(base.nbytes for base in self._base(0))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a log, all layers together."""
        return sum(row.nbytes for row in self._row(0, 0))

    def read_base(self, slot: int) -> bytes:
        """Return the values of a slot's base, layer by layer."""
        return b"".join(base.tobytes() for base in self._base(slot))

    def write_base(self, slot: int, data: memoryview) -> None:
        """Store ``data``, which ``read_base`` returned, as the base of a ``slot``."""
        _fill(self._base(slot), data)

    def read_row(self, slot: int, row: int) -> bytes:
        """Return the values of a ``row`` of a slot's log, layer by layer."""
        return b"".join(values.tobytes() for values in self._row(slot, row))

    def write_row(self, slot: int, row: int, data: memoryview) -> None:
        """Store ``data``, which ``read_row`` returned, as a ``row`` of a slot's log."""
        _fill(self._row(slot, row), data)

    def _base(self, slot: int) -> list[Array]:
        """Return views of what a slot's base is made of."""
        return [layer.bases[slot] for layer in self._layers]

    def _row(self, slot: int, row: int) -> list[Array]:
        """Return views of what a row of a slot's log is made of."""
        return [log[slot, row, ...] for layer in self._layers for log in layer.logs]


def _fill(views: Sequence[Array], data: memoryview) -> None:
    """Write bytes into arrays, one after the other."""
    for view in views:
        view[...] = np.frombuffer(data[: view.nbytes], view.dtype).reshape(view.shape)
        data = data[view.nbytes :]


def _update_of(
    layer: DeltaLayer, advance: StateUpdate, tensors: Mapping[str, WeightTensor], dtype: Any
) -> StateUpdate:
    """Return the update of a layer, with keys by key head."""
    key_heads = [layer.key_head(head) for head in range(layer.n_heads)]
    update = partial(advance, corrects=layer.corrects)
    if layer.rates is not None:
        rates = np.asarray(tensors[layer.rates.tensor].array(), dtype)
        rates = rates.reshape(layer.n_heads, layer.v_width, layer.k_width)
        update = partial(update, rates=rates.swapaxes(1, 2))
    return lambda state, k, *logged: update(state, k[key_heads], *logged)


def _shapes(layer: StateLayer) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the shape of a state, and those of what is logged of a row."""
    if isinstance(layer, ConvLayer):
        return (layer.kernel - 1, layer.channels), [(layer.channels,)]
    n, has_one = layer.n_heads, not layer.by_channel and layer.rates is None
    return (n, layer.k_width, layer.v_width), [
        (layer.n_key_heads, layer.k_width),
        (n, layer.v_width),
        (n,) if has_one else (n, layer.n_decays),
        (n,),
    ]
