"""The draft loop of ``c/plan/draft.h``; checks its arguments."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._plan import Executor

__all__ = ["draft"]

Pass = tuple[
    Executor,
    Any,
    Sequence[Any],
    NDArray[np.int32] | None,
    Iterable[tuple[int, NDArray[Any]]],
    int,
    int,
    Sequence[tuple[int, int, int, int]],
]

def draft(
    wanted: Any, passes: list[Pass], given: Sequence[tuple[int, NDArray[np.float32]]] = ()
) -> tuple[list[list[int]], int]:
    """Run a draft loop without the GIL; return each sequence's drafts, and how many passes ran.

    What the loop writes lies in memory of the first executor that grows with the longest history
    and is kept.

    Parameters
    ----------
    wanted : DraftRun
        Of ``rows`` only the number of outputs is read.
    passes : list of (executor, rows, pages, states, external, logits, n_logits,
        recycled)
        One, which is repeated, or one for each draft; rows, pages, states and external as in
        ``Executor.run``, where outputs have room for this pass; ``logits`` is the buffer of logits
        and ``n_logits`` their number in a row; ``recycled`` holds (slot, output, axis, width):
        which output buffer feeds which slot's buffer.
    given : sequence of (slot, rows)
        What feeds further slots' buffers of a plan that is repeated, known beforehand: row [i, p]
        of float32[m, n, width] is sequence i's in pass p.

    Raises
    ------
    BatchError, SamplingError
        Something is out of range or a place is not reserved; nothing was run.
    BackendError
        Another thread is running one of the plans; or they differ in threads, logits or slots.
    CapacityError
        There is no memory for the histories.
    """
