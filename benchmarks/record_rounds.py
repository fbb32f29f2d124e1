"""Record what rounds of real texts cost and what lookup would find, for tests without a clock.

    python benchmarks/record_rounds.py MODEL.gguf tests/data/rounds/smollm2.json.xz [-n 256]

What lookup proposes at a place of a text, and how much of it is accepted, follows from the text, so
the texts of the six tasks (``tasks.py``) are recorded as tokens. To them come the CPU seconds of
real rounds with one thread (the lower quartiles, since others may use the machine), of 1, 4 and 16
texts at once: passes by rows, with everything that a round needs besides, and the choice of a
token. ``tests/harness/replay.py`` replays them; what asking lookup takes, ``lookup.py`` measures.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from statistics import quantiles
from time import process_time

import numpy as np
from numpy.typing import NDArray
from tasks import TASKS, Task, open_lm

import mtpcore
from mtpcore.cross import speculation
from mtpcore.decoding import LengthDecision, LengthPolicy, Round, stopwatch

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
N_TEXTS = {1: 200, 4: 120, 16: 60}
"""Texts at once, and rounds of which the costs are taken."""
PROMPT = list(range(100, 200))


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model that follows instructions")
    parser.add_argument("file", type=Path, help="to write")
    parser.add_argument("-n", type=int, default=256, help="tokens of a text at most")
    options = parser.parse_args()
    for module in (stopwatch, speculation):
        vars(module)["perf_counter"] = process_time
    lm = open_lm(options.model)
    recorded = {
        "model": Path(options.model).name,
        "passes": {n: _passes(lm.model, n, rounds) for n, rounds in N_TEXTS.items()},
        "tasks": {task.name: _record(lm, task, options.n) for task in TASKS},
    }
    options.file.write_bytes(lzma.compress(json.dumps(recorded).encode()))


class Watcher(LengthPolicy):
    """Chooses lengths by chance and keeps every round."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self.lengths, self.random = [*lengths], random.Random(1)
        self.rounds: list[Round] = []

    def choose(self, limits: Mapping[int, int], fixed: Mapping[int, int]) -> dict[int, int]:
        """Let some sequences draft, all of them with one length."""
        k, n = self.random.choice(self.lengths), self.random.randint(1, len(limits) or 1)
        return {seq: k if i < n else 0 for i, seq in enumerate(limits)}

    def observe(self, done: Round) -> list[LengthDecision]:
        """Keep a round."""
        self.rounds.append(done)
        return []

    def forget(self, seq: int) -> None:
        """Keep nothing of texts."""


class Repeat:
    """Proposes the last token again, as often as it is asked for."""

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> list[int]:
        """Return ``k`` tokens."""
        return [int(tokens[-1])] * k


def _passes(model: mtpcore.Model, n: int, rounds: int) -> dict[int, float]:
    """Return the seconds of passes by rows, of so many texts at once; never less for more rows."""
    context = mtpcore.Context(model, 640, n_seq_max=n, threads=1)
    cross = mtpcore.link(context, Repeat())
    cross.prepare()
    watcher = Watcher(LENGTHS)
    generator = mtpcore.Generator(cross, sampling=TASKS[0].sampling, draft="auto", lengths=watcher)
    for _ in range(n):
        generator.add(PROMPT, ignore_eos=True, max_tokens=500)
    for _ in range(rounds + 1):
        generator.step()
    seconds = defaultdict(list)
    for done in watcher.rounds:
        if done.is_warm and not done.prompt_rows:
            # Beyond two rows a text, by eights: the more, the straighter.
            rows = done.rows if done.rows <= 2 * n + 8 else -(-done.rows // 8) * 8
            seconds[rows].append(done.pass_seconds * rows / done.rows)
    highest = accumulate((_quartile(seconds[rows]) for rows in sorted(seconds)), max)
    return dict(zip(sorted(seconds), highest, strict=True))


def _quartile(seconds: list[float]) -> float:
    return round(quantiles([seconds[0], *seconds])[0], 7)


def _record(lm: mtpcore.LM, task: Task, n: int) -> dict[str, object]:
    """Return the texts of a task, and the seconds of what depends on them."""
    watcher, texts = Watcher([0, 8]), []
    generator = mtpcore.Generator(
        lm.generator.cross, sampling=task.sampling, draft="auto", lengths=watcher
    )
    for question in task.questions:
        prompt = lm.encode_chat(question)
        texts.append([prompt, [*generator.generate(prompt, max_tokens=n)]])
    choices = [
        done.choose_seconds / (len(done.asked) + sum(done.accepted.values()))
        for done in watcher.rounds
    ]
    return {
        "texts": texts,
        "choose_seconds": _quartile(choices),
    }


if __name__ == "__main__":
    main()
