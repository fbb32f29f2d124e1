"""Running batches of any size with a plan that takes ``n_batch`` rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CHOSEN, CheckedBatch, Plan
from mtpcore.errors import BatchError
from mtpcore.runtime.admission import Ranges
from mtpcore.runtime.fused_sampling import sample_logits
from mtpcore.runtime.sequences import ContextMemory

__all__ = ["finish", "run_parts"]


def run_parts(
    plan: Plan, memory: ContextMemory | None, n_batch: int, batch: CheckedBatch, ranges: Ranges
) -> dict[str, NDArray[Any]]:
    """Run all rows, in as many parts as are needed; return read-only arrays by name.

    With fused sampling one of them is ``chosen``, and logits are those of the
    outputs without a sampler.

    Raises
    ------
    BatchError, CapacityError
        Rows that see each other are more than ``n_batch``, or there is no room.
    """
    parts = []
    whole = len(batch.tokens) > n_batch and plan.program.is_run_whole
    for part, places in _split(batch, ranges, n_batch, whole):
        if memory:
            memory.reserve(places)
        parts.append(plan.run(part, memory))
    arrays = parts[0]
    if len(parts) > 1:
        # What is chosen after texts is left to `finish`, but of parts in which nothing is chosen.
        made = set(arrays).intersection(*parts)
        arrays = {n: np.concatenate([part[n] for part in parts]) for n in arrays if n in made}
    return finish(batch, arrays)


def finish(batch: CheckedBatch, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what a plan made of a batch, read-only, with the tokens that are chosen of it."""
    fused_sampling = batch.fused_sampling
    if fused_sampling is not None and CHOSEN not in arrays:
        arrays[CHOSEN] = sample_logits(fused_sampling, arrays)
        arrays["logits"] = arrays["logits"][arrays[CHOSEN] == -1]
    if fused_sampling and fused_sampling.samplers and None not in fused_sampling.samplers:
        arrays.pop("logits", None)
    for array in arrays.values():
        if isinstance(array, np.ndarray):  # a device's own are not written to either
            array.setflags(write=False)
    return arrays


def _split(
    batch: CheckedBatch, ranges: Ranges, n_batch: int, whole: bool
) -> list[tuple[CheckedBatch, Ranges]]:
    """Return parts of at most ``n_batch`` rows, each with the places that it takes.

    A chain may be cut anywhere, for what went before is stored by then. Rows that see each other
    stay together: those of a span, of a sequence that branches, or of any sequence if ``whole``.

    Raises
    ------
    BatchError
        Such rows are more than ``n_batch``.
    """
    n = len(batch.tokens)
    if n <= n_batch:
        return [(batch, ranges)]
    joined = np.zeros(n + 1, bool)  # to the row before
    for seq in ranges if whole or batch.parent is not None else ():
        indices = np.flatnonzero(batch.seq == seq)
        if whole or (batch.parent is not None and _branches(batch.parent, indices)):
            joined[indices[0] + 1 : indices[-1] + 1] = True
    if batch.until is not None:
        for seq in ranges:
            indices = np.flatnonzero(batch.seq == seq)
            ahead = batch.until[indices[:-1]] > batch.place[indices[1:]]
            for i in np.flatnonzero(ahead).tolist():
                joined[indices[i] + 1 : indices[i + 1] + 1] = True
    free = np.flatnonzero(~joined)
    parts, begin = [], 0
    while begin < n:
        end = int(free[free <= begin + n_batch][-1])
        if end == begin:
            raise BatchError(
                "rows that see each other run in one piece",
                where=f"sequence {batch.seq[begin]}",
                wanted=f"at most {n_batch}",
                got=f"{int((batch.seq == batch.seq[begin]).sum())} rows",
                fix="make n_batch larger",
            )
        parts.append(_part(batch, begin, end))
        begin = end
    return parts


def _branches(parent: NDArray[np.int32], indices: NDArray[np.intp]) -> bool:
    """Say whether rows of a sequence are no chain."""
    return bool((parent[indices[1:]] != indices[:-1]).any())


def _part(batch: CheckedBatch, begin: int, end: int) -> tuple[CheckedBatch, Ranges]:
    first, stop = np.searchsorted(batch.outputs, (begin, end)).tolist()
    parent, fused_sampling = batch.parent, batch.fused_sampling
    if parent is not None:  # a parent in an earlier part is the newest row stored
        parent = np.maximum(parent[begin:end] - np.int32(begin), np.int32(-1))
    part = CheckedBatch(
        tokens=batch.tokens[begin:end],
        positions=batch.positions[begin:end],
        seq=batch.seq[begin:end],
        place=batch.place[begin:end],
        outputs=(batch.outputs[first:stop] - begin).astype(np.int32),
        parent=parent,
        until=None if batch.until is None else batch.until[begin:end],
        embeddings=None if batch.embeddings is None else batch.embeddings[begin:end],
        codes=None if batch.codes is None else batch.codes[begin:end],
        adapters=None if batch.adapters is None else batch.adapters[begin:end],
        adapter_scales=None if batch.adapter_scales is None else batch.adapter_scales[begin:end],
        slots={name: slot[begin:end] for name, slot in batch.slots.items()},
        fused_sampling=fused_sampling and fused_sampling.part(first, stop),
    )
    taken = {}
    for seq in dict.fromkeys(part.seq.tolist()):
        places = part.place[part.seq == seq]
        taken[seq] = (int(places[0]), int(places[-1]) + 1)
    return part, taken
