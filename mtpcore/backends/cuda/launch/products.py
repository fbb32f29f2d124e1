"""Products with matrices: of rows, of experts, heads, positions and clusters, and the routing.

A product is one launch, or three: rows become int8 codes where they are not codes already
(``quantise``), and where rows choose among matrices, they are sorted by their choice (``group``).

====================== ================== ==================================================
operation              launches           rows of x and matrices
====================== ================== ==================================================
``matmul``             (quantise) matmul  each row, the one matrix
``head_matmul``        (quantise) matmul  each head, its own matrix
``rank_matmul``        (quantise) matmul  each rank, the one matrix
``expert_matmul``      group, then these  each row, or each rank's, the matrices of its ids
``matmul_by_position`` group, then these  each row, the matrix of its position
``cluster_matmul``     these, scatter     each row, the clusters of its ids
``route``              matmul_float,      each row, the router's matrix; then ids and shares
                       route
====================== ================== ==================================================

Weights in floating point have ``matmul_float`` in the place of ``quantise`` and ``matmul``.

The launch of up to three quantised products of the same codes may go on with what it made, where
rows are few (``Follows``); the blocks that end last do it:

=========== ======================================================= ========================
``Follows`` what becomes of the products                            kernel's number
=========== ======================================================= ========================
``Heads``   heads are rotated, and keys and values stored           HEADS
``Joined``  parts of queries are joined, and keys stored            JOINED
``Norm``    whole rows of one product are normalised                NORM, CENTRED_NORM
``Mix``     ranks are mixed to rows, which may be normalised        as their norm, or NOTHING
``Passed``  rows of one product become codes, which a later one     PASSED
            multiplies
(gates)     one product gates the other, and becomes codes;         GATES
            by ``multiply_gated``
=========== ======================================================= ========================

An example: two rows of a layer's q, k and v, all Q8_0, are one launch of ``matmul`` with the three
matrices and ``HEADS``: ``multiply_codes(codes, slots, [q, k, v], follows=heads)``. If v is Q6_K, it
is two, of which the one of q and k rotates and stores keys, and the one of v stores values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.attention import Heads, Joined
from mtpcore.backends.cuda.launch.codes import Codes, codes_for, quantise
from mtpcore.backends.cuda.launch.rows import Mix, Norm
from mtpcore.backends.cuda.launch.step import (
    THREADS,
    Launch,
    Launcher,
    Step,
    counters_for,
    n_of_row,
    n_parts_of,
)
from mtpcore.backends.cuda.layout import FLOATS, FORMATS, TILE, Format
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

WIDE, LONG = (2, 4, 1), (2, 4, 8)
"""Tiles of 16 rows and of 8 slots that a warp multiplies, and of how many eighths of the columns,
where slots are many; which of them changes no bit."""

SLOTS = 8
"""Slots of a tile of 8; a wide one has several."""

MOST_FACTORS = 3
"""Matrices of one launch; see ``kernels/matmul.cu``."""

_GATES, _NORM, _CENTRED_NORM, _PASSED, _HEADS, _JOINED, _NOTHING = range(7)
"""What follows products in their launch, as ``kernels/matmul_few.cu`` numbers it."""

_TILES = ("ROW_TILES", "TOKEN_TILES", "EIGHTHS")
_WARPS = THREADS // 32
_MANY = 128
"""CTAs that keep a GPU busy, about as many as it has multiprocessors."""
_AT_ONCE, _SHARING = 3 * 132, 2 * 132
"""CTAs of few slots that the multiprocessors of the largest GPUs hold, and as many as leave room
for the next launch; these share the tiles where there are more than that. Which changes no bit.
"""
_RING_BYTES = 40 << 10
"""Weights on their way to a CTA of few slots, where two pieces for each warp are no more."""
_MOST_STAGES = 3
_OWN_BYTES = 2 << 10
"""Shared memory of a warp besides its ring; see ``kernels/matmul_few.cu``."""
_FLOAT_ROWS = 4
_MOST_THREADS = 1024
_MOST_EXPERTS = 1024
_MOST_MATRICES = 8192
_MOST_TILES_OF_FEW = 3
"""For each matrix, where rows choose it and a tile is not wide; see ``_grouped``."""
_MOST_TILES = (1 << 16) - 1
"""What a grid takes along its second axis; products of more tiles are several launches."""


def _few(layout: Format) -> Kernel:
    """Return the kernel for few slots, and how much of the weights it has on their way."""
    piece = layout.tile_bytes * (1 if layout.block == 256 else 4)
    stages = min(max(_RING_BYTES // _WARPS // piece, 2), _MOST_STAGES)
    shared = _WARPS * (stages * piece + _OWN_BYTES)
    sizes = ("STAGES", str(stages)), ("SHARED", str(shared))
    return Kernel("matmul_few", (*layout.defines(), *sizes))


_MATMUL = {
    (kind, tiles): Kernel(
        "matmul",
        (*layout.defines(), *zip(_TILES, map(str, tiles), strict=True)),
    )
    for kind, layout in FORMATS.items()
    for tiles in (WIDE, LONG)
}
_MATMUL_FEW = {kind: _few(layout) for kind, layout in FORMATS.items()}
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
    *_MATMUL_FEW.values(),
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


def rank_matmul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each rank of each row with the matrix, as so many rows."""
    return matmul(step, n_parts_of(step.inputs[0], n_rows))


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
    arguments = _SCATTER.arguments(
        values=values,
        ids=ids,
        ordering=w.ordering,
        y=y,
        n_outputs=y.shape[1],
        n_ranks=n_ranks,
        size=size,
    )
    return [
        *_multiply_chosen(step, w.stack, x, ids, n_rows, None, values),
        Launch(_SCATTER, (n_rows, 1), arguments, block=_MOST_THREADS),
    ]


def route(step: Step, n_rows: int) -> list[Launch]:
    """Multiply with the router's matrix in floating point, then choose the experts.

    Outputs may have more ranks than there are to choose: those after them are shared experts.

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
    slots, (ids, shares) = Slots(n_rows, 1, -(-n_rows // SLOTS)), step.outputs
    kernel = _ROUTE[attrs["gate"]]
    arguments = kernel.arguments(
        logits=logits,
        correction=correction,
        factors=factors,
        ids=ids,
        shares=shares,
        n=w.n_rows,
        n_ranks=ids.shape[1],
        **_choice_of(step),
    )
    return [
        *_multiply(step, w, x, slots, n_rows, bias, logits),
        Launch(kernel, (n_rows, 1), arguments, block=32),
    ]


def _choice_of(route: Step) -> dict[str, Any]:
    """Return how experts are chosen, by the names that both kernels have for it."""
    attrs = route.attrs
    return {
        "n_used": attrs["n_used"],
        "normalise": attrs["normalise"],
        "scale": attrs["scale"],
        "n_groups": attrs["n_groups"],
        "n_groups_used": attrs["n_groups_used"],
        "n_best": attrs["n_best_of_group"],
    }


def route_few(step: Step, slots: Slots, n_rows: int) -> Launch | None:
    """Return what chooses experts, and sorts the slots of their products: None of many rows."""
    w, correction, bias, factors = (*step.weights, None, None, None)[:4]
    attrs, (ids, shares) = step.attrs, step.outputs
    n_routed = n_rows * (2 * w.n_rows + attrs["n_groups"])
    is_small = n_rows <= SLOTS and slots.n <= THREADS and n_routed <= _MOST_ROUTED
    if w.type not in FLOATS or not is_small:
        return None
    logits = step.scratch("logits", (step.inputs[0].shape[0], w.n_rows), np.float32)
    kernel = _ROUTE_FEW[w.type, attrs["gate"]]
    arguments = kernel.arguments(
        weights=w.low,
        x=step.inputs[0],
        bias=bias,
        correction=correction,
        factors=factors,
        logits=logits,
        ids=ids,
        shares=shares,
        members=slots.members,
        matrices=slots.matrices,
        counters=counters_for(step, 1),
        n_rows=n_rows,
        n_cols=w.n_cols,
        n_experts=w.n_rows,
        n_ranks=ids.shape[1],
        width=slots.width,
        n_tiles=slots.n_tiles,
        **_choice_of(step),
    )
    grid = (-(-w.n_rows // _FLOAT_ROWS), 1)
    return Launch(kernel, grid, arguments, is_early=True)


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
    arguments = _GROUP.arguments(
        ids=ids,
        rows=rows,
        members=members,
        matrices=matrices,
        n_slots=n_slots,
        n_tiles=n_tiles,
        width=width,
        stride=stride,
        first=first,
        n_matrices=w.n_matrices,
    )
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
        kernel, n_ctas = _MATMUL_FLOAT[w.type], -(-w.n_rows // _FLOAT_ROWS)
        return [
            Launch(
                kernel,
                (n_ctas, n_tiles, slots.n_heads),
                kernel.arguments(
                    weights=w.low,
                    x=x,
                    bias=bias,
                    matrices=slots.matrices,
                    members=slots.members,
                    y=y,
                    n_rows=w.n_rows,
                    n_cols=w.n_cols,
                    n_slots=slots.n,
                    n_ranks=slots.n_ranks,
                    from_tile=from_tile,
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

    The rows of a residual are added; heads are rotated and stored, or what is joined to them, or
    rows are mixed, or normalised, or become codes.
    """
    by_type: dict[tuple[int, int], list[Factor]] = {}
    for number, factor in enumerate(factors):
        # The kernel puts the first of its products alone among columns of wider rows.
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


def _following(factors: Sequence[Factor], follows: Follows | None) -> dict[str, Any]:
    """Return what follows these products, as arguments of the kernel."""
    products = [factor.y for factor in factors]
    if isinstance(follows, Heads) and (kinds := follows.kinds_of(products)):
        most = sum(_n_tiles(factor.w.n_rows) for factor in factors)
        counters = counters_for(follows.step, most)
        return {"follows": _HEADS, "counters": counters, "kinds": kinds, **follows.arguments}
    if isinstance(follows, Joined) and any(y is follows.products[0] for y in products):
        return {"follows": _JOINED, **follows.arguments}
    if isinstance(follows, Norm):
        number = next((i for i, y in enumerate(products) if y is follows.step.inputs[0]), -1)
        if number >= 0:
            counters = counters_for(follows.step, 1)
            return {"counters": counters, "kinds": number, **_normalised(follows)}
    if isinstance(follows, Mix):
        first, second = follows.residuals
        return {
            "counters": counters_for(follows.step, 1 + _n_tiles(factors[0].w.n_rows)),
            "shares": follows.shares,
            "first_residual": first,
            "second_residual": second,
            "mixed_y": follows.y,
            "n_mixed": follows.step.inputs[0].shape[1],
            **_normalised(follows.norm),
        }
    if isinstance(follows, Passed) and (number := follows.number_of(factors)) >= 0:
        return {
            "follows": _PASSED,
            "counters": counters_for(follows.step, follows.n_blocks),
            "kinds": number,
            **_becoming(follows.codes),
            "part_begin": follows.x.begin,
            "part_width": follows.x.shape[-1],
            "part_apart": follows.x.apart,
        }
    return {"follows": _NOTHING}


def _normalised(norm: Norm | None) -> dict[str, Any]:
    """Return what normalises a product, or rows that are mixed, as arguments of the kernel."""
    if norm is None:
        return {"follows": _NOTHING}
    weight, bias = norm.weights
    return {
        "follows": _CENTRED_NORM if norm.is_centred else _NORM,
        **_becoming(norm.codes),
        "weight_of_norm": weight,
        "bias_of_norm": bias,
        "normed": norm.kept,
        "eps": norm.eps,
    }


def _becoming(codes: Codes | None) -> dict[str, Any]:
    """Return the codes that rows become, if they do, as arguments of the kernel."""
    if codes is None:
        return {}
    return {
        "codes": codes.codes,
        "scales_of_codes": codes.scales,
        "sums_of_codes": codes.sums,
        "of_codes": codes.block,
    }


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
    following = {
        "follows": _GATES,
        "counters": counters,
        **_becoming(made),
        "kind": ACTIVATIONS.index(attrs["kind"]),
        "limit": attrs["limit"],
        "offset": attrs["offset"],
    }
    return [
        _multiply_together(codes, slots, (gate, other), None, *part, following)
        for part in _parts_of(slots)
    ]


def _parts_of(slots: Slots) -> list[tuple[int, int]]:
    """Return the first tile of each launch, and how many it makes."""
    firsts = range(0, slots.n_tiles, _MOST_TILES)
    return [(first, min(slots.n_tiles - first, _MOST_TILES)) for first in firsts]


def _n_tiles(n_rows: int) -> int:
    """Return how many tiles the rows of a matrix take."""
    return -(-n_rows // TILE)


def _sharing(n_tiles: int) -> int:
    """Return how many CTAs of few slots share so many tiles."""
    return n_tiles if n_tiles <= _AT_ONCE else -(-n_tiles // -(-n_tiles // _SHARING))


def _wide_tiles(n_rows: Sequence[int], slots: Slots) -> tuple[int, int, int]:
    """Return the tiles of products of many slots with matrices of so many rows."""
    # In LONG ones each warp goes through all columns, so that a CTA adds up no eighths. That takes
    # an eighth of the CTAs: only where these are still enough to keep a GPU busy.
    is_busy = sum(_n_ctas(n, LONG) for n in n_rows) * slots.n_tiles * slots.n_heads >= _MANY
    return LONG if is_busy else WIDE


def _n_ctas(n_rows: int, tiles: tuple[int, int, int]) -> int:
    """Return how many CTAs the rows of a matrix take, where slots are many."""
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
    following: dict[str, Any],
) -> Launch:
    first, n_rows = factors[0], [factor.w.n_rows for factor in factors]
    if slots.is_wide:
        assert following["follows"] == _NOTHING, "something follows products of many slots"
        tiles = _wide_tiles(n_rows, slots)
        kernel, n_ctas = _MATMUL[first.w.type, tiles], sum(_n_ctas(n, tiles) for n in n_rows)
        following = {}
    else:
        kernel, n_ctas = _MATMUL_FEW[first.w.type], _sharing(sum(map(_n_tiles, n_rows)))
        n_ctas += following["follows"] == _JOINED  # which has one of its own for the other parts
    arguments = kernel.arguments(
        **_planes(first.w, ""),
        x=codes.codes,
        x_scales=codes.scales,
        x_sums=codes.sums,
        bias=first.bias,
        matrices=slots.matrices,
        members=slots.members,
        y=first.y,
        n_rows=first.w.n_rows,
        n_blocks=codes.scales.shape[1],
        n_slots=slots.n,
        n_ranks=slots.n_ranks,
        from_tile=from_tile,
        y_begin=first.y.begin,
        y_pitch=first.y.pitch or first.w.n_rows,
        residual=residual,
        **_others(factors[1:]),
        **following,
    )
    return Launch(kernel, (n_ctas, n_tiles, slots.n_heads), arguments, is_early=True)


def _others(factors: Sequence[Factor]) -> dict[str, Any]:
    """Return the second and third factor as arguments of the kernel."""
    found: dict[str, Any] = {}
    for number, factor in enumerate(factors, 2):
        found |= _planes(factor.w, f"_{number}")
        found |= {f"bias_{number}": factor.bias, f"y_{number}": factor.y}
        found[f"n_rows_{number}"] = factor.w.n_rows
    return found


def _planes(w: DeviceMatrix, suffix: str) -> dict[str, DeviceArray | None]:
    """Return the planes of a matrix as arguments of the kernel."""
    planes = {"low": w.low, "high": w.high, "parts": w.factors, "scales": w.scales}
    return {f"{name}{suffix}": plane for name, plane in planes.items()}


LAUNCHERS: dict[str, Launcher] = {
    "matmul": matmul,
    "expert_matmul": expert_matmul,
    "head_matmul": matmul,
    "rank_matmul": rank_matmul,
    "matmul_by_position": matmul_by_position,
    "cluster_matmul": cluster_matmul,
    "route": route,
}
