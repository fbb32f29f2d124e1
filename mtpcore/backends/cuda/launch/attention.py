"""Attention over pages of keys and values, and what is stored in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.codes import Codes
from mtpcore.backends.cuda.launch.rows import angles_of
from mtpcore.backends.cuda.launch.step import THREADS, Launch, Launcher, Step, counters_for
from mtpcore.backends.cuda.layout import TILE
from mtpcore.backends.cuda.store import StoredLayer
from mtpcore.backends.cuda.visible import Attended
from mtpcore.errors import BackendError
from mtpcore.graph.alibi import alibi_slopes
from mtpcore.memory.types import CODES

__all__ = ["KERNELS", "LAUNCHERS", "Heads", "Joined", "attend"]

_TYPES = {"f32": 0, "f16": 1, "q8_0": 2}
_BYTES = {"f32": 4, "f16": 2, "q8_0": 1}
_SHAPES = ((32, 2, 16), (64, 2, 16), (64, 4, 16), (256, 2, 8), (256, 4, 4))
"""For values of ``threads * columns`` entries or fewer: both, and the most queries of a tile."""
_FEW_BLOCKS, _MANY_BLOCKS = 256, 256
"""Blocks that leave multiprocessors idle, and those that keep any GPU busy. Tiles are smaller where
there are few, and where there are many each takes its ranges together itself; which changes no bit.
"""
_FEW_ROWS = 128
"""Up to here each sequence among the rows of a tile gets a CTA; which changes no bit."""
_CTAS_OF_FEW = 16
"""CTAs that share a row of few."""
_MOST_LATENT = 4096
"""Values of a latent row that a block of products has room for; see ``kernels/matmul_few.cu``."""
_MOST_SUMS = 1 << 24
"""Values of the sums of ranges; rows are attended to in several goes where there are more."""


class _Tile(msgspec.Struct, frozen=True):
    """Rows, and heads that share a key head, whose queries a block takes."""

    n_rows: int
    n_heads: int

    def n_blocks(self, n_rows: int, n_shared: int) -> int:
        """Return how many tiles the queries of a key head are."""
        return -(-n_rows // self.n_rows) * -(-n_shared // self.n_heads)


_REMEMBER = {dtype: Kernel("remember", (("TYPE", str(i)),)) for dtype, i in _TYPES.items()}
_ATTENTION = {
    (dtype, shape, is_aligned): Kernel(
        "attention",
        (
            ("TYPE", str(i)),
            *zip(("V_THREADS", "COLUMNS", "QUERIES"), map(str, shape), strict=True),
            ("ALIGNED", str(int(is_aligned))),
        ),
    )
    for dtype, i in _TYPES.items()
    for shape in _SHAPES
    for is_aligned in (True, False)
}
_COS_SIN = Kernel("cos_sin")
_ROPE_AND_STORE = {
    (dtype, style): Kernel("rope_and_store", (("TYPE", str(i)), ("PAIRS", str(pairs))))
    for dtype, i in _TYPES.items()
    for pairs, style in enumerate(("halves", "pairs"))
}
_JOIN_AND_STORE = {
    variant: Kernel("join_and_store", kernel.defines) for variant, kernel in _ROPE_AND_STORE.items()
}
KERNELS = (
    *_REMEMBER.values(),
    *_ATTENTION.values(),
    *_ROPE_AND_STORE.values(),
    *_JOIN_AND_STORE.values(),
    _COS_SIN,
)


class _Rotated(msgspec.Struct, frozen=True):
    """Products that are queries, or parts of them, and what is done with them before attention.

    ``step`` is attention's, ``ropes`` rotate queries and keys by the cosines and sines in
    ``cos_sin``, which are the same in many layers: the first ``makes_cos_sin`` for all of them.
    """

    step: Step
    ropes: tuple[Step, Step]
    products: tuple[DeviceArray, ...]
    cos_sin: DeviceArray
    makes_cos_sin: bool

    def are_few(self, n_rows: int) -> bool:
        """Whether the blocks of the products do it, a warp for each row."""
        return n_rows <= THREADS // 32

    def before(self, n_rows: int) -> list[Launch]:
        """Return what comes before the products."""
        if not self.makes_cos_sin or not self.are_few(n_rows):
            return []
        arguments = _COS_SIN.arguments(to=self.cos_sin, **angles_of(self.ropes[0]))
        return [Launch(_COS_SIN, (n_rows, 1), arguments, is_early=True)]

    def _rotated_and_stored(self) -> dict[str, Any]:
        """Return how ``kernels/matmul_few.cu`` rotates, and where it stores."""
        memory, attrs = self.step.memory, self.ropes[0].attrs
        return {
            "cos_sin": self.cos_sin,
            "n_pairs": len(attrs["frequencies"]),
            "are_neighbours": attrs["style"] == "pairs",
            "type": _TYPES[memory.layer.dtype],
            **_slots_of(memory),
        }


class Heads(_Rotated, frozen=True):
    """Products that are queries, keys and values; they are rotated, and stored."""

    def after(self, n_rows: int) -> list[Launch]:
        """Return what comes after the products."""
        return [] if self.are_few(n_rows) else [_rope_and_store(self.step, *self.ropes, n_rows)]

    def kinds_of(self, products: Sequence[DeviceArray]) -> int:
        """Return for each product whether it is queries, keys or values, two bits each."""
        found = 0
        for number, array in enumerate(products):
            kind = next((i for i, own in enumerate(self.products, 1) if own is array), 0)
            found |= kind << 2 * number
        return found

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what ``kernels/matmul_few.cu`` does it with."""
        q, k = self.step.inputs[:2]
        v = (*self.step.inputs, None)[2]
        return {
            **self._rotated_and_stored(),
            "rotated_q": q,
            "v_begin": self.step.memory.layer.v_begin,
            "k_width": k.shape[2],
            "v_width": v.shape[2] if v else TILE,
        }


class Joined(_Rotated, frozen=True):
    """The product that queries begin with; the rest of them is rotated, and keys are stored.

    These are what ``norm`` makes, and after it a rotated part.
    """

    norm: Step

    def are_few(self, n_rows: int) -> bool:
        """Whether blocks of the product's launch do it: all lies where these look for it."""
        (of_q, of_k), (product,) = self.ropes, self.products
        rotated, latent, key = of_q.outputs[0], self.norm.inputs[0], of_k.inputs[0]
        begins = rotated.begin - product.shape[2], key.begin - latent.shape[-1]
        are_there = begins == (product.begin, latent.begin) and latent.shape[-1] <= _MOST_LATENT
        are_one = rotated.memory is product.memory and key.memory is latent.memory
        return are_there and are_one and super().are_few(n_rows)

    def after(self, n_rows: int) -> list[Launch]:
        """Return what comes after the product."""
        if self.are_few(n_rows):
            return []
        return [_join_and_store(self.step, *self.ropes, self.norm, n_rows)]

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what ``kernels/matmul_few.cu`` does it with: where other parts are.

        Of keys these are the latent part and the rotated one, whose widths are those of k and v.
        """
        q, key, latent = (one.inputs[0] for one in (*self.ropes, self.norm))
        return {
            **self._rotated_and_stored(),
            "k_width": latent.shape[-1],
            "v_width": key.shape[2],
            "weight_of_norm": (*self.norm.weights, None)[0],
            "eps": self.norm.attrs["eps"],
            "queries": q,
            "q_begin": q.begin,
            "q_apart": q.apart,
            "latent": latent,
            "latent_begin": latent.begin,
            "latent_apart": latent.apart,
        }


def remember(step: Step, n_rows: int) -> list[Launch]:
    """Store keys and values of all rows; keys alone, or nothing, where that is all there is."""
    return _remember(step.memory, step.inputs, n_rows)


def attention(step: Step, n_rows: int) -> list[Launch]:
    """Store, then let each row attend to what it sees."""
    return attend("attention", step, n_rows)


def cross_attention(step: Step, n_rows: int) -> list[Launch]:
    """Let each row attend to all that was delivered of its sequence."""
    return attend("cross_attention", step, n_rows)


def attend(
    op: str,
    step: Step,
    n_rows: int,
    ropes: tuple[Step, ...] = (),
    codes: Codes | None = None,
    *,
    norm: Step | None = None,
    is_stored: bool = False,
) -> list[Launch]:
    """Store and attend; ``ropes`` rotate queries and keys before, and rows become ``codes``.

    With a ``norm`` they rotate parts, and keys begin with what it makes. Where keys and values
    are stored already, queries are rotated, too.
    """
    if op == "cross_attention":
        return _attend(step, n_rows, codes)
    sinks, bias = (*step.weights, None, None)[:2]
    stored: list[Launch] = []
    if norm:
        of_q, of_k = ropes
        stored = [_join_and_store(step, of_q, of_k, norm, n_rows)]
    elif ropes:
        of_q, of_k = ropes
        stored = [_rope_and_store(step, of_q, of_k, n_rows)]
    elif not is_stored:
        stored = _remember(step.memory, step.inputs[1:], n_rows)
    furthest, max_bias = step.attrs["max_distance"], step.attrs["max_alibi_bias"]
    slopes = None
    if max_bias:
        slopes = step.constant(alibi_slopes(step.inputs[0].shape[1], max_bias))
    cap = step.attrs["softcap"]
    return [*stored, *_attend(step, n_rows, codes, sinks, bias, furthest, slopes, cap)]


def _rope_and_store(step: Step, of_q: Step, of_k: Step, n_rows: int) -> Launch:
    """Rotate queries to where attention reads them, and keys to where memory has them."""
    q, k, v = of_q.inputs[0], of_k.inputs[0], (*step.inputs, None)[2]
    layer, n_ctas = step.memory.layer, _ctas_of_row(n_rows)
    kernel = _ROPE_AND_STORE[layer.dtype, of_q.attrs["style"]]
    arguments = kernel.arguments(
        q=q,
        k=k,
        v=v,
        rotated_q=step.inputs[0],
        **angles_of(of_q),
        **_slots_of(step.memory),
        v_begin=layer.v_begin,
        n_ctas=n_ctas,
        n_heads=q.shape[1],
        n_key_heads=k.shape[1],
        k_width=k.shape[2],
        v_width=v.shape[2] if v else 0,
    )
    return Launch(kernel, (n_rows, n_ctas), arguments, is_early=True)


def _join_and_store(step: Step, of_q: Step, of_k: Step, norm: Step, n_rows: int) -> Launch:
    """Rotate parts of queries, and store keys that are joined: a norm's row and a rotated part."""
    q, key, rotated_q = of_q.inputs[0], of_k.inputs[0], of_q.outputs[0]
    latent, joined = norm.inputs[0], norm.outputs[0]
    layer, n_ctas = step.memory.layer, _ctas_of_row(n_rows)
    kernel = _JOIN_AND_STORE[layer.dtype, of_q.attrs["style"]]
    arguments = kernel.arguments(
        q=q,
        q_begin=q.begin,
        q_apart=q.apart,
        rotated_q=rotated_q,
        rotated_begin=rotated_q.begin,
        rotated_apart=rotated_q.apart,
        latent=latent,
        latent_begin=latent.begin,
        latent_apart=latent.apart,
        key=key,
        key_begin=key.begin,
        key_apart=key.apart,
        joined=joined,
        joined_begin=joined.begin,
        joined_apart=joined.apart,
        weight=(*norm.weights, None)[0],
        eps=norm.attrs["eps"],
        **angles_of(of_q),
        **_slots_of(step.memory),
        n_ctas=n_ctas,
        n_heads=q.shape[1],
        latent_width=latent.shape[-1],
        key_width=key.shape[2],
    )
    return Launch(kernel, (n_rows, n_ctas), arguments, is_early=True)


def _ctas_of_row(n_rows: int) -> int:
    """Return how many CTAs share a row."""
    return _CTAS_OF_FEW if n_rows <= _FEW_ROWS else 1


def _slots_of(memory: Attended) -> dict[str, Any]:
    """Return where rows are stored in a layer, by the names that all kernels have for it."""
    table = memory.tables.array
    return {
        "seqs": memory.rows.seq,
        "places": memory.rows.place,
        "tables": table,
        "memory": memory.layer.rows,
        "pitch": memory.layer.rows.shape[1],
        "n_entries": table.shape[1],
    }


def _remember(memory: Attended, given: tuple[DeviceArray, ...], n_rows: int) -> list[Launch]:
    layer, launches = memory.layer, []
    kernel = _REMEMBER[layer.dtype]
    for begin, x in zip((0, layer.v_begin), given, strict=False):
        _, n_heads, width = x.shape
        n_warps = n_heads * -(-width // CODES)
        arguments = kernel.arguments(
            x=x, begin=begin, n_heads=n_heads, width=width, **_slots_of(memory)
        )
        grid = (n_rows, -(-n_warps // (THREADS // 32)))
        launches.append(Launch(kernel, grid, arguments))
    return launches


def _attend(
    step: Step,
    n_rows: int,
    codes: Codes | None = None,
    sinks: DeviceArray | None = None,
    bias: DeviceArray | None = None,
    furthest: int = 0,
    slopes: DeviceArray | None = None,
    cap: float = 0.0,
) -> list[Launch]:
    """Sum the ranges of some rows, and take these together, until all rows are done."""
    q, y, memory = step.inputs[0], step.outputs[0], step.memory
    layer, rows, table, visible = memory.layer, memory.rows, memory.tables.array, memory.visible
    n_heads, k_width, v_width = q.shape[1], q.shape[2], y.shape[2]
    n_shared = n_heads // layer.n_heads
    shape = _shape_for(v_width)
    is_aligned = _is_aligned(layer, k_width, v_width)
    kernel, n_ranges = _ATTENTION[layer.dtype, shape, is_aligned], visible.n_ranges
    tile = _tile_for(shape[2], n_rows, n_shared, layer.n_heads * n_ranges)
    if tile.n_blocks(n_rows, n_shared) * layer.n_heads >= _MANY_BLOCKS:
        n_ranges = 1
    n_values = n_heads * (v_width + 2)
    of_row = n_values * visible.most_ranges
    size = min(max(_MOST_SUMS, of_row), q.shape[0] * of_row)
    sums = step.scratch("sums", (size,), np.float32)
    # Tiles are few, or the largest ones, of a head or more.
    largest = q.shape[0] * layer.n_heads * -(-n_shared // shape[2])
    counters = counters_for(step, min(max(_FEW_BLOCKS, largest), q.shape[0] * n_heads))
    block = codes.block if codes else 0
    n_joined = _n_joined(tile.n_heads * v_width, n_shared * v_width, layer.n_heads, block)
    most_rows = size // (n_values * n_ranges)
    launches = []
    for first in range(0, n_rows, most_rows):
        n = min(most_rows, n_rows - first)
        n_takers = min(tile.n_rows, n) if n <= _FEW_ROWS else 1
        n_tiles = tile.n_blocks(n, n_shared) * layer.n_heads
        grid = (n_tiles * n_takers, n_ranges)
        arguments = kernel.arguments(
            q=q,
            seqs=rows.seq,
            places=rows.place,
            parents=rows.parent,
            visible_of_rows=visible.array,
            tables=table,
            keys=layer.rows,
            bias=bias,
            slopes=slopes,
            sinks=sinks,
            sums=sums,
            y=None if codes else y,
            codes=codes.codes if codes else None,
            scales=codes.scales if codes else None,
            sums_of_codes=codes.sums if codes else None,
            counters=counters,
            pitch=layer.rows.shape[1],
            v_begin=layer.v_begin,
            n_entries=table.shape[1],
            first_row=first,
            n_rows=n,
            n_ranges=n_ranges,
            tile_rows=tile.n_rows,
            tile_heads=tile.n_heads,
            n_takers=n_takers,
            n_key_heads=layer.n_heads,
            n_shared=n_shared,
            n_joined=n_joined,
            block=block,
            k_width=k_width,
            v_width=v_width,
            kept_width=layer.kept_width,
            furthest=furthest,
            scale=step.attrs["scale"] / (cap or 1),
            cap=cap,
        )
        launches.append(Launch(kernel, grid, arguments))
    return launches


def _is_aligned(layer: StoredLayer, k_width: int, v_width: int) -> bool:
    """Return whether all rows of heads lie on sixteen bytes, and are whole ones of these."""
    n_bytes = _BYTES[layer.dtype]
    widths = (k_width, layer.kept_width, v_width)
    return not any(
        n % 16 for n in (layer.rows.shape[1], layer.v_begin, *(n_bytes * w for w in widths))
    )


def _n_joined(of_tile: int, of_key_head: int, n_key_heads: int, block: int) -> int:
    """Return how many tiles of heads make values that are whole blocks, as few as can be.

    They are one, all of a key head, or those of all key heads, with so many values each.
    """
    n_tiles = -(-of_key_head // of_tile)
    if not block or of_tile % block == of_key_head % block == 0:
        return 1
    return n_tiles if of_key_head % block == 0 else n_tiles * n_key_heads


def _tile_for(most: int, n_rows: int, n_shared: int, n_times: int) -> _Tile:
    """Return the smallest tile of which there are few blocks; or the largest one.

    ``most`` are the queries of a tile, ``n_times`` key heads and ranges.
    """
    n_queries, tile = most, _tile_of(most, n_rows, n_shared)
    while n_queries > 1:
        n_queries //= 2
        smaller = _tile_of(n_queries, n_rows, n_shared)
        if smaller.n_blocks(n_rows, n_shared) * n_times > _FEW_BLOCKS:
            break
        tile = smaller
    return tile


def _tile_of(n_queries: int, n_rows: int, n_shared: int) -> _Tile:
    return _Tile(min(max(n_queries // n_shared, 1), n_rows), min(n_queries, n_shared))


def _shape_for(v_width: int) -> tuple[int, int, int]:
    """Return how threads share the values, and how many queries share them.

    Raises
    ------
    BackendError
        They are wider than the kernel has variants for.
    """
    for shape in _SHAPES:
        if v_width <= shape[0] * shape[1]:
            return shape
    raise BackendError("values too wide for the CUDA kernel", wanted="at most 1024", got=v_width)


LAUNCHERS: dict[str, Launcher] = {
    "attention": attention,
    "cross_attention": cross_attention,
    "remember": remember,
}
