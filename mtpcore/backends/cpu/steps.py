"""The result of lowering: steps on views of buffers.

A plan has hundreds of each. Nothing that they hold refers back to them, so the garbage collector
need not visit them (``gc=False``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._matmul import PackedMatrix
from mtpcore._ext._plan import SHARING
from mtpcore.backends.base import F32

__all__ = ["GROUP", "Access", "Buffer", "Sharing", "ExecutorStep", "View"]

GROUP = 32
"""Outputs of a matmul that are computed together."""


class View(NamedTuple):
    """Rows of heads inside a buffer; offset, strides and width count values of 4 bytes."""

    buffer: int
    n_heads: int
    offset: int
    row_stride: int
    head_stride: int
    width: int

    @property
    def has_contiguous_heads(self) -> bool:
        """Say whether the heads of a row follow each other."""
        return self.n_heads == 1 or self.head_stride == self.width


class Buffer(msgspec.Struct, gc=False):
    """Memory for one value: bytes at the largest batch, and at one unit of rows.

    ``external`` buffers are given with each run. Of ``copied`` ones every thread has a copy of its
    own while there is one unit of rows at most.
    """

    n_bytes: int
    few_bytes: int
    external: bool = False
    copied: bool = False


class Sharing(Enum):
    """How a step's work is shared among threads.

    Each kind of operation begins with ``ROWS``, ``GATHER`` or ``SPREAD``, as ``c/ops/operations.h``
    says; ``c/plan/plan.h`` describes the others.
    """

    ROWS = 1
    GATHER = 2
    COPIES = 3
    COLUMNS = 4
    SPREAD = 5


class Access(NamedTuple):
    """What a step does with a buffer.

    ``columns`` is None where each thread may touch all of it, else what is cut in ``n_units``
    parts: where two steps cut the same into as many parts, each thread stays in its own.
    """

    buffer: int
    writes: bool
    columns: Hashable = None


class ExecutorStep(msgspec.Struct, gc=False):
    """One record of the executor; see ``Executor.add`` and the operation's comment in C.

    ``reads`` and ``writes`` are buffers (views and memory layers); ``memory`` is the group whose
    pages it reads or writes. ``sharing`` is at first what the operation does of itself;
    ``n_units`` counts the parts of ``Sharing.COLUMNS``.
    """

    kind: str
    axis: int
    inputs: list[View]
    outputs: list[View]
    matrices: Sequence[PackedMatrix] = ()
    weights: Sequence[F32 | None] = ()
    numbers: NDArray[np.float64] | None = None
    axes: NDArray[np.int32] | None = None
    ints: Sequence[int] = ()
    f: float = 0.0
    reads: set[int] = set()
    writes: set[int] = set()
    barrier: int = 0
    memory: int = 0
    n_units: int = 0
    sharing: Sharing = Sharing.ROWS
    accesses: list[Access] = []

    def __post_init__(self) -> None:
        self.reads |= {view.buffer for view in self.inputs}
        self.writes |= {view.buffer for view in self.outputs}
        self.sharing = Sharing[SHARING[self.kind]]
        self.accesses = [Access(buffer, False) for buffer in self.reads]
        self.accesses += [Access(buffer, True) for buffer in self.writes]

    @property
    def gathers(self) -> bool:
        """Say whether a thread touches rows of others, however many there are."""
        return SHARING[self.kind] == "GATHER"
