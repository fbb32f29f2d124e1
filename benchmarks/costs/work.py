"""What a launch has to do: bytes of memory, and how often its warps go through their loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from costs.launches import Recorded
from costs.model import Launched
from costs.sass import Code
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.visible import RANGE

__all__ = ["OF_KERNEL", "launched", "is_followed", "norm_behind", "of_most"]

Loops = dict[tuple[int, int], float]

_WARPS = 8
"""Parts of a sum, and of the warps of a product's block."""
_PLANES = (*range(4), *range(19, 23), *range(26, 30))
_STREAMED = {*range(4), *range(16, 20), *range(23, 27)}
"""Weights of up to three matrices: which arguments, and which of eight bytes each."""
_PIECE = 4
"""Blocks of 32 columns in a piece of a ring."""
_OF_TURN = 2 * 8 * 256
"""Columns of a row that threads of ``normalise`` hold."""
_OF_THREAD = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4)}
"""Keys and queries of a thread that makes scores, for a tile of so many queries or fewer."""


def launched(recorded: Recorded, code: Code, depth: int) -> Launched:
    """Return a launch as the model of cost takes it; ``depth`` places are in the KV cache."""
    n_bytes, loops, streamed = OF_KERNEL[recorded.kernel.name](recorded, code, depth)
    return Launched(_at_work(recorded, depth), recorded.block, n_bytes, loops, streamed)


def of_most(recorded: Recorded, code: Code) -> Code:
    """Return the instructions of a launch's blocks, without what the last of several does.

    All others stop when they counted, where there are counters.
    """
    macros = dict(recorded.kernel.defines)
    if recorded.kernel.name != "matmul" or macros["ROW_TILES"] != "1":
        return code
    names = [(at, i.name, i.guard) for at, i in enumerate(code.instructions)]
    fences = [at for at, name, _ in names if name.startswith("MEMBAR")]
    ends = [at for at, name, guard in names if name.startswith("EXIT") and guard]
    if is_followed(recorded):
        return code.until(min(at for at in ends if at > fences[0]))
    return code.until(max(at for at in ends if at < fences[0]))


def is_followed(recorded: Recorded) -> bool:
    """Whether blocks of a product count each other, and the last ones go on with what they made."""
    return recorded.kernel.name == "matmul" and recorded.arguments[33] is not None


def norm_behind(recorded: Recorded) -> Recorded | None:
    """Return the norm of a row that the last block of a product makes, as a launch of its own."""
    if not is_followed(recorded) or int(recorded.arguments[34]) not in (1, 2):
        return None
    centred, block = int(recorded.arguments[34]) - 1, int(recorded.arguments[38])
    kernel = Kernel("normalise", (("CENTRED", str(centred)), ("BLOCK", str(block))))
    return Recorded(kernel, (1, 1), 256, (*(None,) * 7, recorded.arguments[11]))


def _bytes(array: Any) -> int:
    """Return the bytes of an array, 0 of what is none."""
    if not isinstance(array, DeviceArray):
        return 0
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _matmul(recorded: Recorded, code: Code, depth: int) -> tuple[float, Loops, set[int]]:
    n_blocks, n_slots = (int(number) for number in recorded.arguments[12:14])
    n_rows = sum(int(recorded.arguments[at]) for at in (11, 25, 32))
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
    """Every tile reads all places that it sees; further tiles of their rows find them in L2.

    Around all is a loop over sequences, and in it one over ranges; behind it is what the block that
    ends last does, priced for all. Scores are made in a loop for each number of queries, of which
    a tile needs one; queries are weighed by a warp each; and of values there is a loop over stages
    of rows, of which four are taken in in a turn.
    """
    keys, macros = recorded.arguments[6], dict(recorded.kernel.defines)
    n_rows, n_ranges, tile_rows, tile_heads = map(int, recorded.arguments[19:23])
    n_queries = min(tile_rows, n_rows) * tile_heads
    most, columns = int(macros["QUERIES"]), int(macros["COLUMNS"])
    of_range, of_sequence = code.loops()[-2:]
    loops: Loops = {of_sequence: 1, of_range: -(-depth // RANGE) if n_ranges == 1 else 1}

    n_entries = {"0": 4, "1": 8, "2": 16}[macros["TYPE"]]
    n_keys, n_own = next(own for n, own in _OF_THREAD.items() if n_queries <= n)
    n_chunks = 1 if n_keys > 2 else (4 if macros["TYPE"] == "2" else 8) // n_keys
    multiply_adds = n_keys * n_own * n_chunks * n_entries
    n_loads = n_chunks * n_own * n_entries // (16 if macros["TYPE"] == "2" else 4)
    n_turns = int(recorded.arguments[28]) / n_entries / n_chunks
    scores = [
        loop
        for loop in code.innermost()
        if _count(code, loop, "LDG", ".128") == n_chunks * n_keys
        and _count(code, loop, "LDS", ".128") == n_loads
        and _count(code, loop, "FFMA") + 4 * _count(code, loop, "IDP") == multiply_adds
    ]
    loops[max(scores)] = n_turns  # those of half a range come first
    within = [loop for loop in code.innermost() if loop[1] < of_sequence[1]]
    weighing = max(within, key=lambda loop: _count(code, loop, "SHFL"))
    loops[weighing] = -(-n_queries // _WARPS)

    width = int(macros["V_THREADS"]) * columns * 16 // n_entries
    stage_bytes = max(4096, 4 * width)
    n_stages, of_stage = (20480 if most > 8 else 32768) // stage_bytes, stage_bytes // width
    fetching = [loop for loop in code.loops() if _count(code, loop, "LDGSTS")]
    first = min(loop for loop in fetching if not _count(code, loop, "BAR"))
    stages = min(loop for loop in fetching if loop > weighing and _count(code, loop, "BAR") == 1)
    loops |= {first: n_stages - 1, stages: RANGE / of_stage}
    loops |= {_around(code, loop): 1 for loop in (first, stages)}  # what rows have together
    n_groups = recorded.block // int(macros["V_THREADS"])
    of_group = most // n_groups if n_queries > n_groups else 1
    unrolled = 2 if of_group == 1 else 1
    values = [
        loop
        for loop in code.innermost()
        if stages[0] < loop[0] < stages[1]
        and not any(i.guard for i in code.body(loop) if i.name == "FFMA")  # all rows see them
        and _count(code, loop, "FFMA") == unrolled * 4 * of_group * columns
        and _count(code, loop, "LDS") == unrolled * (4 + of_group)
    ]
    loops[min(values)] = of_stage / 4 / unrolled
    return depth * keys.shape[1], loops, {6}


def _around(code: Code, inner: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest loop around another one."""
    return next(loop for loop in code.loops() if loop[0] < inner[0] and inner[1] < loop[1])


def _count(code: Code, loop: tuple[int, int], name: str, kind: str = "") -> int:
    return sum(i.name.startswith(name) and kind in i.name for i in code.body(loop))


def _at_work(recorded: Recorded, depth: int) -> int:
    """Return the blocks of a launch that find something to do: of attention, those with a range."""
    if recorded.kernel.name != "attention":
        return math.prod(recorded.grid)
    n_ranges, n_takers = int(recorded.arguments[20]), int(recorded.arguments[23])
    return recorded.grid[0] // n_takers * min(n_ranges, -(-depth // RANGE))


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
                "turns",
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
