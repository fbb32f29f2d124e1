"""What a launch has to do: bytes of memory, and how often its warps go through their loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from costs.launches import Recorded
from costs.model import Launched
from costs.sass import Code
from mtpcore.backends.cuda.device import DeviceArray

__all__ = ["OF_KERNEL", "launched"]

Loops = dict[tuple[int, int], float]

_WARPS = 8
"""Parts of a sum, and of the warps of a product's block."""
_PLANES = (*range(4), *range(17, 21), *range(24, 28))
_STREAMED = {*range(4), *range(15, 19), *range(22, 26)}
"""Weights of up to three matrices: which arguments, and which of eight bytes each."""
_PIECE = 4
"""Blocks of 32 columns in a piece of a ring."""
_OF_TURN = 2 * 8 * 256
"""Columns of a row that threads of ``normalise`` hold."""
_EACH = 8
"""Queries of a thread that computes scores."""


def launched(recorded: Recorded, code: Code, depth: int) -> Launched:
    """Return a launch as the model of cost takes it; ``depth`` places are in the KV cache."""
    n_bytes, loops, streamed = OF_KERNEL[recorded.kernel.name](recorded, code, depth)
    return Launched(math.prod(recorded.grid), recorded.block, n_bytes, loops, streamed)


def _bytes(array: Any) -> int:
    """Return the bytes of an array, 0 of what is none."""
    if not isinstance(array, DeviceArray):
        return 0
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _matmul(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    n_blocks, n_slots = (int(number) for number in recorded.arguments[12:14])
    n_rows = sum(int(recorded.arguments[at]) for at in (11, 23, 30))
    macros = dict(recorded.kernel.defines)
    block = int(macros["BLOCK"])
    weights = sum(_bytes(recorded.arguments[at]) for at in _PLANES)
    of_row = n_blocks * (block + 4) + n_blocks * block // 16 * 2 * int(macros["MINIMA"])
    n_bytes = weights + n_slots * (of_row + 4 * n_rows)
    return n_bytes, product_loops(code, macros, n_blocks / _WARPS), _STREAMED


def product_loops(code: Code, macros: dict[str, str], n_blocks: float) -> Loops:
    """Return how often a warp of ``matmul`` goes through its loops; an eighth has so many blocks.

    Loops are over eighths, over blocks, of which the compiler takes several in a turn, and over
    pairs of products. Where there is a ring, its pieces' loop has two ways back; the longer one
    fetches a piece.
    """

    def products(loop: tuple[int, int]) -> int:
        return sum(i.pipe == "tensor" for i in code.body(loop))

    is_of_32, eighths = macros["BLOCK"] == "32", macros["EIGHTHS"]
    loops = sorted(filter(products, code.loops()), key=lambda loop: loop[0] - loop[1])
    if macros["ROW_TILES"] == "1":
        return {loops[0]: n_blocks / (_PIECE if is_of_32 else 1)}
    found = {loops.pop(0): float(eighths)} if eighths != "1" else {}
    if not is_of_32:
        return found | dict(zip(loops, (n_blocks, 4.0), strict=True))
    most = max(loops, key=products)
    of_block = int(macros["ROW_TILES"]) * int(macros["TOKEN_TILES"])
    return found | {most: n_blocks * of_block / products(most)}


def _matmul_float(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    n_rows, n_cols, n_slots = (int(number) for number in recorded.arguments[6:9])
    n_bytes = _bytes(recorded.arguments[0]) + 4 * n_slots * (n_rows + n_cols)
    return n_bytes, _by_threads(recorded, code, n_cols / 4), {0}


def _by_threads(recorded: Recorded, code: Code, n_items: float) -> Loops:
    """Threads of a block share items; a turn of a loop takes as many as it has largest loads."""

    def loads(loop: tuple[int, int]) -> int:
        body = code.body(loop)
        return sum(i.name.startswith("LDG") for i in body)

    loops = [loop for loop in code.innermost() if loads(loop)]
    if not loops:
        return {}
    most = max(map(loads, loops))
    return {loop: max(n_items / recorded.block, 1) for loop in loops if loads(loop) == most}


def _rows(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    """Of a kernel whose threads make a few values each: 12 bytes a thread at most."""
    return 12.0 * math.prod(recorded.grid) * recorded.block, {}, set()


def _normalise(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    """Threads go through a row, so many columns at once, for its sums and then for its values."""
    width = int(recorded.arguments[7])
    loops = code.loops()
    outer = [
        loop
        for loop in loops
        if not any(a <= loop[0] and loop[1] <= b for a, b in loops if (a, b) != loop)
    ]
    return 8.0 * recorded.grid[0] * width, dict.fromkeys(outer, -(-width // _OF_TURN)), set()


def _attention(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    """Every tile reads all places that it sees; tiles of further heads' rows find them in L2.

    Around the scores and the values of a step are loops over sequences, ranges and steps.
    """
    keys, macros = recorded.arguments[6], dict(recorded.kernel.defines)
    n_rows, n_ranges, tile_rows, _, _, n_shared, k_width = map(int, recorded.arguments[13:20])
    n_queries = min(min(tile_rows, n_rows) * n_shared, int(macros["QUERIES"]))
    n_keys = recorded.block / (4 if n_queries > 16 else 2 if n_queries > 8 else 1)
    steps = max(depth / n_ranges / n_keys, 1)
    around = sorted(code.loops(), key=lambda loop: loop[0] - loop[1])[:3]
    loops: Loops = {around[2]: steps}
    of_thread = int(macros["COLUMNS"]) * int(macros["QUERIES"]) * int(macros["V_THREADS"])
    for loop in code.innermost():
        body = code.body(loop)
        n_float = sum(i.name.startswith("FFMA") for i in body)
        loads = any(i.name.startswith("LDG") for i in body)
        if not (around[2][0] < loop[0] and loop[1] < around[2][1]) or n_float < 4:
            continue
        n = k_width * _EACH if loads else n_keys * of_thread / recorded.block
        loops[loop] = max(n / n_float, 1)
    return depth * keys.shape[1], loops, {6}


OF_KERNEL: dict[str, Callable[..., tuple[float, Loops, set[int]]]] = {
    "matmul": _matmul,
    "matmul_float": _matmul_float,
    "normalise": _normalise,
    "attention": _attention,
    **dict.fromkeys(
        (
            *(
                "quantise",
                "rope",
                "remember",
                "turn_and_store",
                "merge",
                "elementwise",
                "embed",
                "copy",
            ),
            *("choose", "settle", "not_finite", "adjust"),
            *("spread", "place", "draft"),
        ),
        _rows,
    ),
}
"""Bytes, loops and streamed pointers of a launch, by its kernel."""
