"""Time reading the header of a file with a large vocabulary.

Run ``python benchmarks/header.py [n_tokens]``; prints median and range of ten runs.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mtpcore.gguf import open_model_file, write_model_file


def vocabulary(n_tokens: int) -> tuple[list[str], list[str]]:
    """Make tokens of realistic lengths, and a merge for each."""
    chance = np.random.default_rng(1)
    lengths = chance.integers(2, 14, n_tokens)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzĠéÐ"))
    tokens = ["".join(chance.choice(letters, n)) for n in lengths]
    return tokens, [f"{token[:1]} {token[1:]}" for token in tokens]


def main(n_tokens: int = 152_000, n_runs: int = 10) -> None:
    tokens, merges = vocabulary(n_tokens)
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": np.ones(n_tokens, np.int32),
    }
    tensors = {f"blk.{i}.weight": np.zeros((1, 8), np.float32) for i in range(1000)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_model_file(path, "none", metadata, tensors)
        times = []
        for _ in range(n_runs):
            begin = time.perf_counter()
            open_model_file(path).close()
            times.append(time.perf_counter() - begin)
    low, middle, high = min(times), statistics.median(times), max(times)
    print(f"{n_tokens} tokens and merges: {middle:.3f} s ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
