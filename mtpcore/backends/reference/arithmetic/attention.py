"""Attention as an online softmax over pages of 64 places, in ranges and in the order of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.functions import exp, tanh
from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.backends.reference.arithmetic.stored import Stored, stored_of
from mtpcore.backends.reference.arithmetic.sums import LANES, sum_of_lanes
from mtpcore.backends.reference.attention import bias_by_distance, group_of, visible_places
from mtpcore.backends.reference.run import Array, Run
from mtpcore.graph.alibi import alibi_slopes
from mtpcore.memory.base import PAGE, RANGE
from mtpcore.memory.kv import PagedKV

__all__ = ["attention", "cross_attention", "remember"]

SlotIds = NDArray[np.int64]
HIDDEN = -1
LEAST = np.float32(-np.inf)


def attention(
    run: Run,
    inputs: list[Array],
    weights: list[Any],
    attrs: dict[str, Any],
    n_of_range: int = RANGE,
) -> tuple[Array, ...]:
    """Store k and v of all rows, rounded to the memory's type; then attend to what is stored.

    Without v the store's values are the first entries of its keys. A range has ``n_of_range``
    places, whole pages.
    """
    remember(run, inputs[1:], weights, attrs)
    memory, _ = group_of(run, attrs["layer"])
    slots, distances = stored_ranges(run, memory, attrs["mask"], attrs["window"], n_of_range)
    sinks, table = (*weights, None, None)[:2]
    q, softcap, bias = inputs[0], attrs["softcap"], None
    if attrs["max_alibi_bias"]:
        slopes = alibi_slopes(q.shape[1], attrs["max_alibi_bias"])
        bias = [-(np.abs(part).astype(np.float32)[..., None] * slopes) for part in distances]
    elif table is not None:
        bias = [_bias(table, part, attrs) for part in distances]
    return (attend(q, slots, _held(run, attrs), attrs["scale"], sinks, bias, softcap),)


def remember(
    run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
) -> tuple[Array, ...]:
    """Store k and v of all rows, rounded to the memory's type; without v the keys alone."""
    batch = run.batch
    memory, store = group_of(run, attrs["layer"])
    page = memory.pages.tables[batch.seq, batch.place // PAGE]
    for stored, given in zip((store.keys, store.values), inputs, strict=False):
        stored[attrs["layer"]][page, batch.place % PAGE] = given
    return ()


def cross_attention(
    run: Run,
    inputs: list[Array],
    weights: list[Any],
    attrs: dict[str, Any],
    n_of_range: int = RANGE,
) -> tuple[Array, ...]:
    """Attend to all that was delivered of the row's sequence in a layer."""
    memory, _ = group_of(run, attrs["layer"])
    slots, _ = stored_ranges(run, memory, "block", 0, n_of_range)
    return (attend(inputs[0], slots, _held(run, attrs), attrs["scale"], None, None),)


def _held(run: Run, attrs: dict[str, Any]) -> Stored:
    layer = attrs["layer"]
    _, store = group_of(run, layer)
    return stored_of(store.keys[layer], store.values[layer])


def _bias(table: F32, distances: SlotIds, attrs: dict[str, Any]) -> F32:
    """Return the terms of a range's scores, float32[rows, pages * 64, H]."""
    furthest = attrs["max_distance"]
    terms = bias_by_distance(table, furthest, ahead=attrs["mask"] == "block")
    return np.asarray(terms[np.clip(distances, -furthest, furthest) + furthest])


def stored_ranges(
    run: Run, memory: PagedKV, mask: str, window: int, n_of_range: int
) -> tuple[list[SlotIds], list[SlotIds]]:
    """Return where each row finds the keys it sees, int64[rows, pages * 64], or ``HIDDEN``.

    And how far after the row they lie, negative where they come before. There is one array of
    both for each range of places, from a multiple of ``n_of_range`` on. A place decides by its
    number in which page and lane a key is taken in. Rows of a tree count places along their path,
    as if it had been decoded in a row.
    """
    rows, visible = run.batch, []
    for t, seq in enumerate(rows.seq):
        seen = visible_places(rows, t, memory, mask, window)
        n_path = len(visible_places(rows, t, memory, mask, 0))
        visible.append((int(memory.pages.first[seq]) + n_path - len(seen), seen))
    begin = min(first for first, _ in visible) // PAGE * PAGE
    end = max(first + len(seen) for first, seen in visible)
    slots = np.full((len(visible), -(-(end - begin) // PAGE) * PAGE), HIDDEN, np.int64)
    distances = np.zeros_like(slots)
    for t, (first, seen) in enumerate(visible):
        page = memory.pages.tables[rows.seq[t], seen // PAGE].astype(np.int64)
        slots[t, first - begin : first - begin + len(seen)] = page * PAGE + seen % PAGE
        own = int(rows.place[t]) if mask == "block" else first + len(seen) - 1
        distances[t] = np.arange(begin, begin + slots.shape[1]) - own
    cuts = [at for at in range(PAGE, slots.shape[1], PAGE) if (begin + at) % n_of_range == 0]
    return np.split(slots, cuts, axis=1), np.split(distances, cuts, axis=1)


def attend(
    q: F32,
    ranges: Sequence[SlotIds],
    held: Stored,
    scale: float,
    sinks: F32 | None,
    bias: Sequence[F32] | None,
    softcap: float = 0,
) -> F32:
    """Return float32[rows, H, Dv] for q [rows, H, Dk] and held rows of G key heads.

    H / G query heads share a key head; ``bias`` is of each range. With a ``softcap`` scores are
    divided by it in one with the scale, rounded once, and their tanh is multiplied by it. For each
    query head there is the largest score of a range, the sum of exp(score - largest), and the sum
    of exp(score - largest) v; ranges are taken together one after the other.
    """
    n, n_heads, _ = q.shape
    grouped = q.reshape(n, held.n_heads, -1, q.shape[2])
    state, begun = empty(grouped.shape[:3], held.v_width), np.zeros(n, bool)
    for number, slots in enumerate(ranges):
        rows = np.flatnonzero((slots != HIDDEN).any(axis=1))
        terms = None if bias is None else bias[number][rows]
        sums = attend_range(grouped[rows], slots[rows], held, scale, terms, softcap)
        before = tuple(part[rows] for part in state)
        for part, new, merged in zip(state, sums, merge(before, sums), strict=True):
            first = ~begun[rows].reshape(-1, *[1] * (new.ndim - 1))
            part[rows] = np.where(first, new, merged)
        begun[rows] = True
    return finish(state, sinks).reshape(n, n_heads, -1)


def empty(shape: tuple[int, ...], v_width: int) -> tuple[F32, ...]:
    """Return the sums of no places."""
    return (
        np.full(shape, LEAST),
        np.zeros(shape, np.float32),
        np.zeros((*shape, v_width), np.float32),
    )


def attend_range(
    q: F32, slots: SlotIds, held: Stored, scale: float, bias: F32 | None, softcap: float
) -> tuple[F32, ...]:
    """Return the sums of a range for queries [rows, G, H / G, Dk]; ``take_in`` adds a page."""
    state = empty(q.shape[:3], held.v_width)
    for begin in range(0, slots.shape[1], PAGE):
        page = slots[:, begin : begin + PAGE]
        rows = np.flatnonzero((page != HIDDEN).any(axis=1))
        before = tuple(part[rows] for part in state)
        visible = page[rows] != HIDDEN
        scores = held.products(q[rows], page[rows]) * np.float32(scale / (softcap or 1))
        if softcap:
            scores = np.float32(softcap) * tanh(scores)
        if bias is not None:
            terms = np.moveaxis(bias[rows, begin : begin + PAGE], 1, -1)
            scores = scores + terms.reshape(scores.shape)
        sums = take_in(before, scores, *held.values(page[rows]), visible)
        for part, new in zip(state, sums, strict=True):
            part[rows] = new
    return state


def merge(before: tuple[F32, ...], now: tuple[F32, ...]) -> tuple[F32, ...]:
    """Take the sums of a range together with those of the ranges before it."""
    top = np.where(now[0] > before[0], now[0], before[0])
    old, new = exp(before[0] - top), exp(now[0] - top)
    total = before[1] * old + now[1] * new
    return top, total, fma(now[2], new[..., None], before[2] * old[..., None])


def take_in(
    state: tuple[F32, ...],
    scores: F32,
    values: F32,
    factors: F32 | None,
    visible: NDArray[np.bool_],
) -> tuple[F32, F32, F32]:
    """Let queries take in a page: scores [rows, G, H / G, 64], values [rows, 64, G, Dv].

    A page's weights are summed in lanes, place p in lane p mod 16, and the page's sum is added to
    the sum so far. Values are added to ``out`` place after place; where they have factors, a
    weight is multiplied by them first.
    """
    top, total, out = state
    shown = visible[:, None, None]
    scores = np.where(shown, scores, LEAST)
    highest = np.where(np.isnan(scores), LEAST, scores).max(axis=-1)
    moved = highest > top
    factor = np.where(moved, exp(top - highest), np.float32(1))
    total = np.where(moved, total * factor, total)
    out = np.where(moved[..., None], out * factor[..., None], out)
    top = np.where(moved, highest, top)
    weights = exp(scores - top[..., None])
    lanes = np.zeros((*weights.shape[:-1], LANES), np.float32)
    for begin in range(0, PAGE, LANES):
        lanes = lanes + weights[..., begin : begin + LANES]
    total = total + sum_of_lanes(lanes)
    for place in range(PAGE):
        weight = weights[..., place, None]
        if factors is not None:
            weight = weight * factors[:, place, :, None]
        added = fma(weight, values[:, place, :, None], out)
        out = np.where(shown[..., place, None], added, out)
    return top, total, out


def finish(state: tuple[F32, ...], sinks: F32 | None) -> F32:
    """Divide by the sum. A sink is one more score, of a value of zeros."""
    top, total, out = state
    if sinks is not None:
        sink = np.broadcast_to(sinks.reshape(top.shape[1:]), top.shape)
        highest = np.where(sink > top, sink, top)
        factor = exp(top - highest)
        total = total * factor + exp(sink - highest)
        out = out * factor[..., None]
    return np.asarray(out / total[..., None])
