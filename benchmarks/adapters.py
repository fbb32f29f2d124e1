"""Time texts with adapters beside texts without, in turn, in one process.

    python benchmarks/adapters.py MODEL [--rank 16] [--type F16] [--texts 4] [--turns 7]

Each turn writes the same texts at once in three ways: in a context without adapters, in one that
has an adapter of all matrices which no text uses, and in one in which all texts have it, or every
other one. Tokens a second of the CPU's time are medians, beside those of the first way, with the
least and the most. The adapter's values are random, and its alpha is its rank; texts are cut after
as many tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.adapters import matrices_of, write_adapter

from mtpcore import Context, Generator, Sampling, load_adapter, load_model


def write(generator: Generator, n: int, n_tokens: int, choose: Callable[[int], list[str]]) -> float:
    """Write texts and return the CPU seconds of a token."""
    begin = time.process_time()
    for i in range(n):
        generator.add([5 + i, 6, 7, 8], max_tokens=n_tokens, ignore_eos=True, adapters=choose(i))
    while generator.active:
        generator.step()
    return (time.process_time() - begin) / (n * n_tokens)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", choices=("F32", "F16", "BF16"), default="F32")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    with load_model(args.model) as model, tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "a.gguf"
        shapes = matrices_of(model)
        shapes = {
            n: s for n, s in shapes.items() if n in model.tensors and n != "token_embd.weight"
        }
        rank, outtype = args.rank, args.type
        write_adapter(
            path, model.architecture, shapes, rank=rank, alpha=rank, size=0.01, outtype=outtype
        )
        size = {"n_ctx": 128, "n_seq_max": args.texts, "threads": 1}
        plain = Context(model, **size)
        adapted = Context(model, adapters={"a": load_adapter(path)}, **size)
        for context in (plain, adapted):
            context.prepare()
        generators = [Generator(one, sampling=Sampling.greedy()) for one in (plain, adapted)]
        ways: dict[str, tuple[Generator, Callable[[int], list[str]]]] = {
            "without adapters": (generators[0], lambda i: []),
            "loaded, not used": (generators[1], lambda i: []),
            "every other text": (generators[1], lambda i: ["a"] * (i % 2)),
            "all texts": (generators[1], lambda i: ["a"]),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.turns + 1):
            for name, (generator, choose) in ways.items():
                seconds = write(generator, args.texts, args.tokens, choose)
                if turn:  # the first one warms up
                    found[name].append(seconds)
    print("| adapters | speed, beside texts without |\n|---|---|")
    base = found["without adapters"]
    for name, times in found.items():
        ratios = sorted(before / own for before, own in zip(base, times, strict=True))
        middle = statistics.median(ratios)
        print(f"| {name} | {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |")


if __name__ == "__main__":
    main()
