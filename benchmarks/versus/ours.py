"""mtpcore as one of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

import mtpcore

__all__ = ["Engine", "Ours"]

ACCEPTED = 3


class Engine(Protocol):
    """One sequence of a model; ``filled`` of its ``depth`` tokens can be gone back to."""

    depth: int
    filled: int

    def process(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        """Run tokens after those there are; return logits f32[n, n_vocab] of all, or the last."""

    def fill(self, tokens: Sequence[int]) -> None:
        """Hold these tokens and no others."""

    def rewind(self, depth: int) -> None:
        """Forget what lies after ``depth`` tokens: none, or those that were filled in."""


class Ours:
    """A context of mtpcore; see ``Engine``."""

    def __init__(self, model: mtpcore.Model, n_ctx: int, threads: int) -> None:
        self.context = mtpcore.Context(model, n_ctx, threads=threads)
        self.context.prepare()
        self.depth, self.filled = 0, 0
        self._tokens: list[int] = []

    def process(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        """Run tokens after those there are."""
        batch = mtpcore.Batch.of(tokens, pos=self.depth, outputs="all" if every else "last")
        out = self.context.process(batch)
        self.depth += len(tokens)
        return out.logits

    def fill(self, tokens: Sequence[int]) -> None:
        """Hold these tokens, the last few in a batch of their own.

        A round leaves recurrent layers with about as many rows in their log: the next pass replays
        them and writes a base.
        """
        self.rewind(0)
        self.process(tokens[:-ACCEPTED])
        self.process(tokens[-ACCEPTED:])
        self.filled, self._tokens = len(tokens), list(tokens)

    def rewind(self, depth: int) -> None:
        """Forget what lies after ``depth`` tokens."""
        try:
            self.context.rewind(0, depth)
        except mtpcore.CapacityError:  # recurrent layers have no state there any more
            self.fill(self._tokens)
        self.depth, self.filled = depth, min(depth, self.filled)
