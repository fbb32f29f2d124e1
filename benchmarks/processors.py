"""Acceptance rate under a constraint, by how it is given: what drafters see of it.

``python benchmarks/processors.py [MODEL]`` (default: the demo) samples texts in which only digits
are allowed: by a function, which no drafter sees, by a ``PureProcessor``, and by ``logit_bias``.
It prints the table of ``docs/lm.md``. The texts are the same all three times, because drafting
never changes them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mtpcore

PROMPT = "values = ["
TEMPERATURES = (0.0, 1.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--draft", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of each text")
    given = parser.parse_args()
    with mtpcore.LM(given.model, draft=given.draft) as lm:
        vocabulary = lm.tokenizer
        ids = range(vocabulary.n_vocab)
        others = [i for i in ids if not vocabulary.token_bytes(i).strip().isdigit()]

        def digits_only(tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> None:
            logits[others] = -np.inf

        ways: dict[str, dict[str, Any]] = {
            "a function": {"logits_processor": digits_only},
            "`PureProcessor`": {"logits_processor": mtpcore.PureProcessor(digits_only)},
            "`logit_bias`": {"logit_bias": dict.fromkeys(others, -np.inf)},
        }
        print("| | " + " | ".join(f"temperature {t:g}" for t in TEMPERATURES) + " |")
        print("| --- " * (len(TEMPERATURES) + 1) + "|")
        texts: dict[float, list[tuple[int, ...]]] = {}
        for name, way in ways.items():
            shares = []
            for temperature in TEMPERATURES:
                made = [
                    lm.generate(
                        PROMPT,
                        seed=seed,
                        max_tokens=given.tokens,
                        temperature=temperature,
                        ignore_eos=True,
                        **way,
                    )
                    for seed in range(given.seeds)
                ]
                drafted, accepted = (
                    sum(getattr(one.stats, count) for one in made)
                    for count in ("drafted", "accepted")
                )
                shares.append(f"{accepted / drafted:.2f}")
                text = [one.tokens for one in made]
                assert texts.setdefault(temperature, text) == text
            print(f"| {name} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
