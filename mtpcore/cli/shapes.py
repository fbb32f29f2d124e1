"""What passes of other shapes cost: long prompts, deep contexts, several texts at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

import msgspec
import numpy as np

from mtpcore.cli.measure import Sample, take_turns
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context

__all__ = ["Shapes", "measure_shapes"]

_AROUND = 32
"""Tokens before a row of one of several texts."""


class Shapes(msgspec.Struct, frozen=True):
    """Seconds of passes.

    Attributes
    ----------
    prompts : dict of int to Sample
        By number of tokens: reading a prompt into an empty context.
    depths : dict of int to Sample
        By number of tokens that are there: one token more.
    sequences : dict of int to Sample
        By number of texts: one token of each, in one batch.
    """

    prompts: dict[int, Sample] = {}
    depths: dict[int, Sample] = {}
    sequences: dict[int, Sample] = {}

    @property
    def speeds(self) -> dict[str, Sample]:
        """Tokens/s as llama.cpp names such tests: ``pp512``, ``tg @ d4096``, ``tg x 8``."""
        named = {f"pp{n}": (n, one) for n, one in self.prompts.items()}
        named |= {f"tg @ d{n}": (1, one) for n, one in self.depths.items()}
        named |= {f"tg x {n}": (n, one) for n, one in self.sequences.items()}
        return {
            name: Sample(n / one.median, n / one.high, n / one.low)
            for name, (n, one) in named.items()
        }


def measure_shapes(
    make: Callable[[int, int], Context],
    tokens: Sequence[int],
    *,
    prompts: Sequence[int] = (),
    depths: Sequence[int] = (),
    sequences: Sequence[int] = (),
    n: int = 5,
    after_each: Callable[[], None] = lambda: None,
) -> Shapes:
    """Measure passes on texts made of ``tokens``, ``n`` times each, in turn.

    Parameters
    ----------
    make : callable
        ``make(n_ctx, n_seq_max)`` returns an empty context of a decoder.
    tokens : sequence of int
    prompts, depths, sequences : sequence of int
        Which shapes; above 0.
    n : int
    after_each : callable
        Called after each run, of which there are ``n + 1`` of each shape.
    """
    longest = max([*prompts, *(depth + 1 for depth in depths), _AROUND + 1])
    widest = max([len(depths) + 1, *sequences])
    context = make(longest, widest)
    text = np.resize(np.asarray(tokens, np.int32), longest)

    def read_prompt(length: int) -> float:
        seconds = _time(context, Batch.of(text[:length]))
        context.remove(0)
        return seconds

    def add_row(seq: int, depth: int) -> float:
        if not context.length(seq):
            context.process(Batch.of(text[:depth], seq=seq, outputs="none"))
        seconds = _time(context, Batch.of(text[depth : depth + 1], seq=seq, pos=depth))
        context.rewind(seq, depth)
        return seconds

    def add_rows(n_seqs: int) -> float:
        seqs = range(n_seqs)
        for seq in seqs:
            if context.length(seq):  # a depth's, which was measured before
                context.remove(seq)
            context.process(Batch.of(text[:_AROUND], seq=seq, outputs="none"))
        rows = text[_AROUND : _AROUND + 1].repeat(n_seqs)
        seconds = _time(context, Batch(rows, seq=[*seqs], pos=_AROUND, outputs="all"))
        for seq in seqs:
            context.remove(seq)
        return seconds

    def measure(runs: Mapping[int, Callable[[], float]]) -> dict[int, Sample]:
        found = take_turns([*runs.values()], n, after_each) if runs else []
        return dict(zip(runs, found, strict=True))

    return Shapes(
        measure({length: partial(read_prompt, length) for length in prompts}),
        measure({depth: partial(add_row, seq, depth) for seq, depth in enumerate(depths, 1)}),
        measure({n_seqs: partial(add_rows, n_seqs) for n_seqs in sequences}),
    )


def _time(context: Context, batch: Batch) -> float:
    """Return the seconds of a pass, to where its logits are on the host."""
    begin = perf_counter()
    assert len(context.process(batch).logits)
    return perf_counter() - begin
