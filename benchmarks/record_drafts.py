"""Record what a head drafts at each place of texts, how much of it is right, and how sure it is.

    python benchmarks/record_drafts.py tests/data/rounds/demo_head.json.xz [-n 130]

The demo's head drafts at every place of texts that the demo writes, greedily and at temperature 1
with coupled drafts. The reference backend runs them: it computes how probable each draft is for the
head, which other backends do only where ``p_min`` asks for it. ``tests/harness/head_replay.py``
replays the places, and ``head_probability.py`` shows what the probabilities are worth.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path
from typing import Any, cast

import mtpcore
from mtpcore.backends import draft
from mtpcore.backends.schedule import Drafts

BEGINNINGS = (
    "Once upon a time",
    "The results of",
    "def read(self, name):",
    "She said that the",
    "In 1912 the city",
    "import numpy as np",
)
LENGTH = 6
"""Drafts at a place."""


class Watch:
    """Keeps how probable the drafts of the last round are."""

    def __init__(self) -> None:
        self.probabilities: list[float] = []
        run = draft._Round.run

        def watched(one: Any) -> Drafts:
            made = run(one)
            chosen = one._chosen
            self.probabilities = [chosen[n].probability for n in sorted(chosen)]
            return made

        draft._Round.run = watched  # type: ignore[assignment, method-assign]


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="to write")
    parser.add_argument("-n", type=int, default=130, help="tokens of a text")
    options = parser.parse_args()
    model, watch = mtpcore.load_model("demo"), Watch()
    samplings = {
        "greedy": mtpcore.Sampling.greedy(),
        "temperature 1": mtpcore.Sampling(temperature=1.0, seed=1),
    }
    recorded = {
        name: [
            _record(model, watch, sampling, model.tokenizer.encode(text), options.n)
            for text in BEGINNINGS
        ]
        for name, sampling in samplings.items()
    }
    options.file.write_bytes(lzma.compress(json.dumps(recorded).encode()))


def _record(
    model: mtpcore.Model, watch: Watch, sampling: mtpcore.Sampling, prompt: list[int], n: int
) -> list[tuple[int, list[float]]]:
    """Return for each place how many drafts in a row are right, and how probable they are."""
    context = mtpcore.Context(model, len(prompt) + n + 1, backend="reference")
    cross = mtpcore.link(context)
    cross.verify({}, sampling, prefill={0: prompt})
    drafted: list[tuple[list[int], list[float]]] = []
    tokens: list[int] = []
    for _ in range(n):
        drafts = [*cast(list[int], cross.draft(0, LENGTH, sampling))]
        drafted.append((drafts, [round(p, 3) for p in watch.probabilities[: len(drafts)]]))
        tokens += cross.verify({0: []}, sampling)[0].committed
        cross.accept(0, 0)
    places = []
    for at, (drafts, probabilities) in enumerate(drafted[: n - LENGTH], 1):
        same = [a == b for a, b in zip(drafts, tokens[at:], strict=False)]
        places.append(([*same, False].index(False), probabilities))
    return places


if __name__ == "__main__":
    main()
