"""The executor of plans (``c/plan/plan.h``, ``c/core/pool.h``); checks its arguments."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._matmul import PackedMatrix

__all__ = [
    "BARRIER_IF_FEW",
    "BARRIER_IF_MANY",
    "BY_COLUMNS",
    "BY_ROWS",
    "Executor",
    "HAS_ASAN",
    "IN_COPIES",
    "KINDS",
    "MAX_THREADS",
    "ORDERS",
    "SHARING",
    "UNIT",
    "expert_list_words",
    "use_order",
]

KINDS: dict[str, int]
"""Number of each kind of operation; ``c/ops/operations.h`` lists them."""
SHARING: dict[str, str]
"""How threads share the work of each kind: ``ROWS``, ``GATHER`` or ``SPREAD``."""
BARRIER_IF_FEW: int
BARRIER_IF_MANY: int
"""When all threads wait before an operation: up to `UNIT` rows, or more; a sum of these."""
BY_ROWS: int
IN_COPIES: int
BY_COLUMNS: int
"""How an operation's work is shared; see ``c/plan/plan.h``."""
UNIT: int
"""Rows that one thread keeps together."""
HAS_ASAN: bool
"""Whether this is a build with AddressSanitizer: buffers have a poisoned line after them."""
MAX_THREADS: int
ORDERS: tuple[str, ...]

def use_order(name: str) -> str:
    """Run the threads of plans in one of ``ORDERS``, for tests; return the one used before.

    In turns, first to last or last to first, each thread does all of its work up to the next
    barrier before another one begins: a barrier that is missing shows in one of the two.

    Raises
    ------
    BackendError
        There is no such order.
    """

def expert_list_words(n_experts: int, n_slots: int) -> int:
    """Return the int32 words of the lists of rows by expert."""

class Executor:
    """A plan in compiled form: buffers, and operations on views of them.

    A view is (buffer, n_heads, offset, row_stride, head_stride, width) in values of 4 bytes.

    Parameters
    ----------
    n_threads : int
    n_batch : int
        Rows of the largest batch.
    capacities : sequence of int
        Bytes of each buffer at ``n_batch`` rows.
    copies : sequence of int
        Bytes from one thread's copy of a buffer to the next's; 0 where there is one for all.
    offsets : sequence of int or None
        Where each buffer lies in the arena; None for those given with each run.
    arena_bytes : int
    n_ops : int
        Operations that will be added, no more and no less.
    n_vocab : int
        Token ids are below it; 0 where no operation reads them.
    stores : sequence of CpuStore
        Of each group of memory layers.
    states : CpuStateStore, optional
        Of the recurrent layers.

    Raises
    ------
    BackendError
        A number is impossible, or a buffer or pages lie outside of their memory.
    CapacityError
        There is no memory for it.
    """

    def __init__(
        self,
        *,
        n_threads: int,
        n_batch: int,
        capacities: Sequence[int],
        copies: Sequence[int],
        offsets: Sequence[int | None],
        arena_bytes: int,
        n_ops: int,
        n_vocab: int,
        stores: Sequence[Any] = (),
        states: Any = None,
    ) -> None: ...
    def add(
        self,
        kind: str,
        barrier: int,
        axis: int,
        inputs: Iterable[tuple[int, ...]],
        outputs: Iterable[tuple[int, ...]],
        *,
        sharing: int = 0,
        n_units: int = 0,
        matrices: Sequence[PackedMatrix] = (),
        weights: Sequence[NDArray[np.float32] | None] = (),
        numbers: NDArray[np.float64] | None = None,
        axes: NDArray[np.int32] | None = None,
        ints: Iterable[int] = (),
        f: float = 0.0,
        memory: int = 0,
    ) -> None:
        """Append an operation; what its fields mean stands with each function in C.

        Raises
        ------
        BackendError
            Kind, axis or sharing are unknown, a view reaches outside its buffer at the largest
            batch, weights or matrices are not as many as are read, or not of the right type, or
            there are ``n_ops`` operations already. Nothing was appended.
        """

    def finish(
        self,
        work: float,
        work_of_row: float,
        worth_sharing: float,
        worth_prefetching: int = ...,
        most_packing: float = ...,
    ) -> None:
        """Check how operations fit each other, and allocate scratch; then the plan may run.

        ``work`` and ``work_of_row`` estimate nanoseconds of one thread; a run of less than
        ``worth_sharing`` is left to the caller alone. A plan whose packed matrices have fewer
        bytes than ``worth_prefetching`` does not prefetch them (default: none does); another one
        compares the ways to do it. ``most_packing`` is how many seconds a run may pack before it
        begins (default: 0, a few groups of rows).

        Raises
        ------
        BackendError
            An operation would leave what it is given, operations are missing, ``most_packing`` is
            no such time, or the plan is finished already.
        CapacityError
            There is no memory for scratch.
        """

    @property
    def bytes_to_pack(self) -> int:
        """Bytes, as packed, of the rows that are still to be packed between runs.

        Any thread may ask.
        """

    @property
    def is_warm(self) -> bool:
        """Whether the last run packed no weights and did not compare ways to prefetch them."""

    def pack(self) -> None:
        """Pack all matrices that are to be packed, on all threads and without the GIL.

        Otherwise each run but the first packs some before it begins, for four times as long as the
        run before it took, but no longer than ``finish`` was told. Whoever reads a matrix meanwhile
        gets the same bits. After an exception of a signal handler what was packed stays so.

        Raises
        ------
        BackendError
            Another thread is running the plan.
        """

    def run(
        self,
        rows: Any,
        pages: Sequence[Any],
        external: Iterable[tuple[int, NDArray[Any]]],
        logits: int = -1,
        written: NDArray[np.float32] | None = None,
        states: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32] | None:
        """Run a batch; return the token that each output chooses, or -1, where that is asked for.

        Parameters
        ----------
        rows : CheckedBatch
        pages : sequence of PageTables, of each group of memory
        external : iterable of (buffer, array)
            The arrays of the buffers outside the arena, C-contiguous float32; those that are
            written may not be read-only.
        logits : int
            For the sampling that comes with the rows: the buffer of logits, which is not written.
        written : float32[n, n_logits]
            Where the logits of the n outputs without a sampler go.
        states : int32[n_seq, columns], optional
            What memory has decided for the states of recurrent layers:
            ``mtpcore.memory.recurrent.RecurrentMemory.table``.

        Raises
        ------
        BatchError, SamplingError
            An id, place, output, parent or choice is out of range, an array is missing or too
            small, or memory lacks places that a row sees; nothing was run.
        BackendError
            Another thread is running this plan, it is not finished, or an array is of another
            type.
        BaseException
            What a signal handler raises (``KeyboardInterrupt``) while the main thread runs a long
            batch: what it was to write is undefined.
        """

    @property
    def progress(self) -> float:
        """Share of the running batch's operations that were begun, 0 .. 1; 0 where none runs.

        Of batches of a few milliseconds it stays 0. Any thread may ask.
        """

    def can_choose(self, logits: int) -> bool:
        """Return whether tokens can be chosen while a matmul computes this buffer of logits."""
