"""Which drafts there are, by number, and what kernels are told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda.choice import DraftedParts
from mtpcore.backends.cuda.launch.passes import DRAFT, NO_DRAFT, PAIR, STEP

__all__ = ["DraftOrder"]


class DraftOrder:
    """Which sequences are in each pass, and the numbers of their drafts.

    Sequence i is in pass p if ``k[i] > p``, and each is in the first; ``passes`` has them in order.
    Of a block all drafts come from one pass, and those are its steps, without sequences that get
    none. The drafts of a pass have the numbers from ``first`` of it on, ``n`` are all.

    Each draft is chosen behind a row of those of a block that feed its post-head: ``read`` are the
    rows of each sequence. Without them what feeds a pass is in the order of its sequences.
    """

    def __init__(self, k: list[int], *, is_block: bool = False, read: Sequence[range] = ()) -> None:
        self.k, self.read_rows, each = k, read, range(max(k))
        self.passes = [
            [i for i, most in enumerate(k) if most > p or not (p or is_block)] for p in each
        ]
        self.first = [sum(map(len, self.passes[:p])) for p in each]
        self.n = sum(map(len, self.passes))

    def number(self, i: int, p: int) -> int:
        """Return the number of the draft that sequence i gets from pass p."""
        return self.first[p] + self.passes[p].index(i)

    @property
    def none(self) -> NDArray[np.void]:
        """``DRAFT`` [n] before any is made."""
        return np.array([(NO_DRAFT, 0, 0)] * self.n, DRAFT)

    def texts(
        self, lengths: Mapping[int, tuple[int, int]]
    ) -> tuple[NDArray[np.int32], DraftedParts]:
        """Return the drafts that texts go on with, and the part of each output.

        ``lengths`` are of each output its sequence, and how many of its drafts.
        """
        numbers: list[int] = []
        parts = dict[int, tuple[int, int]]()
        for output, (i, n) in lengths.items():
            parts[output] = len(numbers), n
            numbers += [self.number(i, p) for p in range(n)]
        return np.array(numbers, np.int32), parts

    def steps(self, p: int, p_min: list[float]) -> NDArray[np.void]:
        """Return ``STEP`` of each sequence of a pass."""
        before = [self.number(i, p - 1) if p else -1 for i in self.passes[p]]
        steps = np.zeros(len(before), STEP)
        steps["p_min"] = [p_min[i] for i in self.passes[p]]
        steps["number"] = self.first[p] + np.arange(len(steps))
        steps["before"] = before
        steps["is_to_go_on"] = [self.k[i] > p + 1 for i in self.passes[p]]
        steps["read_next"] = np.arange(len(steps))
        if self.read_rows:
            rows = [(self.read_rows[i], self.k[i] - p) for i in self.passes[p]]
            steps["first_read"] = [read.start for read, _ in rows]
            steps["n_read"] = [0 if p else len(read) - n + 1 for read, n in rows]
            steps["read_next"] = [read.stop - n + 1 for read, n in rows]
        return steps

    def steps_at_once(self, steps: range, p_min: list[float]) -> NDArray[np.void]:
        """Return ``STEP`` of each draft of some steps of a block, which are judged together.

        They come by sequence, as rows do.
        """
        parts = [self.steps(p, p_min) for p in steps]
        for depth, part in enumerate(parts):
            part["depth"] = depth
        numbers = [self.number(i, p) for i, k in enumerate(self.k) for p in steps if p < k]
        at = np.array(numbers) - self.first[steps[0]]
        made: NDArray[np.void] = np.concatenate(parts)[at]
        return made

    def chained(self, p: int) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and rows, where a pass has one row of each sequence."""
        pairs = [(self.number(i, p - 1), row) for row, i in enumerate(self.passes[p]) if p]
        return np.array(pairs, PAIR)

    def filled(self, p: int, batch: CheckedBatch) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and rows, where a pass has the newest rows of its sequences."""
        pairs = []
        for i, newest in zip(self.passes[p], batch.outputs.tolist(), strict=True):
            for draft in range(p):
                row = newest - p + 1 + draft
                if row >= 0 and batch.seq[row] == batch.seq[newest]:
                    pairs.append((self.number(i, draft), row))
        return np.array(pairs, PAIR)

    def behind(self) -> NDArray[np.void]:
        """Return ``PAIR`` of drafts and the rows behind them, where a post-head has all rows."""
        drafts = [(i, p) for i, k in enumerate(self.k) for p in range(k - 1)]
        rows = [(self.number(i, p), self.read_rows[i].stop - self.k[i] + p + 1) for i, p in drafts]
        return np.array(rows, PAIR)

    def verified(self, first: list[int]) -> NDArray[np.void]:
        """Return ``PAIR`` of all drafts and their rows, which follow ``first`` of each sequence."""
        drafts = [(i, p) for i, k in enumerate(self.k) for p in range(k)]
        return np.array([(self.number(i, p), first[i] + 1 + p) for i, p in drafts], PAIR)

    def read(self, drafted: NDArray[np.void]) -> tuple[list[list[int]], int]:
        """Return the drafts of each sequence from ``DRAFT`` [n], and how many passes they took."""
        drafts: list[list[int]] = [[] for _ in self.k]
        n_passes = 0
        for p, sequences in enumerate(self.passes):
            if p and not drafted["goes_on"][self.first[p - 1] : self.first[p]].any():
                break
            n_passes += 1
            for i in sequences:
                token = int(drafted["token"][self.number(i, p)])
                if token >= 0 and self.k[i]:
                    drafts[i].append(token)
        return drafts, n_passes
