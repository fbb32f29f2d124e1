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
    wanted: Any,
    passes: list[Pass],
    fed: Sequence[tuple[int, Sequence[tuple[int, int, int]]]] = (),
) -> tuple[list[list[int]], int]:
    """Run a draft loop without the GIL; return each sequence's drafts, and how many passes ran.

    What the loop writes lies in memory of the first executor that grows with the longest history
    and is kept, and in the arrays of slots that are fed.

    Parameters
    ----------
    wanted : DraftRun
        Of ``rows`` only the number of outputs is read.
    passes : list of (executor, rows, pages, states, external, logits, n_logits,
        recycled)
        One, which is repeated, or one for each draft; or a block, alone or before its post-head.
        Rows, pages, states and external are as in ``Executor.run``, where outputs have room for
        this pass; ``logits`` is the buffer of logits and ``n_logits`` their number in a row;
        ``recycled`` holds (slot, output, axis, width): which output buffer feeds which slot's
        buffer.
    fed : sequence of (slot, [(output, axis, width)])
        Which output buffers of a block, side by side, feed which slot's buffer of its post-head.

    Raises
    ------
    BatchError, SamplingError
        Something is out of range or a place is not reserved; nothing was run.
    BackendError
        Another thread is running one of the plans; or they differ in threads, logits or slots.
    CapacityError
        There is no memory for the histories.
    """
