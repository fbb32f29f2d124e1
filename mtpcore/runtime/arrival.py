"""Rows of callers on their way to the backend whose plans read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np

from mtpcore.backends.base import F32, Backend, RowBuffer
from mtpcore.backends.finite import find_not_finite
from mtpcore.boundary.dlpack import ForeignRows
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch

__all__ = ["bring", "bring_batch", "hand_over", "join"]


def bring(rows: Any, backend: Backend) -> tuple[Any, list[int]]:
    """Return rows as plans of a backend read them, and which ones are not finite.

    Arrays of the host stay what they are. Rows on a device are copied where they are, if it is
    the backend's, and to it by way of the host if it is another one.

    Parameters
    ----------
    rows : float32[n, width]
        An array, ``ForeignRows``, or what a plan of any backend made.
    backend : Backend

    Raises
    ------
    BackendError, BatchError
        There is no room, or rows cannot leave their device.
    """
    if isinstance(rows, np.ndarray):
        brought = np.ascontiguousarray(rows, np.float32)
    else:
        brought = hand_over(rows, backend.row_buffer)
    return brought, find_not_finite([brought])


def bring_batch(batch: Batch, backend: Backend) -> Batch:
    """Return a batch with all rows as ``bring`` does; the caller's batch is left as it is.

    Raises
    ------
    BackendError, BatchError
        As ``bring``; or a row that comes from a device is not finite.
    """
    if not isinstance(batch, Batch):  # which is refused when it is admitted
        return batch
    given = batch.embeddings, *batch.slots.values()
    if not any(isinstance(rows, ForeignRows) for rows in given):
        return batch
    brought = copy(batch)
    if batch.embeddings is not None:
        brought.embeddings, bad = bring(batch.embeddings, backend)
        if bad:
            raise BatchError("embedding row is not finite", where=f"row {bad[0]}")
    brought.slots = {}
    for name, rows in batch.slots.items():
        brought.slots[name], bad = bring(rows, backend)
        if bad:
            raise BatchError("slot row is not finite", where=f"slot {name!r}, row {bad[0]}")
    return brought


def hand_over(rows: F32, make: Callable[[int, int], RowBuffer]) -> F32:
    """Return a copy of rows float32[n, width] where their reader has them; see ``join``."""
    n, width = rows.shape
    buffer = make(n, width)
    buffer.write(0, (rows,))
    return buffer.read(0, n)


def join(parts: Sequence[F32], width: int, make: Callable[[int, int], RowBuffer]) -> F32:
    """Return rows float32[n, width], one part after the other, where their reader has them.

    ``make`` is its ``Backend.row_buffer``: rows that wait on its device stay there.
    """
    if len(parts) == 1:
        return parts[0]
    n = sum(map(len, parts))
    buffer, at = make(n, width), 0
    for part in parts:
        buffer.write(at, (part,))
        at += len(part)
    return buffer.read(0, n)
