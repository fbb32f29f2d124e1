"""The formulas of all operations; attention's own are with it.

Each takes row t of its inputs, then its weights, then its attributes, and returns row t of its
output; those of recurrent layers take a state, too. ``w`` in ``w @ x`` is an array or a
``QuantisedMatrix``. Results are rounded to the plan's number type by the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.run import Array
from mtpcore.graph.parts import part_sizes

__all__ = [
    "activation",
    "add",
    "advance",
    "clamp",
    "block_conv",
    "block_mean",
    "block_mix",
    "cluster_matmul",
    "concat",
    "convolve",
    "embed",
    "embed_by_position",
    "embed_positions",
    "embed_codes",
    "embedding_rows",
    "expert_matmul",
    "group_ids",
    "gated",
    "gaussian_topk",
    "head_matmul",
    "keep_best",
    "split_heads",
    "l2_norm",
    "layer_norm",
    "matmul",
    "matmul_by_position",
    "pair_ids",
    "add_chosen",
    "mix",
    "mul",
    "read_state",
    "repeat",
    "rms_norm",
    "rope",
    "route",
    "merge_heads",
    "scale",
    "scale_by",
    "scale_by_position",
    "scale_chosen",
    "token_ids",
    "shift_by",
    "slice_",
    "xielu",
    "find_best",
    "embed_ids",
    "rank_matmul",
    "block_attention",
    "block_walk",
]

SMALLEST_SUM = 1e-20
"""Added to the sum of chosen gates, which may be zero."""


def embed(token: int, *given: Array, scale: float, absent: int) -> Array:
    """Return the token's row of the table, which comes last, times the scale; or the row given.

    Where no token stands and no row is given, the row is that of the token ``absent``.
    """
    *row, table = given
    if token < 0 and row:
        return row[0]
    found: Array = table[token if token >= 0 else absent]
    return found if scale == 1 else np.asarray(found * found.dtype.type(scale))


def embed_by_position(
    token: int,
    position: NDArray[np.int32],
    *given: Array,
    n_parts: int,
    first: int,
    n_first: int,
) -> Array:
    """Return the token's row of one of the table's parts, or the row in its place."""
    *row, table = given
    part = _parts(table, n_parts, n_first)[min(max(int(position[0]) - first, 0), n_parts - 1)]
    if token >= len(part):
        return np.zeros(table.shape[1], table.dtype)
    return embed(token, *row, part, scale=1, absent=-1)


def embed_positions(position: NDArray[np.int32], table: Array) -> Array:
    """Return the position's row of the table, zeros after its last."""
    return table[position[0]] if position[0] < len(table) else np.zeros_like(table[0])


def embed_codes(codes: NDArray[np.int32], table: Array, *, n_first: int) -> Array:
    """Return the sum of the codes' rows, each of its own part of the table, in order."""
    total = np.zeros(table.shape[1], table.dtype)
    for code, part in zip(codes, _parts(table, len(codes), n_first), strict=True):
        if 0 <= code < len(part):
            total = total + part[code]
    return total


def _parts(table: Array, n_parts: int, n_first: int) -> list[Array]:
    """Return a table's parts, the first of ``n_first`` rows."""
    first, each = part_sizes(len(table), n_parts, n_first)
    return np.split(table, range(first, len(table), each))


def embedding_rows(token: int, row: Array) -> Array:
    """Return the row, zeros where a token stands."""
    return row if token < 0 else np.zeros_like(row)


def matmul_by_position(x: Array, position: NDArray[np.int32], w: Any, *, first: int) -> Array:
    """Return w[i] x of the row's position less ``first``, or of the nearest one there is."""
    y: Array = w[min(max(int(position[0]) - first, 0), len(w) - 1)] @ x
    return y


def matmul(x: Array, w: Any, bias: Array | None = None) -> Array:
    """Return w x + bias."""
    y: Array = w @ x
    return y if bias is None else y + bias


def rms_norm(x: Array, w: Array | None = None, *, eps: float) -> Array:
    """Return w x / sqrt(mean(x^2) + eps)."""
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if w is None else w * y


def layer_norm(x: Array, w: Array | None = None, bias: Array | None = None, *, eps: float) -> Array:
    """Return w (x - mean) / sqrt(var + eps) + bias."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    y: Array = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = y if w is None else w * y
    return y if bias is None else y + bias


def l2_norm(x: Array, *, eps: float) -> Array:
    """Return x / sqrt(sum(x^2) + eps)."""
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps))


def add(a: Array, b: Array) -> Array:
    """Return a + b."""
    return np.asarray(a + b)


def mul(a: Array, b: Array) -> Array:
    """Return a b, where b may be one value for each head of a."""
    return np.asarray(a * (b[:, None] if b.ndim < a.ndim else b))


def scale(x: Array, *, factor: float) -> Array:
    """Return factor x."""
    return np.asarray(x * factor)


def clamp(x: Array, *, limit: float) -> Array:
    """Return x, cut to -limit .. limit."""
    return np.clip(x, -limit, limit)


def scale_by_position(
    x: Array, position: NDArray[np.int32], *, beta: float, n: int, offset: int
) -> Array:
    """Return x (1 + beta log(1 + floor((position + offset) / n))), x itself before any."""
    part = max(int(position[0]) + offset, 0) // n
    return np.asarray(x * (1 + beta * math.log(1 + part)))


def scale_by(x: Array, w: Array) -> Array:
    """Return w x."""
    return np.asarray(w * x)


def shift_by(x: Array, w: Array) -> Array:
    """Return w + x."""
    return np.asarray(w + x)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, "d")(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(x, 0),
    "gelu_sigmoid": lambda x: x * sigmoid(1.702 * x),
}


def activation(x: Array, *, kind: str) -> Array:
    """Return kind(x)."""
    return np.asarray(ACTIVATIONS[kind](x))


def xielu(x: Array, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Array:
    """Return alpha_p x^2 + beta x above 0, else alpha_n (expm1(min(x, eps)) - x) + beta x."""
    curved = np.where(x > 0, alpha_p * x * x, alpha_n * (np.expm1(np.minimum(x, eps)) - x))
    return np.asarray(curved + beta * x)


def gaussian_topk(x: Array, *, n_deviations: float) -> Array:
    """Return what is above the mean plus so many standard deviations, less these; else 0."""
    deviation = np.std(x, axis=-1, keepdims=True)
    cutoff = np.mean(x, axis=-1, keepdims=True) + n_deviations * deviation
    return np.asarray(np.maximum(x - cutoff, 0))


def gated(gate: Array, up: Array, *, kind: str, limit: float, offset: int) -> Array:
    """Return kind(gate) (up + offset), both cut at the limit first."""
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray(activation(gate, kind=kind) * (up + offset if offset else up))


def concat(*parts: Array) -> Array:
    """Return the parts joined along the last axis."""
    return np.concatenate(parts, axis=-1)


def slice_(x: Array, *, start: int, stop: int) -> Array:
    """Return x[..., start:stop]."""
    return x[..., start:stop]


def split_heads(x: Array, *, n_heads: int) -> Array:
    """See [H * D] as [H, D]."""
    return x.reshape(n_heads, -1)


def merge_heads(x: Array) -> Array:
    """See [H, D] as [H * D]."""
    return x.reshape(-1)


def repeat(x: Array, *, n_heads: int) -> Array:
    """See [1, D] as [H, D], every head the same."""
    return np.repeat(x, n_heads, axis=0)


def rope(
    x: Array,
    position: NDArray[np.int32],
    factors: Array | None = None,
    *,
    frequencies: Sequence[float],
    axes: Sequence[int],
    style: str,
    magnitude: float,
) -> Array:
    """Turn pair i of each head by position[axes[i]] * frequencies[i] / factors[i].

    Angles and their sines are computed in float64. Dimensions beyond the pairs stay.
    """
    rates = np.asarray(frequencies)
    if factors is not None:
        rates = rates / factors[: len(rates)]
    angle = position[np.asarray(axes)].astype(np.float64) * rates
    cos = (np.cos(angle) * magnitude).astype(x.dtype)
    sin = (np.sin(angle) * magnitude).astype(x.dtype)
    n = len(frequencies)
    if style == "halves":
        first, second = np.arange(n), np.arange(n, 2 * n)
    else:
        first, second = np.arange(0, 2 * n, 2), np.arange(1, 2 * n, 2)
    y = x.copy()
    y[:, first] = x[:, first] * cos - x[:, second] * sin
    y[:, second] = x[:, first] * sin + x[:, second] * cos
    return y


def convolve(window: Array, w: Array, kind: str) -> Array:
    """Return kind(sum over j of w[:, j] window[j]), [kernel, channels] -> [channels]."""
    y = np.asarray(np.sum(w.T * window, axis=0))
    return y if kind == "none" else activation(y, kind=kind)


def advance(
    state: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    *,
    corrects: bool,
    rates: Array | None = None,
) -> Array:
    """Return a state after one more row, for each head: S' + k d^T.

    S' = exp(decay) S and d = beta (v - S'^T k), or beta v where it does not correct; the decay is
    one for a head or one for each entry of its key. With ``rates`` [H, Dk, Dv] it is one for each
    entry of its value, times the rate of each entry of S.
    """
    if rates is None:
        decay = decay[:, :, None] if decay.ndim == 2 else decay[:, None, None]
    else:
        decay = decay[:, None] * rates
    state = state * np.exp(decay)
    change = beta[:, None] * (v - read_state(state, k) if corrects else v)
    return np.asarray(state + k[:, :, None] * change[:, None])


def block_mean(x: Array) -> Array:
    """Return the mean of a block's rows, for each of them: [rows, width] -> [rows, width]."""
    return np.tile(x.mean(axis=0), (len(x), 1))


def block_mix(x: Array, w: Array) -> Array:
    """Return the sum over j <= i of w[i, j] x[j] for each row i of a block."""
    return np.stack([(w[i, : i + 1] * x[: i + 1]).sum(axis=0) for i in range(len(x))])


def block_conv(x: Array, changes: Array, w: Array, *, part: int) -> Array:
    """Return the sum over taps j <= i of (w[part, j] + changes) x[i - j] for each row i."""
    kernel, y = w[part], np.zeros_like(x)
    changes = changes.reshape(len(x), len(kernel), -1)
    changes = np.repeat(changes, x.shape[1] // changes.shape[2], axis=2)
    for j in range(min(len(kernel), len(x))):
        y[j:] += (kernel[j] + changes[j:, j]) * x[: len(x) - j]
    return y


def keep_best(x: Array, *, n: int) -> Array:
    """Return x where it is one of the n largest values, or NaN, and -inf elsewhere."""
    kept = np.isnan(x)
    kept[best_first(np.where(kept, -np.inf, x), ~kept)[:n]] = True
    return np.where(kept, x, -np.inf).astype(x.dtype)


def find_best(x: Array, *, n: int) -> tuple[NDArray[np.int32], Array]:
    """Return the columns of the n largest values, best first, and log and share of each.

    Shares are of the softmax over the row. What is not a number counts as -inf.
    """
    x = numbers(x)
    ids = best_first(x)[:n]
    less = np.zeros_like(x)
    np.subtract(x, x[ids[0]], out=less, where=x < x[ids[0]])
    e = np.exp(less)
    shares = [less[ids] - np.log(e.sum()), e[ids] / e.sum()]
    return ids.astype(np.int32), np.stack(shares, axis=1)


def embed_ids(ids: NDArray[np.int32], table: Array) -> Array:
    """Return the table's rows of these ids."""
    return np.asarray(table[ids])


def rank_matmul(x: Array, w: Any, bias: Array | None = None) -> Array:
    """Return w x[r] + bias for each rank r."""
    return np.stack([matmul(row, w, bias) for row in x])


def block_attention(
    q: Array, k: Array, v: Array, bias: Array, *, first: int, scale: float
) -> Array:
    """Return softmax(scale q.k + bias) v of candidates [rows, n, width] over those from ``first``.

    ``bias`` [heads, 2 size - 1] is by the row of the query less that of the key.
    """
    n_rows, n = q.shape[:2]
    if n_rows <= first:
        return np.zeros_like(q)
    at = np.repeat(np.arange(n_rows), n)
    by_distance = bias[:, at[:, None] - at[None, first * n :] + bias.shape[1] // 2]
    heads = [x.reshape(n_rows * n, len(bias), -1).transpose(1, 0, 2) for x in (q, k, v)]
    scores = heads[0] @ heads[1][:, first * n :].transpose(0, 2, 1) * scale + by_distance
    shares = np.stack([[softmax(row) for row in head] for head in scores])
    return (shares @ heads[2][:, first * n :]).transpose(1, 0, 2).reshape(q.shape).astype(q.dtype)


def block_walk(
    ids: NDArray[np.int32], start: Array, going: Array, coming: Array, *, first: int, width: int
) -> Array:
    """Return the scores of candidates at their ids, each row's after the best of the row before."""
    y = np.full((len(ids), width), -np.inf, going.dtype)
    before = start[min(first, len(ids) - 1)]
    for i in range(first, len(ids)):
        scores = coming[i] @ before
        y[i, ids[i]] = scores
        before = going[i, best_first(numbers(scores))[0]]
    return y


def numbers(x: Array) -> Array:
    """Return -inf in place of what is not a number."""
    return np.where(np.isnan(x), -np.inf, x).astype(x.dtype)


def read_state(state: Array, q: Array) -> Array:
    """Return S^T q of each head: [H, Dk, Dv], [H, Dk] -> [H, Dv]."""
    return np.stack([s.T @ row for s, row in zip(state, q, strict=True)])


def route(
    x: Array,
    w: Array,
    correction: Array | None = None,
    bias: Array | None = None,
    factors: Array | None = None,
    *,
    n_used: int,
    gate: str,
    normalise: bool,
    scale: float,
    n_groups: int,
    n_groups_used: int,
    n_best_of_group: int,
) -> tuple[NDArray[np.int32], Array]:
    """Return the ids of the n_used best experts, best first, and their weights.

    Experts are compared by gate(w x + bias) + correction, lowest id first among equals, NaN last;
    only those of the n_groups_used best groups take part, a group being worth the sum of its
    n_best_of_group best experts. The weights are the gates without the correction, in the end times
    the experts' factors.
    """
    z = matmul(x, w, bias)
    gates = sigmoid(z) if gate == "sigmoid" else softmax(z)
    score = gates if correction is None else gates + correction
    score = np.where(np.isnan(score), -np.inf, score)
    chosen = np.ones(len(score), bool)
    if n_groups > 1:
        grouped = score.reshape(n_groups, -1)
        worth = np.sort(grouped, axis=1)[:, -n_best_of_group:].sum(axis=1)
        worth = np.where(np.isnan(worth), -np.inf, worth)
        chosen = np.zeros(grouped.shape, bool)
        chosen[best_first(worth)[:n_groups_used]] = True
        chosen = chosen.reshape(-1)
    ids = best_first(score, chosen)[:n_used]
    shares = gates[ids]
    if normalise:
        shares = shares / (shares.sum() + SMALLEST_SUM)
    shares = shares * scale
    return ids.astype(np.int32), shares if factors is None else shares * factors[ids]


def best_first(score: Array, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """Return the indices of scores without NaN, allowed ones first, best first, then lowest."""
    index = np.arange(len(score))
    return np.lexsort((index, -score) if allowed is None else (index, -score, ~allowed))


def softmax(z: Array) -> Array:
    """Return exp(z) / sum(exp(z))."""
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def expert_matmul(x: Array, ids: NDArray[np.int32], w: Any, bias: Array | None = None) -> Array:
    """Return w[id] x + bias[id] for each id, where x is one row for all or one row for each."""
    each = x if x.ndim == 2 else [x] * len(ids)
    y = np.stack([w[i] @ row for i, row in zip(ids, each, strict=True)])
    return y if bias is None else y + bias[ids]


def group_ids(ids: NDArray[np.int32], *, n_of_group: int) -> NDArray[np.int32]:
    """Return the group of each id, where groups lie one after the other."""
    return ids // np.int32(n_of_group)


def pair_ids(
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    *,
    column: int,
    n_first: int,
    n_second: int,
) -> NDArray[np.int32]:
    """Return a * n_second + b for a of a column and each b, or a * n_second for the last a."""
    a = int(first[column])
    return np.int32(a * n_second) + (second if a < n_first - 1 else np.int32(0) * second)


def token_ids(
    token: NDArray[np.int32],
    ids: NDArray[np.int32],
    *,
    n_first: int,
    n_second: int,
    absent: int,
) -> NDArray[np.int32]:
    """Return id * n_second + token for each id; the row after all tables where there is none."""
    row = int(token) if token >= 0 else absent
    has_row = (ids < n_first - 1) & (row >= 0)
    return np.where(has_row, ids * n_second + row, (n_first - 1) * n_second).astype(np.int32)


def scale_chosen(x: Array, ids: NDArray[np.int32], w: Array) -> Array:
    """Return w[id] x[r] for the id of each rank r."""
    return np.asarray(w[ids, None] * x)


def cluster_matmul(
    x: Array, ids: NDArray[np.int32], w: Any, ordering: Array, *, n_clusters: int
) -> Array:
    """Return w x for the rows of the clusters, -inf elsewhere."""
    rows = ordering.reshape(n_clusters, -1)[ids].reshape(-1).astype(np.int64)
    y: Array = w @ x
    found = np.full_like(y, -np.inf)
    found[rows] = y[rows]
    return found


def head_matmul(x: Array, w: Any) -> Array:
    """Return w[h] x[h] for each head."""
    return np.stack([w[h] @ row for h, row in enumerate(x)])


def add_chosen(y: Array, x: Array, ids: NDArray[np.int32], shares: Array, *, n: int) -> Array:
    """Return y + the sum over r of shares[r] x[r], in rank order, whose ids[r] is below n."""
    return y + mix(x[ids < n], shares[ids < n]) if (ids < n).any() else y


def mix(x: Array, shares: Array) -> Array:
    """Return the sum over r of shares[r] x[r], in rank order."""
    total = shares[0] * x[0]
    for share, row in zip(shares[1:], x[1:], strict=True):
        total = total + share * row
    return np.asarray(total)
