"""Measure ``draft="auto"`` against fixed lengths and plain decoding, at several acceptance rates.

``python benchmarks/lengths.py MODEL.gguf [-l 1.3,2.8,3.6] [-n 80]``: for each mean length (tokens
that a pass with three drafts would give) the model generates texts with each draft length in turn,
with simulated acceptance; the last line of each says what auto chose and why.

``--sequences 4,8,16,32 --rounds 24`` times rounds of so many texts at once instead, again for each
draft length in turn. All write the same text, each with an acceptance of its own. The first turn
is the one in which auto learns; it is printed beside the median of the others.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal, TypeVar

from versus.hold import Hold

import mtpcore
from mtpcore.decoding import SimulatedAcceptance

FIXED = (0, 1, 2, 3, 5)
FIXED_OF_MANY = (0, 1, 2, 3)
DECLARED = 3  # the draft length whose mean length is given
PROMPT = list(range(10, 42))
GREEDY = mtpcore.Sampling.greedy()

T = TypeVar("T")
Draft = int | Literal["auto"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model with a drafter")
    parser.add_argument("-l", "--lengths", type=_list(float), default=[1.3, 2.8, 3.6])
    parser.add_argument("-n", type=int, default=80, help="tokens of each of two texts")
    parser.add_argument("--sequences", type=_list(int), default=[], help="texts at once")
    parser.add_argument("--rounds", type=int, default=24, help="of a turn of several texts")
    parser.add_argument("--turns", type=int, default=3, help="of several texts")
    parser.add_argument("--alone", default="", help="command to hold while measuring, see hold.py")
    options = parser.parse_args()
    model = mtpcore.load_model(options.model)
    for n in options.sequences or [1]:
        most = 2 * (DECLARED + 1) * options.rounds if options.sequences else options.n
        context = mtpcore.Context(model, most + 64, n_seq_max=n)
        plain = mtpcore.Generator(context, sampling=GREEDY)
        text = [*PROMPT, *plain.generate(PROMPT, max_tokens=most, ignore_eos=True)]
        for length in options.lengths:
            cross = mtpcore.link(mtpcore.Context(model, most + 64, n_seq_max=n))
            limit = model.find_drafter(None).limit
            simulated = SimulatedAcceptance.of_length(length, DECLARED, longest=limit)
            simulated.expect(text)
            simulated.install(cross)
            print(f"{n} texts at once, " * bool(options.sequences) + f"{length:g} tokens a pass:")
            if options.sequences:
                hold = Hold(options.alone)
                _measure_rounds(cross, n, options.rounds, options.turns, hold)
                hold.release()
            else:
                _measure_texts(cross, options.n)


def _list(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [kind(word) for word in text.split(",")]


def _generators(cross: mtpcore.Cross, fixed: Sequence[int]) -> dict[Draft, mtpcore.Generator]:
    drafts: tuple[Draft, ...] = (*fixed, "auto")
    return {d: mtpcore.Generator(cross, sampling=GREEDY, draft=d) for d in drafts}


def _measure_texts(cross: mtpcore.Cross, n: int) -> None:
    """Generate two texts of ``n`` tokens with each length."""
    generators = _generators(cross, FIXED)
    for _ in range(2):
        for generator in generators.values():
            list(generator.generate(PROMPT, max_tokens=n, ignore_eos=True))
    _say({draft: one.stats.tokens_per_second for draft, one in generators.items()})
    _say_choices(generators["auto"])


def _measure_rounds(cross: mtpcore.Cross, n: int, rounds: int, turns: int, hold: Hold) -> None:
    """Time rounds of ``n`` texts with each length; the median of the turns after the first."""
    generators = _generators(cross, FIXED_OF_MANY)
    speeds: dict[Draft, list[float]] = {draft: [] for draft in generators}
    for _ in range(turns):
        with hold:
            for draft, generator in generators.items():
                speeds[draft].append(_time_rounds(generator, n, rounds))
    _say({draft: first for draft, (first, *_) in speeds.items()}, "first turn ")
    _say({draft: statistics.median(later) for draft, (_, *later) in speeds.items()}, "later ")
    _say_choices(generators["auto"])


def _time_rounds(generator: mtpcore.Generator, n: int, rounds: int) -> float:
    """Return tokens a second of so many rounds behind the prompts."""
    requests = [generator.add(PROMPT, ignore_eos=True) for _ in range(n)]
    while not all(request.tokens for request in requests):
        generator.step()
    before = sum(len(request.tokens) for request in requests)
    begin = perf_counter()
    for _ in range(rounds):
        generator.step()
    seconds = perf_counter() - begin
    made = sum(len(request.tokens) for request in requests) - before
    for request in requests:
        generator.cancel(request)
    return made / seconds


def _say(speeds: dict[Draft, float], which: str = "") -> None:
    best = max(speed for draft, speed in speeds.items() if draft != "auto")
    rounded = {draft: round(speed, 1) for draft, speed in speeds.items()}
    print(f"  {which}{rounded}, auto {speeds['auto'] / best:.2f} of the best", flush=True)


def _say_choices(auto: mtpcore.Generator) -> None:
    stats = auto.stats
    print(f"  auto's passes by drafts {dict(sorted(stats.lengths.items()))}")
    print(f"  {1e6 * stats.length_seconds / stats.passes:.0f} us a pass to choose lengths")
    if stats.decisions:
        print(f"  {stats.decisions[-1].reason}", flush=True)


if __name__ == "__main__":
    main()
