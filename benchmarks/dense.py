"""Decode and verify on a generated 1 B llama-shaped Q8_0 file, against the read bandwidth.

``python benchmarks/dense.py`` prints the bandwidth measured in this run, the share of it that
decoding reaches, and what n rows of one sequence cost (all logits wanted) over one row.
With ``llama-cpp-python`` installed the same file runs in both, in turn, and the ratios follow.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import synthetic
from timing import alternate, bandwidth

import mtpcore

DEPTH = 128
ROWS = (1, 2, 3, 4, 6, 8)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-1b", choices=synthetic.SHAPES)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    path = synthetic.write(given.model, given.folder / f"mtpcore-{given.model}.gguf")
    speed = bandwidth(given.threads)
    model = mtpcore.load_model(path)
    ours = Ours(model, given.threads)
    n_read = model.n_bytes - model.tensors["token_embd.weight"].n_bytes
    bound = n_read / speed
    print(f"{path}: {n_read / 1e9:.2f} GB read for a token, {given.threads} threads")
    print(f"read bandwidth {speed / 1e9:.1f} GB/s: at least {1e3 * bound:.1f} ms a token")
    engines = {"mtpcore": ours}
    if not given.no_peer:
        try:
            from peer import Peer

            engines["llama.cpp"] = Peer(path, given.threads)
        except ImportError:
            print("llama-cpp-python is not installed: no comparison")
    cells = [(name, n) for n in ROWS for name in engines]
    samples = alternate(
        [lambda e=engines[name], n=n: e.verify(n) for name, n in cells], given.repetitions
    )
    found = dict(zip(cells, samples, strict=True))
    for name in engines:
        one = found[name, 1].median
        print(f"\n{name}: {bound / one:.2f} of the bandwidth bound")
        for n in ROWS:
            cost = found[name, n].median / one
            print(f"  {n} rows {found[name, n]}  {cost:.2f} of one")
    if len(engines) == 2:
        ratios = ", ".join(
            f"{n}: {found['llama.cpp', n].median / found['mtpcore', n].median:.2f}" for n in ROWS
        )
        print(f"\nllama.cpp's time over mtpcore's, by rows: {ratios}")


class Ours:
    """One sequence at a fixed depth: process n rows with all logits, take them back."""

    def __init__(self, model: mtpcore.Model, threads: int) -> None:
        self.context = mtpcore.Context(model, 512, threads=threads)
        self.context.process(mtpcore.Batch.of(np.arange(DEPTH) + 3))

    def verify(self, n: int) -> None:
        """Run n rows and forget them."""
        batch = mtpcore.Batch.of(np.arange(n) + 7, pos=DEPTH, outputs="all")
        self.context.process(batch).logits.sum()
        self.context.rewind(0, DEPTH)


if __name__ == "__main__":
    main()
