"""What a kernel would follow out of its arrays is found before anything is uploaded."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import NUMBERS, CheckedBatch
from mtpcore.errors import BatchError
from mtpcore.graph.program import Program
from mtpcore.memory.base import PAGE
from mtpcore.memory.pages import PageTables

__all__ = ["check_batch", "check_places", "check_sequences"]


def check_batch(
    batch: CheckedBatch, program: Program, n_batch: int, filled: Collection[str] = ()
) -> None:
    """Raise BatchError where rows do not fit the program, or each other.

    Slots that are ``filled`` in before it runs may be missing.
    """
    n, tokens, seq, place = len(batch.tokens), batch.tokens, batch.seq, batch.place
    rows = (tokens, seq, place, *(x for x in (batch.parent, batch.until) if x is not None))
    fits = all(array.dtype == np.int32 and array.shape == (n,) for array in rows)
    fits = fits and batch.positions.dtype == batch.outputs.dtype == np.int32
    if not fits or n > n_batch or len(batch.outputs) > n or len(batch.positions) != n:
        raise BatchError(
            "rows do not fit the plan",
            wanted=f"at most {n_batch} rows",
            got=f"{n} tokens, {len(batch.outputs)} outputs",
        )
    n_tokens, least = program.n_embeddings, 0 if batch.embeddings is None else -1
    if n_tokens:
        _check(tokens, (tokens >= least) & (tokens < n_tokens), "token id out of range")
    _check(place, (place >= 0) & (seq >= 0), "place or sequence below 0")
    if batch.outputs.size and not 0 <= batch.outputs.min() <= batch.outputs.max() < n:
        raise BatchError("output is not a row", wanted=f"0 to {n - 1}", got=batch.outputs.tolist())
    if batch.parent is not None:
        parent = batch.parent
        is_earlier = (parent >= -1) & (parent < np.arange(n))
        _check(parent, is_earlier, "a parent is an earlier row of the sequence")
        is_own = (parent < 0) | (seq[np.maximum(parent, 0)] == seq)
        _check(parent, is_own, "a parent is an earlier row of the sequence")
    for name, wanted in _widths(program, batch).items():
        given = batch.embeddings if name == "embeddings" else batch.slots.get(name)
        if given is None and name in filled:
            continue
        if given is None or given.shape != (n, wanted) or given.dtype != np.float32:
            raise BatchError(
                "slot rows do not fit",
                where=f"slot {name!r}",
                wanted=f"float32{[n, wanted]}",
                got=None if given is None else f"{given.dtype}{list(given.shape)}",
            )
    n_axes = program.n_axes
    if batch.positions.ndim != 2 or batch.positions.shape[1] != n_axes:
        raise BatchError("positions do not fit", wanted=[n, n_axes], got=batch.positions.shape)


def check_places(batch: CheckedBatch, pages: PageTables, n_pages: int) -> None:
    """Raise BatchError where a row's place is not reserved in its group of memory."""
    seq, place = batch.seq, batch.place
    _check(seq, seq < len(pages.tables), "sequence without memory")
    _check(place, place < pages.length[seq], "place is not reserved")
    of_row = pages.tables[seq, np.minimum(place // PAGE, pages.tables.shape[1] - 1)]
    _check(place, (of_row >= 0) & (of_row < n_pages), "place has no page")
    if batch.until is not None:
        _check(batch.until, batch.until <= pages.length[seq], "span ends past what is reserved")


def check_sequences(batch: CheckedBatch, pages: PageTables, n_pages: int, is_source: bool) -> None:
    """Raise BatchError where attention would see what a group of memory does not have.

    ``is_source``: rows attend to what was delivered, of which there must be some.
    """
    for seq in set(batch.seq.tolist()):
        where = f"sequence {seq}"
        if seq >= len(pages.tables):
            raise BatchError("sequence without memory", where=where)
        begin, end = pages.first.item(seq), pages.length.item(seq)
        if is_source and begin >= end:
            raise BatchError("nothing to attend to", where=where, wanted="rows of its source")
        if begin < 0 or end > pages.tables.shape[1] * PAGE:
            raise BatchError(
                "sequence is longer than the plan's memory", where=where, got=(begin, end)
            )
        seen = pages.tables[seq, begin // PAGE : -(-end // PAGE)]
        if begin < end and not 0 <= seen.min() <= seen.max() < n_pages:
            raise BatchError("place has no page", where=where, got=seen.tolist())


def _widths(program: Program, batch: CheckedBatch) -> dict[str, int]:
    """Return the width of each input of float rows; of embeddings only where they are given."""
    names = [name for name in program.inputs if name not in ("tokens", "positions", *NUMBERS)]
    if batch.embeddings is None:
        names = [name for name in names if name != "embeddings"]
    elif "embeddings" not in names:
        raise BatchError("the graph takes no embedding rows", where=program.name)
    return {name: int(program.values[program.inputs[name]].shape[1]) for name in names}


def _check(values: NDArray[np.int32], fits: NDArray[Any], what: str) -> None:
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        raise BatchError(what, where=f"row {row}", got=values.item(row))
