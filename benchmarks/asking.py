"""What asking for drafts costs where none are found: CPU time of Python in rounds of a real model.

    python benchmarks/asking.py MODEL.gguf [--texts 1,4,16] [--rounds 60] [--turns 3]

Printed are CPU microseconds of a round outside the model's pass, with one thread: plain decoding,
a proposer that never proposes with a fixed length and with ``draft="auto"``, and the share of the
whole round that asking adds. In a turn each way writes the same texts; medians of rounds, and of
turns. Weights go through the caches in each pass, so this is more than the same code takes alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median
from time import thread_time
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from serving import QUESTIONS

import mtpcore
from mtpcore.backends.cpu.backend import CpuPlan

WAYS: dict[str, int | Literal["auto"]] = {"plain": 0, "asked for 3": 3, "auto": "auto"}


class Silent(mtpcore.Proposer):
    """Proposes nothing."""

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> list[int]:
        """Return no token."""
        return []


class Spent(NamedTuple):
    """CPU seconds of a round, and those of them outside the pass."""

    whole: float
    outside: float


class Watch:
    """Takes the time of passes."""

    def __init__(self) -> None:
        self.passes = 0.0
        run = CpuPlan.run

        def timed(plan: CpuPlan, *given: Any) -> Any:
            begin = thread_time()
            try:
                return run(plan, *given)
            finally:
                self.passes += thread_time() - begin

        CpuPlan.run = timed  # type: ignore[assignment, method-assign]

    def step(self, generator: mtpcore.Generator) -> Spent:
        """Run a round."""
        passes, begin = self.passes, thread_time()
        generator.step()
        whole = thread_time() - begin
        return Spent(whole, whole - (self.passes - passes))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--texts", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    model, watch = mtpcore.load_model(options.model), Watch()
    print("| texts | way | outside the pass, us | a round, us | more than plain |")
    print("| --- | --- | --- | --- | --- |")
    for n in map(int, options.texts.split(",")):
        cross = mtpcore.link(mtpcore.Context(model, 1024, n_seq_max=n, threads=1), Silent())
        cross.prepare()
        generators = {
            way: mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=draft)
            for way, draft in WAYS.items()
        }
        turns: dict[str, list[Spent]] = defaultdict(list)
        for _ in range(options.turns):
            for way, generator in generators.items():
                turns[way].append(_measure(watch, generator, model, n, options.rounds))
        plain = median(one.outside for one in turns["plain"])
        for way, spent in turns.items():
            whole, outside = (median(column) for column in zip(*spent, strict=True))
            share = (outside - plain) / (whole - outside + plain)
            cells = f"{1e6 * outside:.0f} | {1e6 * whole:.0f} | {100 * share:.1f} %"
            print(f"| {n} | {way} | {cells} |", flush=True)


def _measure(
    watch: Watch, generator: mtpcore.Generator, model: mtpcore.Model, n: int, rounds: int
) -> Spent:
    """Return the medians of rounds after the prompts were read."""
    requests = [
        generator.add(
            model.tokenizer.encode(f"{QUESTIONS[i % len(QUESTIONS)]} ({i})"),
            ignore_eos=True,
            max_tokens=rounds + 200,
        )
        for i in range(n)
    ]
    while not all(request.tokens for request in requests):
        generator.step()
    spent = [watch.step(generator) for _ in range(rounds)]
    for request in requests:
        generator.cancel(request)
    return Spent(median(s.whole for s in spent), median(s.outside for s in spent))


if __name__ == "__main__":
    main()
