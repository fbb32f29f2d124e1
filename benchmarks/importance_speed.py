"""Time the reading of an importance matrix beside that of a prompt, in turn, in one process.

    python benchmarks/importance_speed.py MODEL [--chunks 4] [--size 512] [--turns 5]

The same chunks are read as prompts by a context, whose logits nobody asks for; with what products
read handed out and added up, of the trunk alone and of its heads, too; and with the text's
perplexity besides. Tokens a second of the CPU's time are medians, beside those of the first way,
with the least and the most.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mtpcore import Batch, Context, load_model
from mtpcore.calibration.collecting import shapes_of
from mtpcore.calibration.reader import ChunkReader
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import TotalSums
from mtpcore.runtime.model import Model

I32 = NDArray[np.int32]
Read = Callable[[I32], None]


def prompts(model: Model, size: int) -> Read:
    """Return what reads chunks as prompts."""
    context = Context(model, size, n_batch=ImportanceSettings().rows, threads=1)
    context.prepare()

    def read(chunks: I32) -> None:
        for chunk in chunks:
            context.process(Batch.of(chunk, outputs="none"))
            context.remove(0)

    return read


def importance(model: Model, size: int, *, heads: bool, perplexity: bool) -> Read:
    """Return what reads chunks for an importance matrix."""
    settings = ImportanceSettings(chunk_size=size, heads=heads, perplexity=perplexity)
    reader = ChunkReader(model, settings, threads=1)
    shapes = shapes_of(model)

    def read(chunks: I32) -> None:
        total = TotalSums(shapes)
        for begin in range(0, len(chunks), reader.together):
            for sums, _ in reader.read(chunks[begin : begin + reader.together]):
                total.add(sums)

    return read


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with load_model(args.model, sidecars=False) as model:
        tokens = np.random.default_rng(0).integers(
            0, model.hparams.n_vocab, (args.chunks, args.size)
        )
        chunks = tokens.astype(np.int32)
        ways = {
            "a prompt": prompts(model, args.size),
            "importance": importance(model, args.size, heads=False, perplexity=False),
            "importance, heads": importance(model, args.size, heads=True, perplexity=False),
            "importance, heads, perplexity": importance(
                model, args.size, heads=True, perplexity=True
            ),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.turns + 1):
            for name, read in ways.items():
                begin = time.process_time()
                read(chunks)
                if turn:  # the first one warms up
                    found[name].append(time.process_time() - begin)
    print("| reading | speed, beside a prompt's |\n|---|---|")
    for name, times in found.items():
        ratios = sorted(p / own for p, own in zip(found["a prompt"], times, strict=True))
        middle = statistics.median(ratios)
        print(f"| {name} | {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |")


if __name__ == "__main__":
    main()
