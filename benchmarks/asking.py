"""What asking for drafts costs where none are found: CPU time of Python in rounds of a real model.

    python benchmarks/asking.py MODEL.gguf [--texts 1,4,16] [--rounds 400] [--silent]

Printed are CPU microseconds of a round outside the model's pass, with one thread: plain decoding,
lookup whose drafts are thrown away with a fixed length and with ``draft="auto"``, and the share of
the whole round that asking adds. With ``--silent`` it is a proposer that looks for nothing. The
ways write the same texts in turn, round by round, so that what else the machine does is alike for
all; means of all rounds but the slowest tenth, which others interrupted (``auto`` learns in one of
some rounds, which a median would not see). Weights go through the caches in each pass, so this is
more than the same code takes alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice
from statistics import mean, stdev
from time import thread_time
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from serving import QUESTIONS

import mtpcore
from mtpcore.backends.cpu.backend import CpuPlan
from mtpcore.declarations.proposer import Proposal
from mtpcore.drafting.lookup import Lookup

_SETTLED = 40
"""Rounds in which auto learns what it begins with."""
_PARTS = 10
"""Parts of the rounds whose means say how sure theirs is."""

WAYS: dict[str, int | Literal["auto"]] = {"plain": 0, "asked for 3": 3, "auto": "auto"}


class Silent(mtpcore.Proposer):
    """Proposes nothing."""

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> list[int]:
        """Return no token."""
        return []


class InVain(Lookup):
    """Looks drafts up, and proposes none."""

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Proposal:
        """Return no token."""
        super().propose(seq, tokens, k)
        return Proposal([])


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
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--silent", action="store_true")
    options = parser.parse_args()
    model, watch = mtpcore.load_model(options.model), Watch()
    print("| texts | way | outside the pass, us | a round, us | more than plain |")
    print("| --- | --- | --- | --- | --- |")
    for n in map(int, options.texts.split(",")):
        proposer = Silent() if options.silent else InVain()
        spent = _measure(watch, model, proposer, n, options.rounds)
        plain = [one.outside for one in spent["plain"]]
        a_round = _usual(one.whole for one in spent["plain"])
        for way, rounds in spent.items():
            outside = [one.outside for one in rounds]
            more = [100 * (b - a) / a_round for a, b in zip(plain, outside, strict=True)]
            parts = [_usual(islice(more, at, None, _PARTS)) for at in range(_PARTS)]
            whole = _usual(one.whole for one in rounds)
            cells = f"{1e6 * _usual(outside):.0f} | {1e6 * whole:.0f} | {_usual(more):.2f} %"
            error = stdev(parts) / _PARTS**0.5
            print(f"| {n} | {way} | {cells} (error {error:.2f}) |", flush=True)


def _usual(values: Iterable[float]) -> float:
    """Return the mean of all but the highest and lowest twentieth."""
    ordered = sorted(values)
    n = len(ordered) // 20
    return mean(ordered[n : len(ordered) - n])


def _measure(
    watch: Watch, model: mtpcore.Model, proposer: mtpcore.Proposer, n: int, rounds: int
) -> dict[str, list[Spent]]:
    """Return what rounds took after the prompts were read, by the way."""
    context = mtpcore.Context(model, rounds + 256, n_seq_max=n * len(WAYS), threads=1)
    cross = mtpcore.link(context, proposer)
    cross.prepare()
    generators = {
        way: mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=draft)
        for way, draft in WAYS.items()
    }
    for generator in generators.values():
        requests = [
            generator.add(
                model.tokenizer.encode(f"{QUESTIONS[i % len(QUESTIONS)]} ({i})"),
                ignore_eos=True,
                max_tokens=None,
            )
            for i in range(n)
        ]
        while not all(len(request.tokens) > _SETTLED for request in requests):
            generator.step()
    spent: dict[str, list[Spent]] = {way: [] for way in WAYS}
    for at in range(rounds):
        ways = [*WAYS]
        for way in ways[at % 3 :] + ways[: at % 3]:
            spent[way].append(watch.step(generators[way]))
    return spent


if __name__ == "__main__":
    main()
