"""States of recurrent layers and logs of rows, in slots, as the kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._states import delta_sizes, settle_delta
from mtpcore.backends.base import F32
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.backends.cpu.zeros import LINE, zeros_on_a_line
from mtpcore.errors import BackendError
from mtpcore.graph.program import ConvLayer, StateLayer
from mtpcore.memory.base import LOG

__all__ = ["CpuStateStore", "slot_bytes_of"]


class _Place(NamedTuple):
    """Where a layer's base and log begin in a slot, and how many values they have."""

    layer: StateLayer
    base: int
    log: int
    n_base: int
    n_logged: int


class CpuStateStore:
    """Implements ``mtpcore.memory.base.StateStore``; ``c/recurrent/states.h`` has the layout.

    Parameters
    ----------
    layers : sequence of StateLayer
    n_slots : int
    weights : CpuWeights
        Of the layers.

    Attributes
    ----------
    data : uint8[n_slots * slot_bytes]
        Starts on a cache line.
    slot_bytes, n_slots : int
    """

    def __init__(self, layers: Sequence[StateLayer], n_slots: int, weights: CpuWeights) -> None:
        self._places, self.slot_bytes = _lay_out(layers)
        self.n_slots, self._weights = n_slots, weights
        self.data = zeros_on_a_line(
            n_slots * self.slot_bytes,
            "the states of recurrent layers",
            "make n_seq_max or checkpoint_bytes smaller",
        )

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return self.data.nbytes

    def offsets(self, kind: type[StateLayer], layer: int) -> tuple[int, int]:
        """Return where base and log of a layer begin in a slot, in bytes."""
        for place in self._places:
            if isinstance(place.layer, kind) and place.layer.layer == layer:
                return place.base, place.log
        raise BackendError("recurrent layer has no memory", where=f"layer {layer}")

    def settle(self, slot: int, rows: Sequence[int]) -> bytes:
        """Return the state after a slot's base and these rows, layer by layer."""
        data = self._slot(slot)
        return b"".join(self._settle(place, data, rows).tobytes() for place in self._places)

    @property
    def base_bytes(self) -> int:
        """Bytes of a slot's base, all layers together."""
        return 4 * sum(place.n_base for place in self._places)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a log, all layers together."""
        return 4 * sum(place.n_logged for place in self._places)

    def read_base(self, slot: int) -> bytes:
        """Return the values of a slot's base, layer by layer."""
        return b"".join(part.tobytes() for part in self._base(slot))

    def write_base(self, slot: int, data: memoryview) -> None:
        """Store ``data``, which ``read_base`` returned, as the base of a ``slot``."""
        _fill(self._base(slot), data)

    def read_row(self, slot: int, row: int) -> bytes:
        """Return the values of a ``row`` of a slot's log, layer by layer."""
        return b"".join(part.tobytes() for part in self._row(slot, row))

    def write_row(self, slot: int, row: int, data: memoryview) -> None:
        """Store ``data``, which ``read_row`` returned, as a ``row`` of a slot's log."""
        _fill(self._row(slot, row), data)

    def _settle(self, place: _Place, data: NDArray[np.uint8], rows: Sequence[int]) -> F32:
        base = data[place.base : place.base + 4 * place.n_base].view(np.float32)
        log = data[place.log : place.log + 4 * LOG * place.n_logged].view(np.float32)
        chosen = np.array(rows, np.int32)
        logged = log.reshape(LOG, place.n_logged)
        if isinstance(place.layer, ConvLayer):
            window = np.concatenate([base.reshape(-1, place.layer.channels), logged[chosen]])
            kept: F32 = window[len(window) - (place.layer.kernel - 1) :]
            return kept
        rates = self._weights.rates(place.layer.rates, place.layer.n_heads)
        return settle_delta(place.layer, base, logged, chosen, rates)

    def _slot(self, slot: int) -> NDArray[np.uint8]:
        return self.data[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def _base(self, slot: int) -> list[NDArray[np.uint8]]:
        """Return what a slot's base is made of."""
        data = self._slot(slot)
        return [data[place.base : place.base + 4 * place.n_base] for place in self._places]

    def _row(self, slot: int, row: int) -> list[NDArray[np.uint8]]:
        """Return what a row of a slot's log is made of."""
        data, parts = self._slot(slot), []
        for place in self._places:
            begin = place.log + 4 * row * place.n_logged
            parts.append(data[begin : begin + 4 * place.n_logged])
        return parts


def _fill(parts: Sequence[NDArray[np.uint8]], data: memoryview) -> None:
    """Write bytes into arrays, one after the other."""
    for part in parts:
        part[:] = np.frombuffer(data[: len(part)], np.uint8)
        data = data[len(part) :]


def slot_bytes_of(layers: Sequence[StateLayer]) -> int:
    """Return the bytes that a slot takes: a base and a log of each of these layers."""
    return _lay_out(layers)[1]


def _lay_out(layers: Sequence[StateLayer]) -> tuple[list[_Place], int]:
    places, end = [], 0
    for layer in layers:
        if isinstance(layer, ConvLayer):
            n_base, n_logged = layer.n_values, layer.n_logged
        else:
            n_base, n_logged = delta_sizes(layer)
        log = end + _lines(4 * n_base)
        places.append(_Place(layer, end, log, n_base, n_logged))
        end = log + _lines(4 * LOG * n_logged)
    return places, end


def _lines(n_bytes: int) -> int:
    return -(-n_bytes // LINE) * LINE
