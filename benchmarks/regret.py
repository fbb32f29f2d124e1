"""How near ``draft="auto"`` comes to the best fixed length, without a clock.

    python benchmarks/regret.py [--set controller._MEMORY=100] [--set ...] [--seeds 4]

It is replayed on recorded rounds of real texts (``record_rounds.py``) and on simulated machines.
Each row says which share of the best length's speed it has, plain decoding being one of them. Each
``--set`` adds a column in which a constant of ``mtpcore/decoding/lengths`` has another value: what
it is worth can be seen there.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.bytecodes import count_bytecodes
from harness.head_replay import HeadReplay, head_controller
from harness.length_scenarios import scenarios
from harness.replay import Traffic, make_controller, recorded, replays, share_of_best

ROOM = "mtpcore.decoding.lengths"


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    columns = ["as it is", *options.set]
    print(f"| | {' | '.join(columns)} |\n| --- {'| --- ' * len(columns)}|")
    found: list[list[float]] = []
    for name, run in _rows().items():
        shares = [[_with(change, run, seed) for seed in range(options.seeds)] for change in columns]
        found.append([mean(of_seed) for of_seed in shares])
        spread = stdev(shares[0]) if options.seeds > 1 else 0.0
        cells = " | ".join(f"{share:.3f}" for share in found[-1])
        print(f"| {name} (spread {spread:.3f}) | {cells} |", flush=True)
    by_column = list(zip(*found, strict=True))
    print(f"| mean | {' | '.join(f'{mean(column):.4f}' for column in by_column)} |")
    print(f"| least | {' | '.join(f'{min(column):.4f}' for column in by_column)} |")
    for name, run in (("answers", _of_answers), ("a head", _of_a_head)):
        taken = [_with(change, run, 1) for change in columns]
        print(f"| bytecodes, {name} | {' | '.join(f'{n:.0f}' for n in taken)} |")


def _rows() -> dict[str, Callable[[int], float]]:
    """Return by name what gives the share of the best length's speed for a seed."""
    rows: dict[str, Callable[[int], float]] = {}
    for task in recorded()["tasks"]:
        for name, runs in replays(task).items():
            rows[f"{task}, {name}"] = partial(_replay, runs)
    rows.update(scenarios())
    return rows


def _replay(runs: Any, seed: int) -> float:
    return float(share_of_best(runs, [seed]))


def _of_answers(seed: int) -> float:
    """Return the bytecodes of a round of short answers, four at once, in which lookup drafts."""
    return _bytecodes(Traffic(4, longest=48), make_controller(), seed)


def _of_a_head(seed: int) -> float:
    """Return the bytecodes of a round of one text for which a head drafts."""
    replay = HeadReplay("greedy", 1, 0.05)
    replay.n_tokens = 500
    return _bytecodes(replay, head_controller(), seed)


def _bytecodes(replay: Any, controller: Any, seed: int) -> float:
    """Return how many bytecodes a round takes below ``decoding/lengths``."""
    n_rounds, learn = 0, controller.observe

    def observe(done: Any) -> Any:
        nonlocal n_rounds
        n_rounds += 1
        return learn(done)

    controller.observe = observe
    n = count_bytecodes(lambda: replay.run(controller, seed), under="mtpcore/decoding/lengths")
    return float(n / n_rounds)


def _with(change: str, run: Callable[[int], float], seed: int) -> float:
    """Run with a constant changed."""
    if "=" not in change:
        return run(seed)
    name, value = change.split("=")
    module, constant = name.split(".")
    found = importlib.import_module(f"{ROOM}.{module}")
    with patch.object(found, constant, type(getattr(found, constant))(float(value))):
        return run(seed)


if __name__ == "__main__":
    main()
