"""mtpcore as one of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

import mtpcore

__all__ = ["Engine", "Ours"]


class Engine(Protocol):
    """One sequence of a model."""

    depth: int

    def process(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        """Run tokens behind those there are; return logits f32[n, n_vocab] of all, or the last."""

    def rewind(self, depth: int) -> None:
        """Forget what lies behind ``depth`` tokens."""


class Ours:
    """A context of mtpcore; see ``Engine``."""

    def __init__(self, model: mtpcore.Model, n_ctx: int, threads: int) -> None:
        self.context = mtpcore.Context(model, n_ctx, threads=threads)
        self.depth = 0

    def process(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        """Run tokens behind those there are."""
        outputs = "all" if every else "last"
        out = self.context.process(mtpcore.Batch.of(tokens, pos=self.depth, outputs=outputs))
        self.depth += len(tokens)
        return out.logits

    def rewind(self, depth: int) -> None:
        """Forget what lies behind ``depth`` tokens."""
        self.context.rewind(0, depth)
        self.depth = depth
