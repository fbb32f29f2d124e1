"""Many texts at once with drafts: plain decoding, fixed lengths, ``draft="auto"``, and llama.cpp.

``python benchmarks/many.py MODEL.gguf [--texts 4,8,16,32] [-l 1.3,2.8]`` prints rows of a table in
tokens a second. Acceptance is simulated so that a pass with three drafts would give so many tokens
(``-l``); all texts are alike, each with an acceptance of its own.

In a turn each draft length has texts of its own, whose rounds follow each other: what disturbs the
machine slows all of them alike. Tokens are those to expect of the drafts that were made, so that
luck does not count. In the first turn auto learns; the row below has the later ones together, with
new texts each.

``--batched-bench PROGRAM`` lets llama.cpp's llama-batched-bench decode as many texts for as many
passes, before and after ours; its best time counts. ``--peer FILE`` is what it reads where it can
not read ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple, TypeVar

from lengths import GREEDY, PROMPT, simulate, write
from versus.apart import FLASH, seconds_of_batched_bench
from versus.hold import Hold

import mtpcore
from mtpcore.backends.threads import default_threads

Draft = int | Literal["auto"]
T = TypeVar("T")

DRAFTS: tuple[Draft, ...] = (0, 1, 2, 3, "auto")
COLUMNS = (
    *("texts", "tokens a pass", "turns", "plain", "1", "2", "3", "auto", "auto over the best"),
    *("llama.cpp",),
)


class Speed(NamedTuple):
    """Tokens to expect of the drafts that were made, and seconds."""

    tokens: float
    seconds: float

    @classmethod
    def of(cls, turns: Sequence[Speed]) -> float:
        """Return the tokens a second of several turns together."""
        return sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a model with a drafter")
    parser.add_argument("--texts", type=_list(int), default=[4, 8, 16, 32], help="at once")
    parser.add_argument("-l", "--lengths", type=_list(float), default=[1.3, 2.8])
    parser.add_argument("--rounds", type=int, default=24, help="of a turn")
    parser.add_argument("--turns", type=int, default=4, help="2 or more")
    parser.add_argument("--batched-bench", type=Path, metavar="PROGRAM", help="llama.cpp's")
    parser.add_argument("--peer", type=Path, metavar="FILE", help="that it reads; default: MODEL")
    parser.add_argument("--alone", default="", help="command to hold while measuring, see hold.py")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: auto learns in the first one, so there must be a second")
    print(_row(COLUMNS))
    print(_row(["---"] * len(COLUMNS)))
    for n in options.texts:
        with Hold(options.alone, seconds=0.0):
            _measure(n, options)


def _list(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [kind(word) for word in text.split(",")]


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _measure(n: int, options: argparse.Namespace) -> None:
    """Print the rows of so many texts."""
    peer = [*_peer_speeds(n, options)]
    model = mtpcore.load_model(options.model)
    text = write(model, 2 * 4 * options.rounds)
    found = {
        length: _measure_turns(model, n, length, text, options.rounds, options.turns)
        for length in options.lengths
    }
    model.close()
    peer += _peer_speeds(n, options)
    for length, turns in found.items():
        for which, part in ("first", slice(1)), ("later", slice(1, None)):
            speeds = {draft: Speed.of(of_draft[part]) for draft, of_draft in turns.items()}
            auto = speeds["auto"] / max(speed for k, speed in speeds.items() if k != "auto")
            cells = [f"{speed:.0f}" for speed in speeds.values()]
            print(_row([n, length, which, *cells, f"{auto:.2f}", f"{max(peer, default=0):.0f}"]))


def _peer_speeds(n: int, options: argparse.Namespace) -> Iterator[float]:
    """Yield the tokens a second of each of llama.cpp's settings."""
    program, rounds = options.batched_bench, options.rounds
    path = options.peer or options.model
    for flash in FLASH if program else ():
        times = seconds_of_batched_bench(
            program, path, default_threads(), flash, [n], len(PROMPT), rounds
        )
        yield n * rounds / times[n]


def _measure_turns(
    model: mtpcore.Model, n: int, length: float, text: list[int], rounds: int, turns: int
) -> dict[Draft, list[Speed]]:
    """Return what was found of each draft length, turn by turn."""
    cross = mtpcore.link(mtpcore.Context(model, len(text) + 32, n_seq_max=len(DRAFTS) * n))
    cross.prepare()
    simulated = simulate(model, length, text)
    simulated.install(cross)
    tokens = [*accumulate(simulated.rates, initial=1.0)]  # of a step, by its drafts
    generators = {d: mtpcore.Generator(cross, sampling=GREEDY, draft=d) for d in DRAFTS}
    found: dict[Draft, list[Speed]] = {draft: [] for draft in DRAFTS}
    for _ in range(turns):
        requests = {draft: _begin(generator, n) for draft, generator in generators.items()}
        before = {draft: dict(one.stats.lengths) for draft, one in generators.items()}
        seconds = dict.fromkeys(DRAFTS, 0.0)
        for _ in range(rounds):
            for draft, generator in generators.items():
                begin = perf_counter()
                generator.step()
                seconds[draft] += perf_counter() - begin
        for draft, generator in generators.items():
            steps = generator.stats.lengths.items()
            made = sum(tokens[k] * (count - before[draft].get(k, 0)) for k, count in steps)
            found[draft].append(Speed(made, seconds[draft]))
            for request in requests[draft]:
                generator.cancel(request)
    return found


def _begin(generator: mtpcore.Generator, n: int) -> list[mtpcore.Request]:
    """Read the prompts of so many texts."""
    requests = [generator.add(PROMPT, ignore_eos=True) for _ in range(n)]
    while not all(request.tokens for request in requests):
        generator.step()
    return requests


if __name__ == "__main__":
    main()
