"""Attention over the paged KV cache, and over the tokens of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.reference.run import Array, Run
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.errors import BackendError
from mtpcore.memory.base import PAGE
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.kv import PagedKV

__all__ = ["attention", "cross_attention", "group_of", "visible_places"]


def attention(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Store k and v of all rows at (seq, place); then each row attends to what it sees.

    Without v the store's values are the first entries of its keys; without k nothing is stored.
    """
    q, *stored = inputs
    batch, layer = run.batch, attrs["layer"]
    memory, store = group_of(run, layer)
    for t in range(len(q)):
        place = _where(memory, int(batch.seq[t]), batch.place[t : t + 1])
        for kept, given in zip((store.keys, store.values), stored, strict=False):
            kept[layer][place] = given[t]
    sinks = weights[0] if weights else None
    return (
        np.stack(
            [
                attend(
                    q[t],
                    *_gather(store, layer, _where(memory, int(batch.seq[t]), places), run.dtype),
                    attrs["scale"],
                    sinks,
                )
                for t in range(len(q))
                for places in [visible_places(batch, t, memory, attrs["mask"], attrs["window"])]
            ]
        ),
    )


def group_of(run: Run, layer: int) -> tuple[PagedKV, ReferenceStore]:
    """Return the memory and the store that hold a layer."""
    if isinstance(run.memory, (PagedKV, GroupedKV)):
        for memory, store in zip(run.memory.groups, run.stores, strict=True):
            if layer in store.layers:
                return memory, store
    raise BackendError(
        "attention needs paged memory", where=f"layer {layer}", got=type(run.memory).__name__
    )


def cross_attention(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Let each row attend to all rows of its sequence in this batch; nothing is stored."""
    q, k, v = inputs
    same = [run.batch.seq == seq for seq in run.batch.seq]
    return (
        np.stack([attend(q[t], k[same[t]], v[same[t]], attrs["scale"]) for t in range(len(q))]),
    )


def attend(q: Array, keys: Array, values: Array, scale: float, sinks: Array | None = None) -> Array:
    """Return softmax(scale q.k) v for one row's heads: [H, Dk], [n, G, Dk], [n, G, Dv] -> [H, Dv].

    H / G query heads share a key head. A sink is one more score, of a value of zeros.
    """
    n_shared = len(q) // keys.shape[1]
    attended = []
    for head, query in enumerate(q):
        scores = scale * (keys[:, head // n_shared] @ query)
        top = scores.max() if sinks is None else max(scores.max(), sinks[head])
        e = np.exp(scores - top)
        total = e.sum() if sinks is None else e.sum() + np.exp(sinks[head] - top)
        attended.append((e / total) @ values[:, head // n_shared])
    return np.stack(attended)


def visible_places(
    batch: CheckedBatch, t: int, memory: PagedKV, mask: str, window: int
) -> NDArray[np.int64]:
    """Return the places that token t attends to, ascending.

    ``causal``: all up to its own; with ``parent`` rows the places stored before this batch, its
    ancestors and itself. ``block``: all of its sequence, this batch's included. A window of w
    leaves the row's own place and the w - 1 seen before it.
    """
    seq, place = int(batch.seq[t]), int(batch.place[t])
    first = int(memory.pages.first[seq])
    if mask == "block":
        begin = max(first, place - window + 1) if window else first
        return np.arange(begin, memory.length(seq))
    if batch.parent is None:
        seen = np.arange(first, place + 1)
    else:
        base = int(batch.place[batch.seq == seq].min())
        path, row = [], t
        while row >= 0:
            path.append(int(batch.place[row]))
            row = int(batch.parent[row])
        seen = np.concatenate([np.arange(first, base), np.array(path[::-1], np.int64)])
    return seen[-window:]  # a window of 0 keeps all


def _where(
    memory: PagedKV, seq: int, places: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return page and row of each place."""
    return memory.pages.tables[seq, places // PAGE], places % PAGE


def _gather(
    store: ReferenceStore, layer: int, where: tuple[Any, Any], dtype: Any
) -> tuple[Array, Array]:
    return store.keys[layer][where].astype(dtype), store.values[layer][where].astype(dtype)
