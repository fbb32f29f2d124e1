"""A whole sequence of rows as a batch, for the part of a graph that runs when it is delivered."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.base import F32, CheckedBatch
from mtpcore.errors import BatchError
from mtpcore.graph import Program

__all__ = ["delivered_batch"]


def delivered_batch(program: Program, slot: str, seq: int, rows: F32) -> CheckedBatch:
    """Return the batch of a sequence's rows, at places from 0 on.

    Parameters
    ----------
    program : Program
        The whole one.
    slot : str
    seq : int
    rows : float32[n, width]
        C-contiguous, or where the backend keeps them.

    Raises
    ------
    BatchError
        No such slot or width, or no rows.
    """
    wanted = program.whole_slot
    if wanted is None or slot != wanted:
        raise BatchError("no slot of whole sequences", where=slot, wanted=wanted or "none")
    width = int(program.values[program.inputs[slot]].shape[1])
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise BatchError(
            "rows do not fit the slot",
            where=f"slot {slot!r}",
            wanted=f"[n, {width}]",
            got=rows.shape,
        )
    n = len(rows)
    return CheckedBatch(
        tokens=np.zeros(n, np.int32),
        positions=np.zeros((n, program.n_axes), np.int32),
        seq=np.full(n, seq, np.int32),
        place=np.arange(n, dtype=np.int32),
        outputs=np.zeros(0, np.int32),
        slots={slot: rows},
    )
