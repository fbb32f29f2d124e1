"""Products with matrices: of rows, of experts, heads, positions and clusters, and the routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.attention import Heads, Joined
from mtpcore.backends.cuda.launch.codes import Codes, codes_for, made_of, quantise
from mtpcore.backends.cuda.launch.rows import Mix, Norm
from mtpcore.backends.cuda.launch.step import (
    THREADS,
    Launch,
    Launcher,
    Step,
    counters_for,
    n_of_row,
)
from mtpcore.backends.cuda.layout import FLOATS, FORMATS, TILE
from mtpcore.errors import BackendError
from mtpcore.graph.ops import ACTIVATIONS

__all__ = [
    "KERNELS",
    "LAUNCHERS",
    "ClusteredMatrix",
    "DeviceMatrix",
    "Factor",
    "Follows",
    "Passed",
    "Slots",
    "can_gate",
    "counters_of_gates",
    "multiply_codes",
    "multiply_gated",
    "route_few",
    "slots_of_experts",
    "slots_of_rows",
]

NARROW, WIDE, LONG = (1, 1, 1), (2, 4, 1), (2, 4, 8)
"""Tiles of 16 rows and of 8 slots that a warp multiplies, and of how many eighths of the columns;
which of them changes no bit."""

SLOTS = 8
"""Slots of a tile of 8; a wide one has several."""

MOST_FACTORS = 3
"""Matrices of one launch; see ``kernels/matmul.cu``."""

_GATES, _NORM, _CENTRED_NORM, _PASSED, _HEADS, _JOINED, _NOTHING = map(np.int32, range(7))
"""What follows products in their launch, as ``kernels/matmul.cu`` numbers it."""

_NO_CODES, _NO_GATE = (*(None,) * 3, np.int32(0)), (np.int32(0), *(np.float32(0),) * 2)
_NO_NORM = None, None, None, np.float32(0)
_NO_HEADS = *(None,) * 6, *(np.int64(0),) * 2, *(np.int32(0),) * 6
_NO_PARTS, _NO_MIX = (np.int32(0),) * 3, (*(None,) * 4, np.int32(0))
_NO_JOINED = (None, np.int32(0), np.int32(0)) * 2

_TILES = ("ROW_TILES", "TOKEN_TILES", "EIGHTHS")
_WARPS = THREADS // 32
_MANY = 128
"""CTAs that keep a GPU busy, about as many as it has multiprocessors."""
_FLOAT_ROWS = 4
_MOST_THREADS = 1024
_MOST_EXPERTS = 1024
_MOST_MATRICES = 8192
_MOST_TILES_OF_FEW = 3
"""For each matrix, where rows choose it and a tile is not wide; see ``_grouped``."""
_MOST_TILES = (1 << 16) - 1
"""What a grid takes along its second axis; products of more tiles are several launches."""

_MATMUL = {
    (kind, tiles): Kernel(
        "matmul",
        (*layout.defines(), *zip(_TILES, map(str, tiles), strict=True)),
    )
    for kind, layout in FORMATS.items()
    for tiles in (NARROW, WIDE, LONG)
}
_MATMUL_FLOAT = {
    kind: Kernel("matmul_float", (("TYPE", str(number)),)) for kind, number in FLOATS.items()
}
_MOST_ROUTED = 6400
"""Gates, scores and worths of groups that ``route_few`` has room for."""

_GROUP, _SCATTER = Kernel("group"), Kernel("scatter")
_ROUTE = {
    gate: Kernel("route", (("SOFTMAX", str(i)),)) for i, gate in enumerate(("sigmoid", "softmax"))
}
_ROUTE_FEW = {
    (kind, gate): Kernel("route_few", (("TYPE", str(number)), *kernel.defines))
    for kind, number in FLOATS.items()
    for gate, kernel in _ROUTE.items()
}
KERNELS = (
    *_MATMUL.values(),
    *_MATMUL_FLOAT.values(),
    *_ROUTE.values(),
    *_ROUTE_FEW.values(),
    _GROUP,
    _SCATTER,
)


class DeviceMatrix(msgspec.Struct, frozen=True):
    """A stack of packed matrices on a device; see ``layout.PackedMatrix``."""

    type: int
    n_matrices: int
    n_rows: int
    n_cols: int
    low: DeviceArray
    high: DeviceArray | None
    factors: DeviceArray | None
    scales: DeviceArray | None


class ClusteredMatrix(msgspec.Struct, frozen=True):
    """A matrix as a stack of its clusters' rows.

    ``ordering`` int32[n_clusters * rows of one] says which row of the matrix each of them is.
    """

    stack: DeviceMatrix
    ordering: DeviceArray


class Slots(msgspec.Struct, frozen=True):
    """The results of a product, and the tiles that they are made in; see ``kernels/slots.cuh``.

    ``n_ranks`` slots share a row of x; each of ``n_heads`` has ``n_tiles``. ``matrices``
    int32[n_tiles] and ``members`` int32[n_tiles, width] are of a stack whose matrices the slots
    choose.
    """

    n: int
    n_ranks: int
    n_tiles: int
    is_wide: bool = False
    n_heads: int = 1
    matrices: DeviceArray | None = None
    members: DeviceArray | None = None

    @property
    def width(self) -> int:
        """Slots of a tile."""
        return SLOTS * (WIDE[1] if self.is_wide else 1)


def matmul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each row with the matrix, or each head with its own."""
    w, bias = (*step.weights, None)[:2]
    slots = slots_of_rows(w, n_rows)
    return _multiply(step, w, step.inputs[0], slots, slots.n, bias, step.outputs[0])


def slots_of_rows(w: DeviceMatrix, n_rows: int) -> Slots:
    """Return the slots of a product of each row with a matrix, or of each head with its own."""
    width, is_wide = _width(w, n_rows)
    return Slots(n_rows * w.n_matrices, 1, -(-n_rows // width), is_wide, w.n_matrices)


def expert_matmul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each row, or each rank's, with the matrices of its experts."""
    (x, ids), (w, bias) = step.inputs, (*step.weights, None)[:2]
    return _multiply_chosen(step, w, x, ids, n_rows, bias, step.outputs[0])


def matmul_by_position(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each row with the matrix of its position."""
    x, positions = step.inputs
    w = step.weights[0]
    slots, group = _grouped(
        step,
        w,
        positions,
        n_rows,
        stride=positions.shape[1],
        first=step.attrs["first"],
        rows=step.chosen,
    )
    return [group, *_multiply(step, w, x, slots, n_rows, None, step.outputs[0])]


def cluster_matmul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each row with the clusters chosen, and put minus infinity elsewhere."""
    x, ids = step.inputs
    w, y = step.weights[0], step.outputs[0]
    n_ranks, size = ids.shape[1], w.stack.n_rows
    values = step.scratch("values", (x.shape[0], n_ranks, size), np.float32)
    arguments = (values, ids, w.ordering, y, *map(np.int32, (y.shape[1], n_ranks, size)))
    return [
        *_multiply_chosen(step, w.stack, x, ids, n_rows, None, values),
        Launch(_SCATTER, (n_rows, 1), arguments, block=_MOST_THREADS),
    ]


def route(step: Step, n_rows: int) -> list[Launch]:
    """Multiply with the router's matrix in floating point, then choose the experts.

    Outputs may have more ranks than there are to choose: those behind them are shared experts.

    Raises
    ------
    BackendError
        There are more experts than the kernel has room for.
    """
    x, attrs = step.inputs[0], step.attrs
    w, correction, bias, factors = (*step.weights, None, None, None)[:4]
    if w.n_rows > _MOST_EXPERTS:
        raise BackendError(
            "too many experts for the CUDA kernel", wanted=f"at most {_MOST_EXPERTS}", got=w.n_rows
        )
    logits = step.scratch("logits", (x.shape[0], w.n_rows), np.float32)
    slots = Slots(n_rows, 1, -(-n_rows // SLOTS))
    arguments = (
        logits,
        correction,
        factors,
        *step.outputs,
        *map(np.int32, (w.n_rows, attrs["n_used"], step.outputs[0].shape[1], attrs["normalise"])),
        np.float32(attrs["scale"]),
        *(np.int32(attrs[name]) for name in ("n_groups", "n_groups_used", "n_best_of_group")),
    )
    return [
        *_multiply(step, w, x, slots, n_rows, bias, logits),
        Launch(_ROUTE[attrs["gate"]], (n_rows, 1), arguments, block=32),
    ]


def route_few(step: Step, slots: Slots, n_rows: int) -> Launch | None:
    """Return what chooses experts, and sorts the slots of their products: None of many rows."""
    w, correction, bias, factors = (*step.weights, None, None, None)[:4]
    attrs, (ids, shares) = step.attrs, step.outputs
    n_routed = n_rows * (2 * w.n_rows + attrs["n_groups"])
    is_small = n_rows <= SLOTS and slots.n <= THREADS and n_routed <= _MOST_ROUTED
    if w.type not in FLOATS or not is_small:
        return None
    logits = step.scratch("logits", (step.inputs[0].shape[0], w.n_rows), np.float32)
    arguments = (
        *(w.low, step.inputs[0], bias, correction, factors, logits, ids, shares),
        *(slots.members, slots.matrices, counters_for(step, 1)),
        *map(np.int32, (n_rows, w.n_cols, w.n_rows, attrs["n_used"])),
        *map(np.int32, (ids.shape[1], attrs["normalise"])),
        np.float32(attrs["scale"]),
        *(np.int32(attrs[name]) for name in ("n_groups", "n_groups_used", "n_best_of_group")),
        *map(np.int32, (slots.width, slots.n_tiles)),
    )
    grid = (-(-w.n_rows // _FLOAT_ROWS), 1)
    return Launch(_ROUTE_FEW[w.type, attrs["gate"]], grid, arguments, is_early=True)


def _width(w: DeviceMatrix, n_slots: int) -> tuple[int, bool]:
    """Return how many slots of a matrix a tile takes, and whether that is a wide one."""
    is_wide = w.type in FORMATS and n_slots > SLOTS
    return SLOTS * (WIDE[1] if is_wide else 1), is_wide


def _multiply_chosen(
    step: Step,
    w: DeviceMatrix,
    x: DeviceArray,
    ids: DeviceArray,
    n_rows: int,
    bias: DeviceArray | None,
    y: DeviceArray,
) -> list[Launch]:
    """Multiply rows of x, or of each rank, with the matrices of ids [rows, ranks]."""
    slots, group = slots_of_experts(step, w, x, ids, n_rows)
    return [group, *_multiply(step, w, x, slots, slots.n // slots.n_ranks, bias, y)]


def slots_of_experts(
    step: Step, w: DeviceMatrix, x: DeviceArray, ids: DeviceArray, n_rows: int
) -> tuple[Slots, Launch]:
    """Return the slots of products of rows, or of each rank's, with the matrices that ids choose.

    The launch sorts them.
    """
    n_used = ids.shape[1]
    has_row_each = len(x.shape) == 3
    return _grouped(step, w, ids, n_rows, n_used, 1 if has_row_each else n_used)


def _grouped(
    step: Step,
    w: DeviceMatrix,
    ids: DeviceArray,
    n_rows: int,
    per_row: int = 1,
    n_ranks: int = 1,
    *,
    stride: int = 1,
    first: int = 0,
    rows: DeviceArray | None = None,
) -> tuple[Slots, Launch]:
    """Sort the slots of rows by the matrix that they choose; a tile has slots of one matrix.

    Raises
    ------
    BackendError
        There are more matrices than the kernel has room to count for.
    """
    if w.n_matrices > _MOST_MATRICES:
        raise BackendError(
            "too many matrices to choose from for the CUDA kernel",
            wanted=f"at most {_MOST_MATRICES}",
            got=w.n_matrices,
        )
    n_slots, most = n_rows * per_row, step.inputs[0].shape[0] * per_row
    width, is_wide = _width(w, n_slots // w.n_matrices)
    n_tiles = min(n_slots, n_slots // width + w.n_matrices)
    members = step.scratch("members", (most, SLOTS * WIDE[1]), np.int32)
    matrices = step.scratch("matrices", (most,), np.int32)
    sizes = (n_slots, n_tiles, width, stride, first, w.n_matrices)
    arguments = (ids, rows, members, matrices, *map(np.int32, sizes))
    slots = Slots(n_slots, n_ranks, n_tiles, is_wide, 1, matrices, members)
    return slots, Launch(_GROUP, (1, 1), arguments, block=_MOST_THREADS)


def _multiply(
    step: Step,
    w: DeviceMatrix,
    x: DeviceArray,
    slots: Slots,
    n_rows_of_x: int,
    bias: DeviceArray | None,
    y: DeviceArray,
) -> list[Launch]:
    """Quantise rows of x where the matrix is, then multiply."""
    if w.type in FLOATS:
        sizes = (w.n_rows, w.n_cols, slots.n, slots.n_ranks)
        return [
            Launch(
                _MATMUL_FLOAT[w.type],
                (-(-w.n_rows // _FLOAT_ROWS), n_tiles, slots.n_heads),
                (
                    *(w.low, x, bias, slots.matrices, slots.members, y),
                    *map(np.int32, (*sizes, from_tile)),
                ),
                is_early=True,
            )
            for from_tile, n_tiles in _parts_of(slots)
        ]
    codes = codes_for(step, FORMATS[w.type].block, x, w.n_cols)
    return [quantise(x, codes, n_rows_of_x), *multiply_codes(codes, slots, [Factor(w, bias, y)])]


class Factor(msgspec.Struct, frozen=True):
    """A matrix, or a stack of them, that rows are multiplied with, and where that is put."""

    w: DeviceMatrix
    bias: DeviceArray | None
    y: DeviceArray


class Passed(msgspec.Struct, frozen=True):
    """What ``step`` reads of a product ``y``, as rows ``x``, and the ``codes`` that these become.

    They are the product's rows, or columns of each of their parts.
    """

    step: Step
    y: DeviceArray
    x: DeviceArray
    codes: Codes

    def are_of(self, factors: Sequence[Factor], slots: Slots) -> bool:
        """Whether they are those of a product of few rows, and their blocks whole tiles of it."""
        number = self.number_of(factors)
        if number < 0 or slots.is_wide or slots.members:
            return False
        return not any(n % TILE for n in (factors[number].w.n_rows, self.x.begin, self.x.apart))

    def number_of(self, factors: Sequence[Factor]) -> int:
        """Return which product they are of, -1 for none."""
        made = (i for i, factor in enumerate(factors) if factor.y is self.y)
        return next(made, -1)

    @property
    def n_blocks(self) -> int:
        """How many blocks of codes a row has."""
        return n_of_row(self.x) // self.codes.block


Follows = Heads | Joined | Norm | Mix | Passed
"""What can follow products in their launch."""


def multiply_codes(
    codes: Codes,
    slots: Slots,
    factors: Sequence[Factor],
    residual: DeviceArray | None = None,
    follows: Follows | None = None,
) -> list[Launch]:
    """Multiply the same rows with all matrices; those of a type together, up to three.

    The rows of a residual are added; heads are turned and stored, or what is joined to them, or
    rows are mixed, or normalised, or become codes.
    """
    by_type: dict[tuple[int, int], list[Factor]] = {}
    for number, factor in enumerate(factors):
        alone = number if factor.y.pitch else -1
        by_type.setdefault((factor.w.type, alone), []).append(factor)
    return [
        _multiply_together(
            codes,
            slots,
            alike[begin : begin + MOST_FACTORS],
            residual,
            *part,
            _following(alike[begin : begin + MOST_FACTORS], follows),
        )
        for alike in by_type.values()
        for begin in range(0, len(alike), MOST_FACTORS)
        for part in _parts_of(slots)
    ]


def _following(factors: Sequence[Factor], follows: Follows | None) -> tuple[Any, ...]:
    """Return what follows these products, as the kernel takes it."""
    products = [factor.y for factor in factors]
    if isinstance(follows, Heads) and (kinds := follows.kinds_of(products)):
        most = sum(_n_ctas(factor.w.n_rows, NARROW) for factor in factors)
        counters = counters_for(follows.step, most)
        return _arguments_of(counters, _HEADS, which=kinds, heads=follows.arguments)
    if isinstance(follows, Joined) and any(y is follows.products[0] for y in products):
        weight, eps = (*follows.norm.weights, None)[0], np.float32(follows.norm.attrs["eps"])
        norm, of_keys = (weight, None, None, eps), follows.arguments
        return _arguments_of(None, _JOINED, norm=norm, heads=of_keys, joined=follows.parts)
    if isinstance(follows, Norm):
        number = next((i for i, y in enumerate(products) if y is follows.step.inputs[0]), -1)
        if number >= 0:
            return _with_norm(counters_for(follows.step, 1), follows, which=number)
    if isinstance(follows, Mix):
        counters = counters_for(follows.step, 1 + _n_ctas(factors[0].w.n_rows, NARROW))
        mixed = *follows.arguments, np.int32(follows.step.inputs[0].shape[1])
        return _with_norm(counters, follows.norm, mix=mixed)
    if isinstance(follows, Passed) and (number := follows.number_of(factors)) >= 0:
        x, counters = follows.x, counters_for(follows.step, follows.n_blocks)
        parts = tuple(map(np.int32, (x.begin, x.shape[-1], x.apart)))
        codes = made_of(follows.codes)
        return _arguments_of(counters, _PASSED, which=number, codes=codes, parts=parts)
    return _arguments_of()


def _with_norm(
    counters: DeviceArray, norm: Norm | None, *, which: int = 0, mix: tuple[Any, ...] = _NO_MIX
) -> tuple[Any, ...]:
    """Return what normalises a product, or rows that are mixed, as the kernel takes it."""
    if norm is None:
        return _arguments_of(counters, mix=mix)
    kind = _CENTRED_NORM if norm.is_centred else _NORM
    made, given = norm.made, norm.arguments
    return _arguments_of(counters, kind, which=which, codes=made, norm=given, mix=mix)


def _arguments_of(
    counters: DeviceArray | None = None,
    kind: np.int32 = _NOTHING,
    *,
    which: int = 0,
    codes: tuple[Any, ...] = _NO_CODES,
    gate: tuple[Any, ...] = _NO_GATE,
    norm: tuple[Any, ...] = _NO_NORM,
    heads: tuple[Any, ...] = _NO_HEADS,
    parts: tuple[Any, ...] = _NO_PARTS,
    mix: tuple[Any, ...] = _NO_MIX,
    joined: tuple[Any, ...] = _NO_JOINED,
) -> tuple[Any, ...]:
    """Return the arguments for what follows products, in the kernel's order.

    ``which`` is the number of the product that it follows, or says of all which heads they are.
    """
    return counters, kind, *codes, *gate, *norm, np.int32(which), *heads, *parts, *mix, *joined


def can_gate(slots: Slots, gate: Factor, other: Factor) -> bool:
    """Whether one launch multiplies with both and makes codes of the products, gated."""
    if slots.is_wide or slots.n_heads > 1:
        return False
    return gate.w.type == other.w.type and gate.w.n_rows == other.w.n_rows


def counters_of_gates(step: Step, w: DeviceMatrix, block: int) -> DeviceArray:
    """Return counters for ``multiply_gated``, for all tiles that rows may have where they are few.

    They are the same for any run, so that the first one makes them, and no graph.
    """
    most = _MOST_TILES_OF_FEW * w.n_matrices
    return counters_for(step, most * (w.n_rows // block))


def multiply_gated(
    codes: Codes,
    slots: Slots,
    gate: Factor,
    other: Factor,
    made: Codes,
    counters: DeviceArray,
    attrs: dict[str, Any],
) -> list[Launch]:
    """Multiply rows with two matrices, and make codes of one product that the other gates.

    ``attrs`` say how; see ``codes.quantise_gated``.
    """
    of_gate = (
        np.int32(ACTIVATIONS.index(attrs["kind"])),
        *(np.float32(attrs[name]) for name in ("limit", "offset")),
    )
    following = _arguments_of(counters, _GATES, codes=made_of(made), gate=of_gate)
    return [
        _multiply_together(codes, slots, (gate, other), None, *part, following)
        for part in _parts_of(slots)
    ]


def _parts_of(slots: Slots) -> list[tuple[int, int]]:
    """Return the first tile of each launch, and how many it makes."""
    firsts = range(0, slots.n_tiles, _MOST_TILES)
    return [(first, min(slots.n_tiles - first, _MOST_TILES)) for first in firsts]


def _tiles(n_rows: Sequence[int], slots: Slots) -> tuple[int, int, int]:
    """Return the tiles of products with matrices of so many rows.

    They keep a GPU busy with as little work as they can.
    """
    if not slots.is_wide:
        return NARROW
    is_busy = sum(_n_ctas(n, LONG) for n in n_rows) * slots.n_tiles * slots.n_heads >= _MANY
    return LONG if is_busy else WIDE


def _n_ctas(n_rows: int, tiles: tuple[int, int, int]) -> int:
    """Return how many CTAs the rows of a matrix take."""
    row_tiles, _, eighths = tiles
    n_warps = -(-n_rows // (TILE * row_tiles))
    return -(-n_warps // _WARPS) if eighths > 1 else n_warps


def _multiply_together(
    codes: Codes,
    slots: Slots,
    factors: Sequence[Factor],
    residual: DeviceArray | None,
    from_tile: int,
    n_tiles: int,
    following: tuple[Any, ...],
) -> Launch:
    first, (_, kind, *_) = factors[0], following
    tiles = _tiles([factor.w.n_rows for factor in factors], slots)
    sizes = (first.w.n_rows, codes.scales.shape[1], slots.n, slots.n_ranks)
    others: list[Any] = []
    for factor in factors[1:]:
        others += [*_planes(factor.w), factor.bias, factor.y, np.int32(factor.w.n_rows)]
    nobody = (*(None,) * 6, np.int32(0))
    n_ctas = sum(_n_ctas(factor.w.n_rows, tiles) for factor in factors) + (kind == _JOINED)
    return Launch(
        _MATMUL[first.w.type, tiles],
        (int(n_ctas), n_tiles, slots.n_heads),
        (
            *_planes(first.w),
            *(codes.codes, codes.scales, codes.sums, first.bias),
            *(slots.matrices, slots.members, first.y),
            *map(np.int32, (*sizes, from_tile, first.y.begin, first.y.pitch or first.w.n_rows)),
            residual,
            *others,
            *nobody * (MOST_FACTORS - len(factors)),
            *following,
        ),
        is_early=True,
    )


def _planes(w: DeviceMatrix) -> tuple[DeviceArray | None, ...]:
    return w.low, w.high, w.factors, w.scales


LAUNCHERS: dict[str, Launcher] = {
    "matmul": matmul,
    "expert_matmul": expert_matmul,
    "head_matmul": matmul,
    "matmul_by_position": matmul_by_position,
    "cluster_matmul": cluster_matmul,
    "route": route,
}
