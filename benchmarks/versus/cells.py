"""Decode, verify and prefill: the same rows in both engines, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from timing import Reader, Sample, Undone, alternate, choose

import mtpcore
from versus.hold import Hold
from versus.ours import Engine, Ours
from versus.recurrence import memory_kept, without_recurrence
from versus.results import Found, Ratio
from versus.work import Work

if TYPE_CHECKING:
    from versus.peer import Peer

__all__ = ["ROWS", "Arena", "measure"]

ROWS = (1, 2, 3, 4, 6, 8)
DEPTH, DECODED = 512, 64
Run = Callable[[Engine], object]


class Task(NamedTuple):
    """What engines do: the cell, its tokens, what tells the best setting, and what is timed.

    ``undo`` puts an engine back after either, and is not timed: llama.cpp copies what recurrent
    layers held, which would cost it a part of what a token costs.
    """

    cell: str
    n_tokens: int
    trial: Run
    run: Run
    undo: Run

    def trial_of(self, engine: Engine) -> Undone:
        """Return the trial on an engine."""
        return Undone(partial(self.trial, engine), partial(self.undo, engine))

    def run_of(self, engine: Engine) -> Undone:
        """Return what is timed on an engine."""
        return Undone(partial(self.run, engine), partial(self.undo, engine))


class Arena:
    """A file in mtpcore and, with all its settings, in llama.cpp."""

    def __init__(
        self, name: str, path: Path, threads: int, *, peer: bool = True, hold: Hold | None = None
    ) -> None:
        self.name, self.hold = name, hold or Hold()
        self.model = mtpcore.load_model(path, mtp=False)
        limit: Any = self.model.metadata[f"{self.model.architecture}.context_length"]
        self.depth = min(DEPTH, limit - DECODED - max(ROWS))
        n_ctx = min(limit, 2 * DEPTH)
        self.ours = Ours(self.model, n_ctx, threads)
        self.kept = memory_kept(self.ours.context)
        self.bare = without_recurrence(path, n_ctx, threads) if self.kept else None
        self.theirs: dict[str, Peer] = {}
        if peer:
            from versus.peer import Peer, PeerModel

            for repack in (True, False):
                loaded = PeerModel(path, repack)
                for flash in (True, False):
                    one = Peer(loaded, flash, n_ctx, threads)
                    self.theirs[one.name] = one
        rng = np.random.default_rng(3)
        self.text = rng.integers(3, self.model.hparams.n_vocab, n_ctx).tolist()

    @property
    def engines(self) -> list[Engine]:
        """Ours, then llama.cpp with each of its settings."""
        return [self.ours, *self.theirs.values()]

    def fill(self) -> None:
        """Let all engines hold the text up to the depth, if they do not yet."""
        text = self.text[: self.depth]
        for mine in (self.ours, self.bare):
            if mine and mine.filled != self.depth:
                mine.fill(text)
        for flash in (True, False):
            alike = [one for one in self.theirs.values() if one.flash == flash]
            for one in alike:
                if one.filled != self.depth:
                    if alike[0].filled == self.depth:
                        one.rewind(0)
                        one.copy(alike[0])
                    else:
                        one.fill(text)

    def close(self) -> None:
        """Free what llama.cpp holds."""
        for one in self.theirs.values():
            one.close()

    def compare(self, tasks: Sequence[Task], pairs: int, warm: int = 0) -> list[Found]:
        """Do every task with ours and with the setting of llama.cpp that was best in a trial."""
        return self.compare_beside(tasks, pairs, warm, [])[0]

    def compare_beside(
        self, tasks: Sequence[Task], pairs: int, warm: int, others: Sequence[Callable[[], object]]
    ) -> tuple[list[Found], list[Sample]]:
        """Do so, and something else in turn with it; return the seconds of that as well."""
        turns: list[Callable[[], object]] = []
        best = []
        for task in tasks:
            turns.append(task.run_of(self.ours))
            turns[-1]()
            while not self.ours.context.runner.is_warm:  # ways to prefetch are compared
                turns[-1]()
            if self.theirs:
                trials = {name: task.trial_of(one) for name, one in self.theirs.items()}
                best.append(choose(trials, hold=self.hold))
                turns.append(task.run_of(self.theirs[best[-1]]))
        samples = iter(alternate([*turns, *others], pairs, warm, hold=self.hold))
        found = []
        for i, task in enumerate(tasks):
            mine = next(samples)
            theirs: dict[str, list[float]] = {best[i]: next(samples)} if best else {}
            found.append(Found(self.name, task.cell, task.n_tokens, mine, theirs))
        return found, list(samples)


def measure(arena: Arena, cell: str, pairs: int, read: Reader) -> list[Found]:
    """Measure ``decode``, ``prefill``, or ``verify`` with each number of rows.

    Numbers of rows take turns, so that what more rows cost over one is found within seconds; and
    decoding with reading memory, whose speed changes from minute to minute.
    """
    depth, text = arena.depth, arena.text
    work = Work.of(arena.model)

    def decode(engine: Engine, n: int = DECODED) -> None:
        for token in text[depth : depth + n]:
            engine.process([token])

    def prefill(engine: Engine, n: int = depth) -> None:
        engine.process(text[:n])

    def verify(engine: Engine, n: int) -> None:
        engine.process(text[depth : depth + n], every=True)

    def back(engine: Engine) -> None:
        engine.rewind(depth)

    def empty(engine: Engine) -> None:
        engine.rewind(0)

    if cell == "prefill":
        for engine in arena.engines:
            empty(engine)
        task = Task(cell, depth, partial(prefill, n=depth // 4), prefill, empty)
        (found,) = arena.compare([task], pairs)
        found.more = {"gmacs": work.macs * depth / found.seconds / 1e9}
        return [found]
    arena.fill()
    if cell == "verify":
        runs = {n: partial(verify, n=n) for n in ROWS}
        tasks = [Task(f"verify-{n}", n, run, run, back) for n, run in runs.items()]
        return arena.compare(tasks, pairs, warm=1)
    task = Task(cell, DECODED, partial(decode, n=DECODED // 8), decode, back)
    others: list[Callable[[], object]] = [read]
    if arena.bare is not None:
        others.append(task.run_of(arena.bare))
    (found,), (seconds, *bare) = arena.compare_beside([task], pairs, 0, others)
    bounds = [one * work.n_bytes(1) / read.n_bytes * DECODED for one in seconds]
    speed = read.n_bytes / statistics.median(seconds)
    found.more = {"bandwidth": speed, "share": Ratio.of(bounds, found.ours).median, **arena.kept}
    if bare:
        found.more["recurrence"] = 1 - Ratio.of(bare[0], found.ours).median
    return [found]
