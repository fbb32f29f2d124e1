"""Time attention over the paged KV cache, by tokens, context length and kv_dtype.

    python benchmarks/attention.py --context 512 2048 8192 --rows 1 4 8

prints for each shape, type, context and number of tokens (rows) the milliseconds of a layer
(median, least and most of several), the cost relative to one row, and multiply-adds and stored
bytes per second. Each layer has a KV cache of its own, so that together they do not fit a
processor cache; with ``--layers 1`` they do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple

import numpy as np

from mtpcore._ext import _cpu
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.program import Program
from mtpcore.memory import PAGE
from mtpcore.testing import Runner, Weights


class Shape(NamedTuple):
    """Query heads, key heads, widths of keys and values."""

    n_heads: int
    n_key_heads: int
    k_width: int
    v_width: int

    @property
    def latent(self) -> bool:
        """Values are the first entries of keys."""
        return self.k_width != self.v_width


SHAPES = {
    "h32,g4,d64": Shape(32, 4, 64, 64),
    "h32,g8,d128": Shape(32, 8, 128, 128),
    "mla16": Shape(16, 1, 576, 512),
    "mla128": Shape(128, 1, 576, 512),
}


def program(shape: Shape, n_layers: int) -> Program:
    """Return a graph of attention layers alone, all of the same rows."""
    h, g_heads, k_width, v_width = shape
    g = GraphBuilder(
        "attention", {}, slots={"q": h * k_width, "k": g_heads * k_width, "v": g_heads * v_width}
    )
    q, k, v = (
        g.split_heads(g.inputs[name], n)
        for name, n in zip("qkv", (h, g_heads, g_heads), strict=True)
    )
    y = None
    for layer in range(n_layers):
        found = g.attention(q, k, v_width if shape.latent else v, layer=layer, scale=k_width**-0.5)
        y = found if y is None else g.add(y, found)
    return g.finish(Outputs(y=g.merge_heads(y)))


def fill(runner: Runner, shape: Shape, n_places: int) -> None:
    """Let sequence 0 hold this many places: one page of random rows, again and again."""
    rng = np.random.default_rng(0)
    runner.feed([-1] * PAGE, **slots(shape, rng, PAGE))
    runner.memory.reserve({0: (PAGE, n_places)})
    for page in runner.memory.pages.tables[0, 1 : n_places // PAGE]:
        runner.memory.store.copy(int(runner.memory.pages.tables[0, 0]), int(page))


def slots(shape: Shape, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return rows of random queries, keys and values."""
    h, g_heads, k_width, v_width = shape
    widths = {"q": h * k_width, "k": g_heads * k_width, "v": g_heads * v_width}
    return {name: rng.normal(size=(n, w)).astype(np.float32) for name, w in widths.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--types", nargs="+", default=["f16", "f32"])
    parser.add_argument("--context", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    backend.WORTH_SHARING = 0.0
    print(f"{_cpu.isa()}, {options.threads} threads, {options.layers} layers")
    for name in options.shapes:
        shape = SHAPES[name]
        made = program(shape, options.layers)
        for kv_dtype in options.types:
            for n_places in options.context:
                runner = Runner(
                    CpuBackend(), made, Weights({}), n_seq=1, n_ctx=n_places + 512,
                    threads=options.threads, kv_dtype=kv_dtype,
                )  # fmt: skip
                fill(runner, shape, n_places)
                one = None
                for n in options.rows:
                    seconds = measure(runner, shape, n, options.repeats)
                    each = [x / options.layers for x in seconds]
                    median = statistics.median(each)
                    one = one or median
                    macs = n * (n_places + (n + 1) / 2) * shape.n_heads
                    macs *= shape.k_width + shape.v_width
                    n_bytes = (n_places + n) * runner.memory.store.page_bytes
                    n_bytes /= PAGE * options.layers
                    print(
                        f"{name:12} {kv_dtype} ctx {n_places:5} n={n:<3} {median * 1e3:8.4f} ms "
                        f"({min(each) * 1e3:.4f} .. {max(each) * 1e3:.4f}) {median / one:6.2f} of "
                        f"the first {macs / median / 1e9:7.1f} GMAC/s "
                        f"{n_bytes / median / 1e9:6.1f} GB/s",
                        flush=True,
                    )


def measure(runner: Runner, shape: Shape, n: int, repeats: int) -> list[float]:
    """Return seconds of several passes of n rows, which are taken back each time."""
    rows = slots(shape, np.random.default_rng(n), n)
    length, found = runner.memory.length(0), []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        runner.feed([-1] * n, **rows)
        if turn:
            found.append(time.perf_counter() - begin)
        runner.memory.rewind(0, length)
    return found


if __name__ == "__main__":
    main()
