"""Attention over the paged KV cache: a sequence's own rows, or those that were delivered to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.reference.run import Array, Run
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.errors import BackendError
from mtpcore.graph.alibi import alibi_slopes
from mtpcore.graph.buckets import distance_buckets
from mtpcore.memory.base import PAGE
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.kv import PagedKV

__all__ = [
    "attention",
    "bias_by_distance",
    "cross_attention",
    "group_of",
    "remember",
    "visible_places",
]


def attention(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Store k and v of all rows at (seq, place); then each row attends to what it sees.

    Without v the store's values are the first entries of its keys; without k nothing is stored.
    """
    remember(run, inputs[1:], weights, attrs)
    q, batch, mask, window = inputs[0], run.batch, attrs["mask"], attrs["window"]
    sinks, table = (*weights, None, None)[:2]
    memory, _ = group_of(run, attrs["layer"])
    return (
        np.stack(
            [
                attend(
                    q[t],
                    *_gather(run, attrs["layer"], t, places),
                    attrs["scale"],
                    sinks,
                    _bias(table, distances_to(batch, t, places, mask), len(q[t]), attrs),
                    attrs["softcap"],
                )
                for t in range(len(q))
                for places in [visible_places(batch, t, memory, mask, window)]
            ]
        ),
    )


def remember(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Store k and v of all rows at (seq, place); without v the keys alone, without both nothing."""
    batch, layer = run.batch, attrs["layer"]
    memory, store = group_of(run, layer)
    for t in range(len(batch.seq)):
        place = _where(memory, int(batch.seq[t]), batch.place[t : t + 1])
        for stored, rows in zip((store.keys, store.values), inputs, strict=False):
            stored[layer][place] = rows[t]
    return ()


def cross_attention(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Let each row attend to all that was delivered of its sequence."""
    q, seq = inputs[0], run.batch.seq
    memory, _ = group_of(run, attrs["layer"])
    return (
        np.stack(
            [
                attend(q[t], *_gather(run, attrs["layer"], t, places), attrs["scale"])
                for t in range(len(q))
                for places in [np.arange(memory.length(int(seq[t])))]
            ]
        ),
    )


def distances_to(
    batch: CheckedBatch, t: int, places: NDArray[np.int64], mask: str
) -> NDArray[np.int64]:
    """Return how far after token t lies what it sees, negative where it comes before.

    Of a tree's rows distances are counted along the path.
    """
    if mask == "block":
        return places - int(batch.place[t])
    return np.arange(1 - len(places), 1)


def bias_by_distance(table: Array, max_distance: int, *, ahead: bool) -> Array:
    """Return the bias of each distance from -max_distance on: [2 * max_distance + 1, H]."""
    buckets = distance_buckets(len(table), max_distance, ahead=ahead)
    return np.asarray(table[buckets])


def _bias(
    table: Array | None, distances: NDArray[np.int64], n_heads: int, attrs: dict[str, Any]
) -> Array | None:
    """Return the terms of a row's scores, [n, H]."""
    if attrs["max_alibi_bias"]:
        return -np.abs(distances)[:, None] * alibi_slopes(n_heads, attrs["max_alibi_bias"])
    if table is None:
        return None
    furthest = attrs["max_distance"]
    terms = bias_by_distance(table, furthest, ahead=attrs["mask"] == "block")
    return np.asarray(terms[np.clip(distances, -furthest, furthest) + furthest])


def group_of(run: Run, layer: int) -> tuple[PagedKV, ReferenceStore]:
    """Return the memory and the store that hold a layer."""
    if isinstance(run.memory, (PagedKV, GroupedKV)):
        for memory, store in zip(run.memory.groups, run.stores, strict=True):
            if layer in store.layers:
                return memory, store
    raise BackendError(
        "attention needs paged memory", where=f"layer {layer}", got=type(run.memory).__name__
    )


def attend(
    q: Array,
    keys: Array,
    values: Array,
    scale: float,
    sinks: Array | None = None,
    bias: Array | None = None,
    softcap: float = 0,
) -> Array:
    """Return softmax(scale q.k) v for one row's heads: [H, Dk], [n, G, Dk], [n, G, Dv] -> [H, Dv].

    H / G query heads share a key head. A sink is one more score, of a value of zeros; ``bias``
    [n, H] are terms of the scores, after these were capped.
    """
    n_shared = len(q) // keys.shape[1]
    attended = []
    for head, query in enumerate(q):
        scores = scale * (keys[:, head // n_shared] @ query)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[:, head]
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
    leaves the row's own place and the w - 1 seen before it. ``spans``: as ``causal``, and what
    follows up to ``until``.
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
    seen = seen[-window:]  # a window of 0 keeps all
    if mask == "spans" and batch.until is not None:
        seen = np.concatenate([seen, np.arange(place + 1, int(batch.until[t]))])
    return seen


def _where(
    memory: PagedKV, seq: int, places: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return page and row of each place."""
    return memory.pages.tables[seq, places // PAGE], places % PAGE


def _gather(run: Run, layer: int, t: int, places: NDArray[Any]) -> tuple[Array, Array]:
    """Return keys and values of some places of row t's sequence."""
    memory, store = group_of(run, layer)
    where = _where(memory, int(run.batch.seq[t]), places)
    return store.keys[layer][where].astype(run.dtype), store.values[layer][where].astype(run.dtype)
