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
from mtpcore.memory.base import PAGE

__all__ = ["OF_KERNEL", "launched"]

Loops = dict[tuple[int, int], float]

_WARPS = 8
"""Parts of a sum, and of the warps of a product's block."""
_TILE = 32
"""Entries of a tile of keys."""


def launched(recorded: Recorded, code: Code, depth: int) -> Launched:
    """Return a launch as the model of cost takes it; ``depth`` places are in the KV cache."""
    n_bytes, loops, streamed = OF_KERNEL[recorded.kernel.name](recorded, code, depth)
    n_blocks = recorded.grid[0] * recorded.grid[1]
    return Launched(n_blocks, recorded.block, n_bytes, loops, streamed)


def _bytes(array: Any) -> int:
    """Return the bytes of an array, 0 of what is none."""
    if not isinstance(array, DeviceArray):
        return 0
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _matmul(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    n_rows, n_blocks, n_slots = (int(number) for number in recorded.arguments[11:14])
    macros = {key: value for key, value in recorded.kernel.defines}
    block = int(macros["BLOCK"])
    weights = sum(map(_bytes, recorded.arguments[:4]))
    of_row = n_blocks * (block + 4) + n_blocks * block // 16 * 2 * int(macros["MINIMA"])
    n_bytes = weights + n_slots * (of_row + 4 * n_rows)
    return n_bytes, product_loops(code, macros, n_blocks / _WARPS), {0, 1, 2, 3}


def product_loops(code: Code, macros: dict[str, str], n_blocks: float) -> Loops:
    """Return how often a warp of ``matmul`` goes through its loops for so many of its blocks."""
    block, sub = int(macros["BLOCK"]), int(macros["SUB"])
    tiles = int(macros["ROW_TILES"]) * int(macros["TOKEN_TILES"])
    parts = 32 // sub if sub else 1
    steps = block // 32

    def products(loop: tuple[int, int]) -> int:
        return sum(i.pipe == "tensor" for i in code.body(loop))

    with_products = [loop for loop in code.loops() if products(loop)]
    outer = max(with_products, key=lambda loop: (products(loop), loop[1] - loop[0]))
    inner = [x for x in with_products if outer[0] <= x[0] and x[1] <= outer[1] and x != outer]
    of_block = steps * parts * tiles
    if not inner:
        return {outer: n_blocks * of_block / products(outer)}
    innermost = [x for x in inner if x in code.innermost()]
    middle = [x for x in inner if x not in innermost]
    turns = of_block / sum(map(products, innermost))
    steps_of_word = sub // 8 if sub else 1
    of_step = parts * int(macros["TOKEN_TILES"])
    loops = {outer: n_blocks}
    for loop in innermost:
        loops[loop] = steps_of_word * of_step / products(loop) if middle else turns
    for loop in middle:
        within = next(x for x in innermost if loop[0] <= x[0] and x[1] <= loop[1])
        loops[loop] = turns / loops[within]
    return loops


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
    return 12.0 * recorded.grid[0] * recorded.grid[1] * recorded.block, {}, set()


def _normalise(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    width = int(recorded.arguments[4])
    unrolled = {loop: n / 4 for loop, n in _by_threads(recorded, code, width).items()}
    return 8.0 * recorded.grid[0] * width, unrolled, set()


def _attention(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    """Every row's blocks read all places that it sees; rows after the first find them in L2."""
    n_ranges, k_width = recorded.grid[1], int(recorded.arguments[16])
    n_bytes = depth * recorded.arguments[6].shape[1]
    pages = depth / n_ranges / PAGE
    outer = max(code.loops(), key=lambda loop: loop[1] - loop[0])
    loops: Loops = {outer: pages}
    within = [x for x in code.loops() if outer[0] < x[0] and x[1] < outer[1]]
    tiles = max(within, key=lambda loop: loop[1] - loop[0])
    loops[tiles] = k_width / _TILE
    for loop in code.innermost():
        body = code.body(loop)
        n_loads = sum(i.name.startswith("LDG") for i in body)
        if loop in within and n_loads and not any(i.name.startswith("STS") for i in body):
            loops[loop] = PAGE / n_loads  # values of a page
    return n_bytes, loops, {6}


OF_KERNEL: dict[str, Callable[..., tuple[float, Loops, set[int]]]] = {
    "matmul": _matmul,
    "matmul_float": _matmul_float,
    "normalise": _normalise,
    "attention": _attention,
    **dict.fromkeys(
        (
            *("quantise", "rope", "remember", "merge", "elementwise", "embed", "copy"),
            *("choose", "settle", "not_finite", "adjust"),
        ),
        _rows,
    ),
}
"""Bytes, loops and streamed pointers of a launch, by its kernel."""
