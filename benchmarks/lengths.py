"""Measure ``draft="auto"`` against fixed lengths and plain decoding, at several acceptance rates.

``python benchmarks/lengths.py MODEL.gguf [-l 1.3,2.8,3.6] [-n 80]``: for each mean length (tokens
that a pass with three drafts would give) the model generates texts with each draft length in turn,
with simulated acceptance; the last line of each says what auto chose and why.
"""

from __future__ import annotations

import argparse

import mtpcore
from mtpcore.decoding import SimulatedAcceptance

FIXED = (0, 1, 2, 3, 5)
DECLARED = 3  # the draft length whose mean length is given


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model with a drafter")
    parser.add_argument("-l", "--lengths", default="1.3,2.8,3.6")
    parser.add_argument("-n", type=int, default=80, help="tokens of each of two texts")
    options = parser.parse_args()
    model = mtpcore.load_model(options.model)
    limit = model.find_drafter(None).limit
    prompt, greedy = list(range(10, 42)), mtpcore.Sampling.greedy()
    plain = mtpcore.Generator(mtpcore.Context(model, options.n + 64), sampling=greedy)
    text = list(plain.generate(prompt, max_tokens=options.n, ignore_eos=True))
    for length in map(float, options.lengths.split(",")):
        simulated = SimulatedAcceptance.of_length(length, DECLARED, longest=limit)
        simulated.expect([*prompt, *text])
        cross = mtpcore.link(mtpcore.Context(model, options.n + 64))
        simulated.install(cross)
        generators = {
            draft: mtpcore.Generator(cross, sampling=greedy, draft=draft)
            for draft in (*FIXED, "auto")
        }
        for _ in range(2):
            for generator in generators.values():
                list(generator.generate(prompt, max_tokens=options.n, ignore_eos=True))
        speeds = {draft: one.stats.tokens_per_second for draft, one in generators.items()}
        best = max(speeds[draft] for draft in FIXED)
        stats = generators["auto"].stats
        print(f"{length:g} tokens a pass:", {draft: round(s, 1) for draft, s in speeds.items()})
        print(f"  auto {speeds['auto'] / best:.2f} of the best, passes by drafts {stats.lengths}")
        print(f"  {1e6 * stats.length_seconds / stats.passes:.0f} us a pass to choose lengths")
        print(f"  {stats.decisions[-1].reason}")


if __name__ == "__main__":
    main()
