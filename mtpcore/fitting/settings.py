"""Settings of a fit."""

from __future__ import annotations

import msgspec

__all__ = ["Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a head is fitted to, and how.

    Attributes
    ----------
    tokens : int
        Tokens that the teacher reads.
    written : float
        Which share of them the model writes itself.
    vocabulary : int
        The most tokens that can be drafted: the most frequent ones.
    window : int
        Tokens of the longest piece of text.
    epochs : int
        How often each piece is learned from.
    batch : int
        Pieces of a training step.
    depth : int
        Steps of a draft that are learned.
    rate : float
        Learning rate after the first steps; it falls to 0 along a line.
    seed : int
        Decides what is held out, what is written and the order of training.
    prompts, continuation : int
        How many held-out texts the model continues to measure the head, and by how many tokens.
    """

    tokens: int = 300_000
    written: float = 0.25
    vocabulary: int = 8192
    window: int = 512
    epochs: int = 3
    batch: int = 2
    depth: int = 2
    rate: float = 2e-4
    seed: int = 0
    prompts: int = 12
    continuation: int = 48
