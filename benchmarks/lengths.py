"""Measure ``draft="auto"`` against fixed lengths and plain decoding, at several acceptance rates.

``python benchmarks/lengths.py MODEL.gguf [-l 1.3,2.8,3.6] [-n 80]``: for each mean length (tokens
that a pass with three drafts would give) the model generates texts with each draft length in turn,
with simulated acceptance; the last line of each says what auto chose and why. ``many.py`` does so
with several texts at once.
"""

from __future__ import annotations

import argparse
from typing import Literal

import mtpcore
from mtpcore.decoding import SimulatedAcceptance

__all__ = ["GREEDY", "PROMPT", "simulate", "write"]

FIXED = (0, 1, 2, 3, 5)
DECLARED = 3  # the draft length whose mean length is given
PROMPT = list(range(10, 42))
GREEDY = mtpcore.Sampling.greedy()

Draft = int | Literal["auto"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model with a drafter")
    parser.add_argument("-l", "--lengths", type=_floats, default=[1.3, 2.8, 3.6])
    parser.add_argument("-n", type=int, default=80, help="tokens of each of two texts")
    options = parser.parse_args()
    model = mtpcore.load_model(options.model)
    text = write(model, options.n)
    for length in options.lengths:
        cross = mtpcore.link(mtpcore.Context(model, options.n + 64))
        cross.prepare()
        simulate(model, length, text).install(cross)
        print(f"{length:g} tokens a pass:")
        _measure(cross, options.n)


def write(model: mtpcore.Model, n: int) -> list[int]:
    """Return the prompt and ``n`` tokens that the model writes after it."""
    plain = mtpcore.Generator(mtpcore.Context(model, n + 64), sampling=GREEDY)
    return [*PROMPT, *plain.generate(PROMPT, max_tokens=n, ignore_eos=True)]


def simulate(model: mtpcore.Model, length: float, text: list[int]) -> SimulatedAcceptance:
    """Return an acceptance with which a pass with three drafts gives ``length`` tokens."""
    limit = model.find_drafter(None).limit
    simulated = SimulatedAcceptance.of_length(length, DECLARED, longest=limit)
    simulated.expect(text)
    return simulated


def _floats(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def _measure(cross: mtpcore.Cross, n: int) -> None:
    """Generate two texts of ``n`` tokens with each length."""
    drafts: tuple[Draft, ...] = (*FIXED, "auto")
    generators = {d: mtpcore.Generator(cross, sampling=GREEDY, draft=d) for d in drafts}
    for _ in range(2):
        for generator in generators.values():
            list(generator.generate(PROMPT, max_tokens=n, ignore_eos=True))
    speeds = {draft: one.stats.tokens_per_second for draft, one in generators.items()}
    best = max(speed for draft, speed in speeds.items() if draft != "auto")
    rounded = {draft: round(speed, 1) for draft, speed in speeds.items()}
    print(f"  {rounded}, auto {speeds['auto'] / best:.2f} of the best")
    stats = generators["auto"].stats
    print(f"  auto's passes by drafts {dict(sorted(stats.lengths.items()))}")
    print(f"  {1e6 * stats.length_seconds / stats.passes:.0f} us a pass to choose lengths")
    if stats.decisions:
        print(f"  {stats.decisions[-1].reason}", flush=True)


if __name__ == "__main__":
    main()
