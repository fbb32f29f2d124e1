"""Decode, verify and prefill: the same rows in both engines, in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from timing import Sample, alternate, choose

import mtpcore
from versus.hold import Hold
from versus.ours import Engine, Ours
from versus.results import Found
from versus.work import Work

if TYPE_CHECKING:
    from versus.peer import Peer

__all__ = ["ROWS", "Arena", "measure"]

ROWS = (1, 2, 3, 4, 6, 8)
DEPTH, DECODED = 512, 64
Run = Callable[[Engine], object]


class Arena:
    """A file in mtpcore and, with all its settings, in llama.cpp."""

    def __init__(
        self, name: str, path: Path, threads: int, *, peer: bool = True, hold: Hold | None = None
    ) -> None:
        self.name, self.hold = name, hold or Hold()
        self.model = mtpcore.load_model(path, mtp=False)
        limit = int(self.model.metadata[f"{self.model.architecture}.context_length"])
        self.depth = min(DEPTH, limit - DECODED - max(ROWS))
        n_ctx = min(limit, 2 * DEPTH)
        self.ours = Ours(self.model, n_ctx, threads)
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
        if self.ours.depth != self.depth:
            self.ours.rewind(0)
            self.ours.process(text)
        for flash in (True, False):
            alike = [one for one in self.theirs.values() if one.flash == flash]
            for one in alike:
                if one.depth != self.depth:
                    one.rewind(0)
                    if alike[0].depth == self.depth:
                        one.copy(alike[0])
                    else:
                        one.process(text)

    def close(self) -> None:
        """Free what llama.cpp holds."""
        for one in self.theirs.values():
            one.close()

    def contest(
        self, cell: str, n_tokens: int, runs: tuple[Run, Run], pairs: int, warm: int = 0
    ) -> Found:
        """Let llama.cpp's best setting in a trial, runs[0], do runs[1] in turn with ours."""
        trial, run = runs
        theirs: dict[str, Sample] = {}
        alone = [lambda: run(self.ours)]
        if self.theirs:
            trials = {name: partial(trial, one) for name, one in self.theirs.items()}
            best = choose(trials, hold=self.hold)
            alone.append(lambda: run(self.theirs[best]))
            mine, theirs[best] = alternate(alone, pairs, warm, hold=self.hold)
        else:
            (mine,) = alternate(alone, pairs, warm, hold=self.hold)
        return Found(self.name, cell, n_tokens, mine, dict(theirs))


def measure(arena: Arena, cell: str, pairs: int, speed: float) -> Found:
    """Measure a cell: ``decode``, ``prefill`` or ``verify-<n>``; ``speed`` in bytes a second."""
    depth, text = arena.depth, arena.text
    work = Work.of(arena.model)

    def decode(engine: Engine, n: int = DECODED) -> None:
        for token in text[depth : depth + n]:
            engine.process([token])
        engine.rewind(depth)

    def prefill(engine: Engine, n: int = depth) -> None:
        engine.rewind(0)
        engine.process(text[:n])

    def verify(engine: Engine) -> None:
        engine.process(text[depth : depth + n], every=True)
        engine.rewind(depth)

    if cell == "prefill":
        found = arena.contest(cell, depth, (partial(prefill, n=depth // 4), prefill), pairs)
        found.more = {"gmacs": work.macs * depth / found.seconds / 1e9}
        return found
    arena.fill()
    if cell == "decode":
        found = arena.contest(cell, DECODED, (partial(decode, n=DECODED // 8), decode), pairs)
        bound = work.n_bytes(1) / speed
        found.more = {"bandwidth": speed, "share": bound * DECODED / found.seconds}
    else:
        n = int(cell.removeprefix("verify-"))
        found = arena.contest(cell, n, (verify, verify), pairs, warm=1)
    return found
