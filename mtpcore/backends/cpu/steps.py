"""What lowering makes of a program: steps on views of buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._matmul import PackedMatrix
from mtpcore.backends.base import F32

__all__ = ["Buffer", "Pattern", "Step", "View", "pattern_of"]


class View(NamedTuple):
    """Rows of heads inside a buffer; offset, strides and width count values of 4 bytes."""

    buffer: int
    n_heads: int
    offset: int
    row_stride: int
    head_stride: int
    width: int

    @property
    def is_whole(self) -> bool:
        """Say whether the heads of a row follow each other."""
        return self.n_heads == 1 or self.head_stride == self.width


@dataclass
class Buffer:
    """Memory for one value: bytes at the largest batch.

    ``external`` buffers are given with each run: ``input`` names one, ``output`` is allocated.
    """

    n_bytes: int
    external: bool = False


class Pattern(Enum):
    """How a step's work is shared: by rows, by rows of any kind, or spread over all threads."""

    ROWS = 1
    GATHER = 2
    SPREAD = 3


_PATTERNS = {
    "matmul": Pattern.SPREAD,
    "attention": Pattern.SPREAD,
    "cross_attention": Pattern.SPREAD,
    "expert_matmul": Pattern.SPREAD,
    "take": Pattern.GATHER,
    "sort_by_expert": Pattern.GATHER,
    "sort_by_head": Pattern.GATHER,
    "prepare_by_expert": Pattern.GATHER,
}


def pattern_of(kind: str) -> Pattern:
    """Return how an operation's work is shared."""
    return _PATTERNS.get(kind, Pattern.ROWS)


@dataclass
class Step:
    """One record of the executor; see ``Executor.add`` and the operation's comment in C.

    ``reads`` and ``writes`` are buffers (views and memory layers); ``memory`` is the group whose
    pages it reads or writes.
    """

    kind: str
    axis: int
    inputs: list[View]
    outputs: list[View]
    matrices: list[PackedMatrix] = field(default_factory=list)
    weights: list[F32 | None] = field(default_factory=list)
    numbers: NDArray[np.float64] | None = None
    axes: NDArray[np.int32] | None = None
    ints: list[int] = field(default_factory=list)
    f: float = 0.0
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    barrier: int = 0
    memory: int = 0

    def __post_init__(self) -> None:
        self.reads |= {view.buffer for view in self.inputs}
        self.writes |= {view.buffer for view in self.outputs}
        self.pattern = pattern_of(self.kind)
