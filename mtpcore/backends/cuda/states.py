"""States of recurrent layers and logs of rows on the device, and how those of a run go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.recurrent import StepStates, settle
from mtpcore.backends.cuda.launch.step import Launch, start
from mtpcore.backends.cuda.launch.trees import walk_trees
from mtpcore.backends.cuda.staging import Part
from mtpcore.backends.cuda.weights import CudaWeights
from mtpcore.errors import BackendError
from mtpcore.graph.program import ConvLayer, DeltaLayer, Node, StateLayer
from mtpcore.memory.base import LOG
from mtpcore.memory.recurrent import NO_SLOT, StatePass, slots_for

__all__ = ["CudaStateStore", "StateWalks"]

_KINDS = {"causal_conv": ConvLayer, "delta_rule": DeltaLayer}
_NOWHERE = -1

_ROOM = 2 * LOG
"""Advances of a row: before one of a tree there may be a whole log, and then a path of rows of
another."""


class Advance(NamedTuple):
    """A state that goes on by one row; ``kernels/advance.cuh`` says what the numbers mean."""

    row: int
    slot: int
    depth: int
    before: int = NO_SLOT
    after: int = NO_SLOT
    kept: int = _NOWHERE
    wanted: int = 0


class StateWalks:
    """How the states of a run go on, on the device; ``kernels/advance.cuh`` has the layout.

    Parameters
    ----------
    device : Device
    n_rows, n_seq : int
        Rows and sequences of a batch, at most.

    Attributes
    ----------
    array : DeviceArray
        Stays where it is.
    """

    def __init__(self, device: Device, n_rows: int, n_seq: int) -> None:
        self.n_rows, self.n_seq = n_rows, n_seq
        n_advances = 2 * n_rows * _ROOM  # as the host plans them, and as the device finds them
        n = 2 * n_seq + n_rows + n_advances * len(Advance._fields)
        self.array = device.empty((n,), np.int32)

    def part(self, passes: Sequence[StatePass]) -> Part:
        """Return how the sequences of a batch go on, as ``RecurrentMemory.passes`` says."""
        return self.part_of([_walk(one) for one in passes])

    def part_of(self, walks: Sequence[Sequence[Advance]]) -> Part:
        """Return the advances of each sequence, to be held.

        There is room for a whole log wherever a walk begins, so that where others begin after it
        does not depend on what is replayed: else every token changes the graphs of rounds.
        """
        sequences = np.zeros((self.n_seq, 2), np.int32)
        rows = np.full(self.n_rows, _NOWHERE, np.int32)
        lengths, advances = [len(walk) for walk in walks], [one for walk in walks for one in walk]
        sequences[: len(walks), 0] = np.cumsum([0, *lengths[:-1]])
        sequences[: len(walks), 1] = lengths
        table = np.array(advances, np.int32)
        row, _, depth, *_, wanted = table.T
        (at,) = np.nonzero(wanted)
        rows[row[at]] = at
        n_unused = LOG * np.count_nonzero(depth == 0) - np.count_nonzero(row < 0)
        unused = np.zeros(n_unused * table.shape[1], np.int32)
        flat = (sequences.reshape(-1), rows, table.reshape(-1), unused)
        return Part(np.concatenate(flat), self.array)

    def of_trees(self, trees: DeviceArray, parents: DeviceArray, n: int) -> Launch:
        """Return what lets n trees of a batch go on as their rows come after each other by now."""
        sizes = {"n_seq": self.n_seq, "n_rows": self.n_rows, "room": _ROOM}
        return walk_trees(trees, parents, self.array, n, **sizes)


def _walk(one: StatePass) -> list[Advance]:
    """Return the advances of a sequence's rows: each branch of a tree begins at the base again."""
    stored = [~(one.read * LOG + row) for row in one.replayed]
    walk: list[Advance] = []
    depth = 0
    for i, (row, above) in enumerate(zip(one.rows, one.above, strict=True)):
        if i == 0 or above != i - 1:
            way = [*stored, *_path(one, above)]
            walk += [Advance(passed, one.read, depth) for depth, passed in enumerate(way)]
            depth = len(way)
        kept = one.log * LOG + one.logged[i] if one.logged[i] >= 0 else _NOWHERE
        before = one.written if one.base_at == i else NO_SLOT
        walk.append(Advance(row, one.read, depth, before, NO_SLOT, kept, wanted=1))
        depth += 1
    if one.base_at == len(one.rows):
        walk[-1] = walk[-1]._replace(after=one.written)
    return walk


def _path(one: StatePass, above: int) -> list[int]:
    """Return the rows of the batch down to row ``above`` of a sequence."""
    path: list[int] = []
    while above >= 0:
        path.append(one.rows[above])
        above = one.above[above]
    return path[::-1]


class LayerStates(msgspec.Struct, frozen=True):
    """Bases and logs of one layer; see ``launch.recurrent.StepStates``."""

    layer: StateLayer
    bases: DeviceArray
    logs: DeviceArray

    @property
    def base_bytes(self) -> int:
        """Bytes of a base."""
        return 4 * self.layer.n_values

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a log."""
        return 4 * self.layer.n_logged


class CudaStateStore:
    """Implements ``mtpcore.memory.base.StateStore``; bases are as ``settle`` returns them."""

    def __init__(
        self, device: Device, layers: Sequence[StateLayer], n_slots: int, weights: CudaWeights
    ) -> None:
        self._device, self._n_slots, self._weights = device, n_slots, weights
        self._layers = [
            LayerStates(
                layer,
                device.empty((n_slots, layer.n_values), np.float32),
                device.empty((n_slots, LOG, layer.n_logged), np.float32),
            )
            for layer in layers
        ]
        self._settling = StateWalks(device, 1, 1)

    @property
    def n_bytes(self) -> int:
        """Size of the store, in bytes."""
        return self._n_slots * (self.base_bytes + LOG * self.row_bytes)

    def walks(self, n_rows: int) -> StateWalks:
        """Make room to say how the states go on in batches of at most ``n_rows``."""
        n_seq = self._n_slots // slots_for(1, 0)
        return StateWalks(self._device, n_rows, max(min(n_seq, n_rows), 1))

    def states_of(self, node: Node, walks: StateWalks) -> StepStates:
        """Return what a recurrent node's step reads and writes.

        Raises
        ------
        BackendError
            The node's layer has no memory here.
        """
        kind, number = _KINDS[node.op], node.attrs["layer"]
        for states in self._layers:
            if isinstance(states.layer, kind) and states.layer.layer == number:
                return _with_walks(states, walks)
        raise BackendError("recurrent layer has no memory", where=node.name, got=f"layer {number}")

    def settle(self, slot: int, rows: Sequence[int]) -> bytes:
        """Return the state after a slot's base and these rows, layer by layer."""
        walk = [Advance(~(slot * LOG + row), 0, depth) for depth, row in enumerate(rows)]
        if walk:  # slot 0 is a copy of the base
            walk[-1] = walk[-1]._replace(after=0)
            self._device.upload(*self._settling.part_of([walk]))
        return b"".join(self._settle(states, slot, rows) for states in self._layers)

    def _settle(self, states: LayerStates, slot: int, rows: Sequence[int]) -> bytes:
        layer = states.layer
        if isinstance(layer, ConvLayer):
            parts = [self._read_base(states, slot)]
            parts += [self._read_row(states, slot, row) for row in rows]
            joined = b"".join(parts)
            return joined[len(joined) - states.base_bytes :]
        if not rows:
            return self._read_base(states, slot)
        copied = self._device.empty((1, layer.n_values), np.float32)
        n_bytes = states.base_bytes
        self._device.copy(states.bases, slot * n_bytes, copied, 0, n_bytes)
        copy = msgspec.structs.replace(states, bases=copied)
        rates = None if layer.rates is None else self._weights.vector(layer.rates)
        start(self._device, [settle(_with_walks(copy, self._settling), rates)])
        return self._device.read(copied, 0, n_bytes)

    @property
    def base_bytes(self) -> int:
        """Bytes of a slot's base, all layers together."""
        return sum(states.base_bytes for states in self._layers)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a log, all layers together."""
        return sum(states.row_bytes for states in self._layers)

    def read_base(self, slot: int) -> bytes:
        """Return the values of a slot's base, layer by layer."""
        return b"".join(self._read_base(states, slot) for states in self._layers)

    def write_base(self, slot: int, data: memoryview) -> None:
        """Store ``data``, which ``read_base`` returned, as the base of a ``slot``."""
        for states, part in self._cut(data, [one.base_bytes for one in self._layers]):
            self._device.write(states.bases, slot * states.base_bytes, part)

    def read_row(self, slot: int, row: int) -> bytes:
        """Return the values of a ``row`` of a slot's log, layer by layer."""
        return b"".join(self._read_row(states, slot, row) for states in self._layers)

    def write_row(self, slot: int, row: int, data: memoryview) -> None:
        """Store ``data``, which ``read_row`` returned, as a ``row`` of a slot's log."""
        for states, part in self._cut(data, [one.row_bytes for one in self._layers]):
            self._device.write(states.logs, (slot * LOG + row) * states.row_bytes, part)

    def _read_base(self, states: LayerStates, slot: int) -> bytes:
        return self._device.read(states.bases, slot * states.base_bytes, states.base_bytes)

    def _read_row(self, states: LayerStates, slot: int, row: int) -> bytes:
        at = (slot * LOG + row) * states.row_bytes
        return self._device.read(states.logs, at, states.row_bytes)

    def _cut(self, data: memoryview, sizes: list[int]) -> Iterator[tuple[LayerStates, memoryview]]:
        """Yield each layer with its part of the bytes."""
        for states, size in zip(self._layers, sizes, strict=True):
            yield states, data[:size]
            data = data[size:]


def _with_walks(states: LayerStates, walks: StateWalks) -> StepStates:
    return StepStates(
        states.layer, states.bases, states.logs, walks.array, walks.n_seq, walks.n_rows
    )
