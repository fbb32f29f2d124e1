"""Time until a first text is encoded: reading a header with a large vocabulary, and all after it.

A long text, one long word and many short texts are encoded then. ``python benchmarks/header.py
[n_tokens | FILE.gguf]`` prints median and range of ten runs in seconds of CPU time: of a made
vocabulary with merges and one with scores, or of the file's.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from mtpcore.gguf import MetadataValue, open_model_file, read_tokenizer, write_model_file
from mtpcore.gguf.vocabulary import byte_alphabet

N_RUNS = 10


def vocabulary(n_tokens: int) -> tuple[list[MetadataValue], list[MetadataValue]]:
    """Make tokens of realistic lengths, the letters of bytes first, and a merge for each other."""
    chance = np.random.default_rng(1)
    alphabet = list(byte_alphabet())
    lengths = chance.integers(2, 14, n_tokens - len(alphabet))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzĠéÐ"))
    tokens = ["".join(chance.choice(letters, n)) for n in lengths]
    return [*alphabet, "\u2581", *tokens[1:]], [f"{token[:1]} {token[1:]}" for token in tokens]


def measure(path: Path) -> None:
    headers, wholes = [], []
    for _ in range(N_RUNS):
        begin = time.process_time()
        with open_model_file(path) as file:
            headers.append(time.process_time() - begin)
            tokenizer = read_tokenizer(file.metadata) or sys.exit(f"{path}: no tokenizer")
            tokenizer.encode("Why is the sky blue?")
            wholes.append(time.process_time() - begin)
    texts = {
        "244,000 characters": [
            ((Path(__file__).parents[1] / "docs/roles.md").read_text() * 8)[:244_000]
        ],
        "a word of 100,000 letters": [
            "".join(random.Random(1).choices(ascii_lowercase, k=100_000))
        ],
    }
    texts["2,000 lines"] = texts["244,000 characters"][0].splitlines()[:2000]
    later: dict[str, list[float]] = {what: [] for what in texts}
    for _ in range(N_RUNS):
        for what, each in texts.items():
            begin = time.process_time()
            for text in each:
                tokenizer.encode(text)
            later[what].append(time.process_time() - begin)
    found = {"header": headers, "first text encoded after": wholes} | later
    for what, times in found.items():
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"  {what} {middle:.3f} s ({low:.3f} to {high:.3f})")


def main(source: str = "262144") -> None:
    if not source.isdecimal():
        print(Path(source).name)
        return measure(Path(source))
    n_tokens = int(source)
    tokens, merges = vocabulary(n_tokens)
    common: dict[str, MetadataValue] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(n_tokens, np.int32),
    }
    kinds: dict[str, dict[str, MetadataValue]] = {
        "merges": {"model": "gpt2", "pre": "qwen2", "merges": merges},
        "scores": {"model": "llama", "scores": -np.arange(n_tokens, dtype=np.float32)},
        "a unigram model": {
            "model": "t5",
            "scores": -np.log1p(np.arange(n_tokens, dtype=np.float32)),
        },
    }
    tensors = {f"blk.{i}.weight": np.zeros((1, 8), np.float32) for i in range(1000)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        for kind, more in kinds.items():
            own = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
            write_model_file(path, "none", common | own, tensors)
            print(f"{n_tokens} tokens with {kind}")
            measure(path)


if __name__ == "__main__":
    main(*sys.argv[1:2])
