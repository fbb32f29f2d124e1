"""Time matmuls of packed weights: what 2 to 8 tokens (rows) cost compared with one.

    python benchmarks/matmul.py --threads 2 --megabytes 256

prints, for each weight type, at what speed the threads read memory; and for each number of rows
milliseconds (best of several), the cost relative to one row, and weight bytes and multiply-adds per
second. The matrix's rows are split between threads. With a small --megabytes matrices stay in a
processor cache.
"""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray
from timing import Reader, bandwidth

from mtpcore._ext import _cpu, _matmul
from mtpcore._ext._fetch import WAYS

TYPES = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("F16", "BF16", "F32"),
)


def random_matrix(type_: Type, megabytes: float, n_cols: int) -> _matmul.PackedMatrix:
    block, block_bytes = GGML_QUANT_SIZES[type_]
    row_bytes = n_cols // block * block_bytes
    n_rows = max(64, int(megabytes * 1e6) // row_bytes // 64 * 64)
    # Such bytes are finite numbers in every format, and no products of scales are subnormal.
    data = np.random.default_rng(0).integers(60, 120, n_rows * row_bytes, np.uint8)
    return _matmul.pack(data, type_, n_rows, n_cols)


def seconds_per_product(
    packed: _matmul.PackedMatrix, x: NDArray[np.float32], n_threads: int, repeats: int, inner: int
) -> float:
    n_rows = packed.shape[0]
    step = -(-n_rows // (32 * n_threads)) * 32
    ranges = [(begin, min(begin + step, n_rows)) for begin in range(0, n_rows, step)]
    outs = [np.empty((len(x), end - begin), np.float32) for begin, end in ranges]
    best = float("inf")
    line = threading.Barrier(len(ranges) + 1)

    def work(rows: tuple[int, int], out: NDArray[np.float32]) -> None:
        line.wait()
        for _ in range(inner):
            _matmul.matmul(packed, x, *rows, out=out)
        line.wait()

    for _ in range(repeats):
        threads = [
            threading.Thread(target=work, args=job) for job in zip(ranges, outs, strict=True)
        ]
        for thread in threads:
            thread.start()
        line.wait()
        begin = time.perf_counter()
        line.wait()
        best = min(best, (time.perf_counter() - begin) / inner)
        for thread in threads:
            thread.join()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--megabytes", type=float, default=256)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--rows", nargs="+", type=int, default=range(1, 9))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--isa", default=_cpu.isa(), choices=_cpu.available_isas())
    parser.add_argument("--fetch", default=WAYS[0], choices=WAYS)
    options = parser.parse_args()
    _cpu.use_isa(options.isa)
    _cpu.use_fetch(options.fetch)
    print(f"{options.isa}, {options.fetch}, {options.threads} threads, {options.columns} columns")
    read = Reader.fastest(options.threads)
    for name in options.types:
        packed = random_matrix(Type[name], options.megabytes, options.columns)
        inner = max(1, int(32e6 / packed.nbytes))
        speed = bandwidth(read, options.repeats)
        print(f"{name:6} beside reading at {speed / 1e9:.1f} GB/s")
        one = None
        for n in options.rows:
            x = np.random.default_rng(1).normal(size=(n, options.columns)).astype(np.float32)
            seconds = seconds_per_product(packed, x, options.threads, options.repeats, inner)
            one = one or seconds
            gigabytes = packed.nbytes / seconds / 1e9
            gigamacs = packed.shape[0] * packed.shape[1] * n / seconds / 1e9
            print(
                f"{name:6} n={n:<3} {seconds * 1e3:9.4f} ms {seconds / one:6.2f} of one row"
                f" {gigabytes:7.1f} GB/s {gigamacs:7.1f} GMAC/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
