"""The loop of ``c/plan/draft.h``; checks its arguments."""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._plan import Executor

__all__ = ["StageOfPlan", "run"]

class StageOfPlan(TypedDict):
    """A stage of a schedule, by buffers.

    ``batch``, ``pages``, ``states`` and ``external`` are as in ``Executor.run``; outputs have room
    for all stages of the plan. ``is_given``: it is the first stage of its plan, and has no fills;
    of others ``slots`` are (buffer, width, given rows or None), written to the array of the buffer.
    ``made`` are (buffer, axis, width) of the outputs that feed slots, by name: buffer -1 where the
    stage does not make one. ``feeds`` are (slot, name, column), by their numbers. ``is_kept``: the
    plan runs again before these rows are read.
    """

    executor: Executor
    batch: Any
    pages: Sequence[Any]
    states: NDArray[np.int32] | None
    external: Sequence[tuple[int, NDArray[Any]]]
    logits: int
    n_logits: int
    fills: Sequence[tuple[int, int, int, int]]
    picks: Sequence[tuple[int, int, int]]
    made: Sequence[tuple[int, int, int]]
    slots: Sequence[tuple[int, int, NDArray[Any] | None]]
    feeds: Sequence[tuple[int, int, int]]
    repeats: int
    runs_whole: bool
    ends_at_nan: bool
    is_given: bool
    is_kept: bool

def run(
    texts: Iterable[Any],
    drafts: Iterable[tuple[int, int]],
    bests: Iterable[tuple[Sequence[int], Sequence[int], bool]],
    stages: list[StageOfPlan],
    n_names: int,
    token_ids: NDArray[np.int32] | None,
) -> tuple[list[int], list[int], list[bool]]:
    """Run a schedule without the GIL, and return its ``Drafts``; see ``mtpcore.backends.schedule``.

    What the loop writes lies in memory of the first executor that grows with the longest history
    and is kept.

    Raises
    ------
    BatchError, SamplingError
        Something is out of range or a place is not reserved; nothing was run.
    BackendError
        Another thread is running one of the plans; or they differ in threads or logits.
    CapacityError
        There is no memory for the histories.
    """
