"""Measure how soon the first token comes if the prompt begins as an earlier one did.

``python benchmarks/prefix.py MODEL.gguf [-n 8000] [--more 100] [--turns 3]``: in each turn a prompt
of ``n`` tokens and ``more`` others is read cold; then the text goes on with so many further tokens
(the next turn of a conversation); then comes a prompt with the same ``n`` tokens and others after
them (the same instructions, another question). Printed are the medians, their shares of the cold
time, how many tokens were processed, and what a state of recurrent layers takes.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np

import mtpcore
from mtpcore.memory import LOG
from mtpcore.memory.recurrent import RecurrentMemory

N_TEXT = 8
CASES = ("cold", "goes on", "same beginning")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=8000, help="tokens that the prompts share")
    parser.add_argument("--more", type=int, default=100, help="tokens after them, of each prompt")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    model = mtpcore.load_model(options.model)
    cross = mtpcore.link(mtpcore.Context(model, options.n + 2 * options.more + 64, n_seq_max=2))
    cross.prepare()
    generator = mtpcore.Generator(
        cross, sampling=mtpcore.Sampling.greedy(), prefix_cache="all", draft=3
    )
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    processed: dict[str, int] = {}
    for turn in range(options.turns):
        chance = np.random.default_rng(turn)
        text, *ends = (
            chance.integers(10, model.hparams.n_vocab - 10, n).tolist()
            for n in (options.n, *[options.more] * 3)
        )
        cold = [*text, *ends[0]]
        first = _time(generator, cold, seconds["cold"])
        on = _time(generator, [*cold, *first.tokens, *ends[1]], seconds["goes on"])
        other = _time(generator, [*text, *ends[2]], seconds["same beginning"])
        for case, request in zip(CASES, (first, on, other), strict=True):
            processed[case] = len(request.prompt) - request.n_cached
        for seq in range(2):
            cross.remove(seq)
    whole = statistics.median(seconds["cold"])
    for case, times in seconds.items():
        middle = statistics.median(times)
        print(
            f"{case}: {processed[case]:,} tokens processed, first token after {middle:.3f} s "
            f"({min(times):.3f} to {max(times):.3f}), {middle / whole:.1%} of cold"
        )
    memory = cross.llm.runner.memory
    for part in memory.parts if memory else ():
        if isinstance(part, RecurrentMemory):
            base, row = part.store.base_bytes / 1e6, part.store.row_bytes / 1e6
            print(f"a checkpoint takes {base:.1f} MB, its log {LOG} rows of {row:.2f} MB each")


def _time(generator: mtpcore.Generator, prompt: list[int], seconds: list[float]) -> mtpcore.Request:
    """Generate a short text, and note the seconds until its first token."""
    begin = perf_counter()
    request = generator.add(prompt, max_tokens=N_TEXT, ignore_eos=True)
    while not request.tokens:
        generator.step()
    seconds.append(perf_counter() - begin)
    while generator.active:
        generator.step()
    return request


if __name__ == "__main__":
    main()
