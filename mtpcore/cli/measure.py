"""Costs of passes and drafts, and the speed that they and the acceptance rate predict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import msgspec
import numpy as np

from mtpcore.cli.session import Session
from mtpcore.cross import draft_batch
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

__all__ = ["ROWS", "Timings", "Sample", "measure_costs", "take_turns"]

ROWS = (1, 2, 3, 4, 6, 8)
_LEAST = 0.02  # seconds of one measurement


class Sample(msgspec.Struct, frozen=True):
    """The middle, least and largest of several measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return the sample of some measurements."""
        return cls(statistics.median(values), min(values), max(values))


def take_turns(
    runs: Sequence[Callable[[], float]], n: int, after_each: Callable[[], None]
) -> list[Sample]:
    """Measure several things in turn, so that a slow minute hits all of them alike.

    Each run returns what it measured; its first time warms up and does not count.
    """
    values: list[list[float]] = [[] for _ in runs]
    for turn in range(n + 1):
        for run, seconds in zip(runs, values, strict=True):
            value = run()
            after_each()
            if turn:
                seconds.append(value)
    return [Sample.of(seconds) for seconds in values]


class Timings(msgspec.Struct, frozen=True):
    """Seconds of the parts of decoding, at ``depth`` tokens.

    ``prefill`` is for all ``depth`` tokens at once, ``rows`` for verifying n rows, ``drafts`` for
    drafting k tokens in a row, ``trees`` for verifying what they branch into, if they do.
    """

    depth: int
    prefill: Sample
    rows: dict[int, Sample]
    drafts: dict[int, Sample]
    trees: dict[int, Sample] = {}

    def predict(self, rates: Sequence[float], draft: int, proposed: float = 1.0) -> float:
        """Return how many times as fast drafting is, for rates by position of the draft.

        ``proposed`` is in which share of the passes that a draft was asked for there is one: the
        others have one row.
        """
        tokens = 1 + proposed * sum(rates[:draft])
        rows, plain = [self.rows[n].median for n in self.rows], self.rows[1].median
        verify = float(np.interp(draft + 1, list(self.rows), rows))
        if draft in self.trees:
            verify = self.trees[draft].median
        seconds = proposed * verify + (1 - proposed) * plain + self.drafts[draft].median
        return tokens * plain / seconds


def measure_costs(
    session: Session,
    context: Context,
    tokens: Sequence[int],
    sampling: Sampling,
    n: int,
    after_each: Callable[[], None],
) -> Timings:
    """Measure the costs on texts made of ``tokens``, ``n`` times.

    Parameters
    ----------
    context : Context
        One like the session's target, of its own; passes are measured with it.
    """
    context.add_taps(session.llm.taps)
    shape = session.drafter.tree if session.drafter else None
    n_nodes = max(shape.n_nodes, sum(map(len, shape.paths))) if shape else 0
    widest = max(*ROWS, session.draft + 1, n_nodes + 1)
    depth = max(min(context.n_batch, context.n_ctx - widest), 1)
    text = np.resize(np.asarray(tokens, np.int32), depth + widest)

    if (slot := context.program.whole_slot) is not None:
        width = context.program.values[context.program.inputs[slot]].shape[1]
        context.receive(slot, 0, np.zeros((len(tokens), int(width)), np.float32))

    def process(batch: Batch) -> None:
        context.rewind(0, int(batch.pos[0]))
        assert len(context.process(batch).logits)  # on a device the work ends here

    def prefill() -> float:
        return _time(partial(process, Batch.of(text[:depth])))

    def verify(n_rows: int) -> float:
        batch = Batch.of(text[depth : depth + n_rows], pos=depth, outputs="all")
        return _time(partial(process, batch))

    rows = sorted({*ROWS, session.draft + 1})
    runs: list[Callable[[], float]] = [prefill, *(partial(verify, n_rows) for n_rows in rows)]
    lengths = range(1, session.draft + 1)
    cross = session.cross if session.drafter else None
    trees: dict[int, Batch] = {}
    if cross is not None:
        if cross.encoder is not None:
            cross.encode({0: tokens})
        cross.llm.process(Batch.of(text[:depth]))
        draft = cross.draft
        if shape:
            pending = int(text[depth])
            trees = {k: draft_batch(0, depth, pending, draft(0, k, sampling)) for k in lengths}
        runs += [partial(_time, partial(process, batch)) for batch in trees.values()]
        runs += [partial(_time, partial(draft, 0, k, sampling)) for k in lengths]
    try:
        first, *others = take_turns(runs, n, after_each)
    finally:
        if cross is not None:
            cross.remove(0)
    by_rows, by_tree = others[: len(rows)], others[len(rows) : len(rows) + len(trees)]
    drafts = others[len(rows) + len(trees) :]
    return Timings(
        depth,
        first,
        dict(zip(rows, by_rows, strict=True)),
        dict(zip(lengths, drafts, strict=True)),
        dict(zip(trees, by_tree, strict=True)),
    )


def _time(run: Callable[[], object]) -> float:
    """Return the seconds of a run: the mean of as many as the clock and the machine need."""
    begin, n = perf_counter(), 0
    while not n or perf_counter() - begin < _LEAST:
        run()
        n += 1
    return (perf_counter() - begin) / n
