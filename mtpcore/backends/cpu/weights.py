"""Packed weights, made once for each model and shared by its contexts."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import TypeVar

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from mtpcore._ext._matmul import PackedMatrix, PackedMemory, is_native, map_rows, packed_bytes
from mtpcore.backends.base import F32, WeightSource
from mtpcore.backends.workers import run_all
from mtpcore.errors import BackendError, CapacityError
from mtpcore.graph.buckets import distance_buckets
from mtpcore.graph.program import Program, Weight
from mtpcore.memory.base import PAGE

__all__ = ["FORMS", "CpuWeights", "stays_mapped"]

log = logging.getLogger("mtpcore")
Packed = TypeVar("Packed")

_ROWS = 32
"""Rows that are packed together; where a matrix has too few, zeros fill them up."""
_COLUMNS = 16
"""Columns of a recurrent state that lie together."""
_MOST_ADDED = 1 << 24
"""Zeros that are no reason to worry, whatever the matrices hold."""
_CONVERTED = 1 << 18
"""Values that a thread converts at once, which takes several times their memory."""
_AT_ONCE = 4
"""Windows that all threads have room for: more of them read less at once."""

FORMS = {
    "embed": "matrix",
    "embed_by_position": "matrix",
    "embed_positions": "matrix",
    "embed_codes": "matrix",
    "embed_ids": "matrix",
    "matmul": "matrix",
    "matmul_by_position": "stack",
    "expert_matmul": "stack",
    "head_matmul": "stack",
    "rank_matmul": "matrix",
    "cluster_matmul": "clusters",
    "route": "exact matrix",
}
"""How operations want their first weight; all others are vectors."""

_NATIVE = [int(kind) for kind in GGMLQuantizationType if is_native(int(kind))]
_EXACT = [int(GGMLQuantizationType.F32)]


def _kinds(form: str) -> list[int]:
    """Return the types in which matrices of this form are multiplied."""
    return _EXACT if form == "exact matrix" else _NATIVE


def stays_mapped(stored: int, form: str) -> bool:
    """Say whether the kernels can read a matrix of this type from the mapped file."""
    return form != "clusters" and stored in _kinds(form)


class CpuWeights:
    """The packed weights of one model, in its ``packed`` table.

    Matrices are views of the mapped file first, which plans pack after their runs; where the model
    is not to be repacked they stay so. Those of types without kernels are converted at once, in
    windows that are released when they are packed. So a file is never in memory a second time.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._shared: PackedMemory | None = None
        self._stays_mapped = not source.repack
        self._converted = _Room(_CONVERTED)
        self._workers = 1
        self._is_over = False

    def matrix(self, weight: Weight) -> PackedMatrix:
        """Return a matrix in its own type, where that has kernels."""
        return self._cached("matrix", weight, lambda: self._pack(weight, "matrix")[0])

    def exact_matrix(self, weight: Weight) -> PackedMatrix:
        """Return a matrix in float32."""
        return self._cached("exact matrix", weight, lambda: self._pack(weight, "exact matrix")[0])

    def stack(self, weight: Weight) -> list[PackedMatrix]:
        """Return the matrices of experts or heads, packed one by one."""
        return self._cached("stack", weight, lambda: self._pack(weight, "stack"))

    def clusters(
        self, weight: Weight, ordering: Weight, n_clusters: int
    ) -> tuple[NDArray[np.int32], list[PackedMatrix]]:
        """Return which rows of a matrix lie in clusters, one after the other, and their matrices.

        Raises
        ------
        BackendError
            The ordering names rows that the matrix does not have.
        """
        rows = np.ascontiguousarray(self._source.tensors[ordering.tensor].array(), np.int32)
        if rows.min() < 0 or rows.max() >= weight.shape[0]:
            raise BackendError(
                "clusters of rows that the matrix does not have",
                where=ordering.tensor,
                wanted=f"0..{weight.shape[0] - 1}",
                got=f"{rows.min()}..{rows.max()}",
            )
        return rows, self._cached("clusters", weight, lambda: self._cut(weight, rows, n_clusters))

    def _cut(self, weight: Weight, rows: NDArray[np.int32], n: int) -> list[PackedMatrix]:
        """Pack the rows of a matrix in another order, as ``n`` matrices."""
        n_rows, n_cols = weight.shape
        step = max(1, _CONVERTED // n_cols)
        ranges = [(begin, min(begin + step, n_rows)) for begin in range(0, n_rows, step)]
        parts: list[NDArray[np.uint8]] = []
        matrices: list[PackedMatrix] = []

        def start(kind: int) -> Callable[[int, NDArray[np.uint8]], None]:
            parts.clear()
            matrices[:] = self._empty(kind, (n, n_rows // n, n_cols))
            return lambda row, some: parts.append(some.reshape(len(some), -1).copy())

        self._source.tensors[weight.tensor].stream(_kinds("clusters"), ranges, start)
        whole = np.concatenate(parts)
        for matrix, own in zip(matrices, rows.reshape(n, -1), strict=True):
            matrix.fill(0, np.ascontiguousarray(whole[own]))
        return matrices

    def prepare(self, program: Program, threads: int) -> None:
        """Make room for the matrices of a program, and convert those of types without kernels.

        The others are not touched, but must be there; if there is no room for all of them they stay
        in the file, and the log says so.

        Raises
        ------
        CapacityError
            There is no memory for what is converted, or shapes are such that most of it would be
            filling.
        ModelFileError
            The file has become shorter since it was opened.
        """
        make = {"matrix": self.matrix, "stack": self.stack, "exact matrix": self.exact_matrix}
        wanted = {
            (FORMS[node.op], weight.tensor): weight
            for node in program.nodes
            if FORMS.get(node.op) in make
            for weight in node.weights[:1]
            if weight is not None
        }
        _check_padding(list(wanted.values()))
        in_file = [weight for key, weight in wanted.items() if not self._is_packed(*key)]
        for weight in in_file if self._source.repack else program.weights().values():
            self._source.tensors[weight.tensor].raw()  # refused where the file lacks it by now
        wanted = {
            key: weight
            for key, weight in wanted.items()
            if ("cpu", *key) not in self._source.packed
        }
        mapped = {key: w for key, w in wanted.items() if self._is_readable(w, key[0])}
        converted = {key: w for key, w in wanted.items() if key not in mapped}
        if mapped and not self._stays_mapped:
            self._share_memory(list(mapped.values()))
        for (form, _), weight in mapped.items():
            make[form](weight)
        if converted:
            self._convert_all([partial(make[key[0]], w) for key, w in converted.items()], threads)
        self._shared = None

    def _convert_all(self, tasks: Sequence[Callable[[], object]], threads: int) -> None:
        """Convert matrices, several at a time: that waits for memory."""
        self._workers = max(1, min(threads, len(tasks)))
        run_all(tasks, self._workers, self._end)
        self._workers = 1

    def _end(self) -> None:
        """Let no thread convert any further."""
        self._is_over = True

    def vector(self, weight: Weight | None) -> F32 | None:
        """Return float32 values, or None where there is no weight."""
        if weight is None:
            return None
        return self._cached("vector", weight, lambda: self._read_vector(weight))

    def taps(self, weight: Weight) -> F32:
        """Return a convolution's taps, float32[kernel * channels]: by tap, then by channel."""
        return self._cached(
            "taps", weight, lambda: np.ascontiguousarray(self._read_vector(weight).T).reshape(-1)
        )

    def rates(self, weight: Weight | None, n_heads: int) -> F32 | None:
        """Return what a delta rule's decays are multiplied by, in the layout of its bases.

        float32[n_heads * blocks * k_width * 16]; None where there is no weight.
        """
        if weight is None:
            return None
        form = f"rates of {n_heads} heads"
        return self._cached(form, weight, lambda: self._by_block(weight, n_heads))

    def _by_block(self, weight: Weight, n_heads: int) -> F32:
        """Return a weight [heads * v_width, k_width] by head, block of columns, entry, column."""
        by_head = self._read_vector(weight).reshape(n_heads, -1, weight.shape[1])
        filled = np.pad(by_head, ((0, 0), (0, -by_head.shape[1] % _COLUMNS), (0, 0)))
        blocks = filled.reshape(n_heads, -1, _COLUMNS, weight.shape[1])
        return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1)

    def bias(self, weight: Weight | None, max_distance: int, *, ahead: bool) -> F32 | None:
        """Return a position bias [buckets, heads] by head and distance, as kernels read it.

        Of each head the distances from -max_distance - PAGE to max_distance + PAGE - 1, so that a
        page has its own in a row wherever it lies; None where there is no weight.
        """
        if weight is None:
            return None
        buckets = distance_buckets(weight.shape[0], max_distance, ahead=ahead)
        of_distance = np.concatenate(
            [np.full(PAGE, buckets[0]), buckets, np.full(PAGE - 1, buckets[-1])]
        )
        return self._cached(
            f"bias to {max_distance}" + " on both sides" * ahead,
            weight,
            lambda: np.ascontiguousarray(self._read_vector(weight)[of_distance].T).reshape(-1),
        )

    def _read_vector(self, weight: Weight) -> F32:
        """Return values, in memory of their own where nothing is to stay in the file."""
        tensor = self._source.tensors[weight.tensor]
        values = np.ascontiguousarray(tensor.array(), np.float32).reshape(weight.shape)
        return values.copy() if self._source.repack else values

    def _cached(self, form: str, weight: Weight, make: Callable[[], Packed]) -> Packed:
        key = ("cpu", form, weight.tensor)
        if key not in self._source.packed:
            self._source.packed[key] = make()
        packed: Packed = self._source.packed[key]
        return packed

    def _is_packed(self, form: str, tensor: str) -> bool:
        """Say whether nothing of a tensor's matrices is read from the file any more."""
        made = self._source.packed.get(("cpu", form, tensor))
        matrices = made if isinstance(made, list) else [made]
        return all(matrix is not None and not matrix.is_mapped for matrix in matrices)

    def _is_readable(self, weight: Weight, form: str) -> bool:
        """Say whether the kernels can read a matrix from the mapped file."""
        return stays_mapped(self._source.tensors[weight.tensor].type, form)

    def _share_memory(self, weights: Sequence[Weight]) -> None:
        """Make one block for the matrices of known size: huge pages hold all but its end."""
        n_bytes = sum(
            math.prod(weight.shape[:-2])
            * packed_bytes(self._source.tensors[weight.tensor].type, *weight.shape[-2:])
            for weight in weights
        )
        try:
            self._shared = PackedMemory(n_bytes)
        except CapacityError:
            self._stays_mapped = True
            log.warning(
                "no memory to pack weights (%d bytes): they stay in the file, and are slower",
                n_bytes,
            )

    def _empty(
        self, kind: int, shape: Sequence[int], memory: PackedMemory | None = None
    ) -> list[PackedMatrix]:
        """Return matrices to be filled: one, or those of a stack."""
        *stack, n_rows, n_cols = shape
        if memory is None:
            memory = PackedMemory(math.prod(stack) * packed_bytes(kind, n_rows, n_cols))
        matrices = [memory.take(kind, n_rows, n_cols) for _ in range(math.prod(stack))]
        return [matrix for matrix in matrices if matrix is not None]

    def _pack(self, weight: Weight, form: str) -> list[PackedMatrix]:
        """Return a tensor's matrices, in its own type or in one with kernels."""
        n_rows = weight.shape[-2]
        if self._is_readable(weight, form):
            return self._map(weight)
        room = self._converted
        step = max(1, room.share(self._workers) // weight.shape[-1] // _ROWS) * _ROWS
        with room.held(min(step, n_rows) * weight.shape[-1]):
            return self._read(weight, form, step)

    def _map(self, weight: Weight) -> list[PackedMatrix]:
        """Return matrices that are read from the file, for good or until they are packed."""
        tensor = self._source.tensors[weight.tensor]
        blocks = tensor.raw().reshape(math.prod(weight.shape[:-2]), -1)
        if self._stays_mapped:
            return [map_rows(rows, tensor.type, *weight.shape[-2:]) for rows in blocks]
        matrices = self._empty(tensor.type, weight.shape, self._shared)
        for i, matrix in enumerate(matrices):
            offset = -1 if tensor.offset is None else tensor.offset + i * blocks[i].nbytes
            matrix.read_rows(blocks[i], offset)
        return matrices

    def _read(self, weight: Weight, form: str, step: int) -> list[PackedMatrix]:
        """Convert a tensor, ``step`` rows at a time."""
        tensor, n_rows = self._source.tensors[weight.tensor], weight.shape[-2]
        ranges = [
            (first + begin, first + min(begin + step, n_rows))
            for first in range(0, n_rows * math.prod(weight.shape[:-2]), n_rows)
            for begin in range(0, n_rows, step)
        ]
        matrices: list[PackedMatrix] = []

        def fill(row: int, rows: NDArray[np.uint8]) -> None:
            if self._is_over:
                raise CancelledError
            matrices[row // n_rows].fill(row % n_rows, rows)

        def start(kind: int) -> Callable[[int, NDArray[np.uint8]], None]:
            matrices[:] = self._empty(kind, weight.shape)
            return fill

        tensor.stream(_kinds(form), ranges, start)
        return matrices


class _Room:
    """How many values all threads together may have in their windows.

    Taken in threads of ``run_all`` alone, where no signal is handled: see there.
    """

    def __init__(self, window: int) -> None:
        self._window, self._whole = window, window * _AT_ONCE
        self._free, self._changed = self._whole, threading.Condition()

    def share(self, n_threads: int) -> int:
        """Return the window of each of ``n_threads``."""
        return min(self._window, self._whole // n_threads)

    @contextlib.contextmanager
    def held(self, n_values: int) -> Iterator[None]:
        """Wait for room: long rows may be more than a thread's share, or than there is."""
        n_values = min(n_values, self._whole)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= n_values)
            self._free -= n_values
        try:
            yield
        finally:
            with self._changed:
                self._free += n_values
                self._changed.notify_all()


def _check_padding(weights: Sequence[Weight]) -> None:
    """Refuse matrices of few and very long rows: a small file would take a lot of memory."""
    held = added = 0
    for weight in weights:
        values = math.prod(weight.shape)
        held += values
        added += values // weight.shape[-2] * (-weight.shape[-2] % _ROWS)
    if added > held + _MOST_ADDED:
        raise CapacityError(
            "matrices have few and very long rows",
            wanted=f"at most {held + _MOST_ADDED} values to fill up groups of {_ROWS} rows",
            got=added,
            fix="check that the file is what it says it is",
        )
