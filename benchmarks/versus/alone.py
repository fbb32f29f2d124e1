"""Time mtpcore in a process of its own, as llama-bench times llama.cpp; prints JSON."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from timing import once

import mtpcore

N_TIMES = 3


def main() -> None:
    """Print the median seconds of a task: rows of one sequence, or one row of several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True, help="tokens before, of each sequence")
    parser.add_argument("--tokens", type=int, required=True, help="to time, of each sequence")
    parser.add_argument("--rows", type=int, default=1, help="of one sequence, in one batch")
    parser.add_argument("--sequences", type=int, default=1)
    given = parser.parse_args()
    with mtpcore.load_model(given.path, mtp=False) as model:
        print(json.dumps({"seconds": _measure(model, given)}))


def _measure(model: mtpcore.Model, given: argparse.Namespace) -> float:
    n, depth = given.sequences, given.depth
    context = mtpcore.Context(
        model,
        depth + given.tokens + given.rows,
        n_seq_max=n,
        n_batch=512,
        threads=given.threads,
    )
    context.prepare()
    rng = np.random.default_rng(3)
    text = rng.integers(3, model.hparams.n_vocab, (n, depth + given.tokens)).tolist()
    for seq in range(n if depth else 0):
        context.process(mtpcore.Batch.of(text[seq][:depth], seq=seq))

    def run() -> None:
        for at in range(depth, depth + given.tokens, given.rows):
            if n == 1:
                batch = mtpcore.Batch.of(text[0][at : at + given.rows], pos=at)
            else:
                tokens = [text[seq][at] for seq in range(n)]
                batch = mtpcore.Batch(tokens, seq=range(n), pos=[at] * n, outputs=[True] * n)
            context.process(batch)
        for seq in range(n):
            context.rewind(seq, depth)

    run()
    while not context.runner.is_warm:  # ways to prefetch are compared
        run()
    return statistics.median(once(run) for _ in range(N_TIMES))


if __name__ == "__main__":
    main()
