"""Time attention over the paged KV cache, by tokens, context length and kv_dtype.

    python benchmarks/attention.py --context 4096 8192 65536 --rows 1 4 8

prints for each shape, type, context and number of tokens (rows) the milliseconds of a layer
(median, least and most of several), those of reading its keys and values once, the ratio of both
medians, and multiply-adds per second. All of a context's rows and the reading take turns, because
the speed of memory changes within minutes. Each layer has a KV cache of its own, and there are as
many layers as do not fit a processor cache together; with ``--layers 1`` a short context does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from timing import Reader, Sample, alternate

from mtpcore._ext import _cpu
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.program import MemoryLayer, Program
from mtpcore.memory import PAGE
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.types import bytes_of_place
from mtpcore.testing import Runner, Weights

LEAST_BYTES = 160 << 20  # of all layers: five times the largest cache of the machines measured
PAGES_READ = (1, 8)  # at once: processors differ in which they like


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
    found = [
        g.attention(q, k, v_width if shape.latent else v, layer=layer, scale=k_width**-0.5)
        for layer in range(n_layers)
    ]
    return g.finish(Outputs(y=g.merge_heads(reduce(g.add, found))))


def fill(runner: Runner, shape: Shape, n_places: int) -> None:
    """Let sequence 0 hold this many places: one page of random rows, again and again."""
    rng = np.random.default_rng(0)
    runner.feed([-1] * PAGE, **slots(shape, rng, PAGE))
    memory = memory_of(runner)
    memory.reserve({0: (PAGE, n_places)})
    first, *others = memory.pages.tables[0, : n_places // PAGE].tolist()
    for page in others:
        memory.store.copy(first, page)


def memory_of(runner: Runner) -> PagedKV:
    """Return where all layers store keys and values, which have one window and one width."""
    (memory,) = runner.memory.groups
    return memory


def slots(shape: Shape, rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Return rows of random queries, keys and values."""
    h, g_heads, k_width, v_width = shape
    widths = {"q": h * k_width, "k": g_heads * k_width, "v": g_heads * v_width}
    return {name: rng.normal(size=(n, w)).astype(np.float32) for name, w in widths.items()}


def main() -> None:
    """Measure each shape, type and context."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--context", nargs="+", type=int, default=[4096, 8192, 65536])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--layers", type=int, help="default: as many as fit no cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    backend.WORTH_SHARING = 0.0
    print(f"{_cpu.isa()}, {options.threads} threads")
    for name in options.shapes:
        for kv_dtype in options.types:
            for n_places in options.context:
                for line in compare(SHAPES[name], kv_dtype, n_places, options):
                    print(f"{name:12} {kv_dtype:4} ctx {n_places:5} {line}", flush=True)


def compare(
    shape: Shape, kv_dtype: str, n_places: int, options: argparse.Namespace
) -> Iterator[str]:
    """Time rows and reading in turn; yield a line for each number of rows."""
    n_layers = options.layers or -(-LEAST_BYTES // bytes_of_layer(shape, kv_dtype, n_places))
    runner = Runner(
        CpuBackend(), program(shape, n_layers), Weights({}), n_seq=1, n_ctx=n_places + 512,
        threads=options.threads, kv_dtype=kv_dtype,
    )  # fmt: skip
    fill(runner, shape, n_places)
    n_bytes = n_layers * bytes_of_layer(shape, kv_dtype, n_places)
    readers = [Reader(options.threads, n_bytes, pages) for pages in PAGES_READ]
    rows = {n: slots(shape, np.random.default_rng(n), n) for n in options.rows}
    passes = [partial(run, runner, rows[n], n) for n in options.rows]
    samples = alternate([*passes, *readers], options.repeats, rest=0.0)
    of_layer = [Sample(seconds / n_layers for seconds in sample) for sample in samples]
    reading = min(sample.median for sample in of_layer[len(passes) :])
    for n, sample in zip(options.rows, of_layer, strict=False):
        macs = n * (n_places + (n + 1) / 2) * shape.n_heads * (shape.k_width + shape.v_width)
        yield (
            f"n={n:<3}{sample}  reading {reading * 1e3:7.3f} ms  ratio "
            f"{sample.median / reading:5.2f} {macs / sample.median / 1e9:7.1f} GMAC/s"
        )


def bytes_of_layer(shape: Shape, kv_dtype: str, n_places: int) -> int:
    """Return the size of a layer's keys and values."""
    layer = MemoryLayer(0, shape.n_key_heads, shape.k_width, shape.v_width, latent=shape.latent)
    return n_places * bytes_of_place(layer, kv_dtype)


def run(runner: Runner, rows: dict[str, Any], n: int) -> None:
    """Process n rows and take them back."""
    length = runner.memory.length(0)
    runner.feed([-1] * n, **rows)
    runner.memory.rewind(0, length)


if __name__ == "__main__":
    main()
