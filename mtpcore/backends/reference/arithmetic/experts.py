"""Mixture of experts: routing, matmuls of the chosen experts, and their weighted sum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.functions import exp, sigmoid
from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.backends.reference.arithmetic.matrix import Matrix
from mtpcore.backends.reference.arithmetic.sums import sum_of_row

__all__ = [
    "add_chosen",
    "cluster_matmul",
    "expert_matmul",
    "head_matmul",
    "matmul_by_position",
    "mix",
    "route",
]

SMALLEST_SUM = np.float32(1e-20)


def softmax(z: F32) -> F32:
    """Return exp(z - top) / sum, the sum in lanes; top is the first logit or a larger one."""
    later = np.where(np.isnan(z), -np.inf, z).max(axis=1).astype(np.float32)
    top = np.where(np.isnan(z[:, 0]), np.float32(np.nan), later)
    e = exp(z - top[:, None])
    return np.asarray(e / sum_of_row(e)[:, None])


def best_of(score: F32, taken: NDArray[np.bool_]) -> int:
    """Return the largest score that is not taken, the lowest index among equals."""
    free = np.flatnonzero(~taken)
    best = int(free[0])
    for i in free[1:]:
        if score[i] > score[best]:
            best = int(i)
    return best


def best_in_turn(score: F32, n: int, taken: NDArray[np.bool_]) -> list[int]:
    """Return the n best, best first; what is chosen is taken."""
    chosen = []
    for _ in range(n):
        chosen.append(best_of(score, taken))
        taken[chosen[-1]] = True
    return chosen


def taken_groups(score: F32, n_groups: int, n_used: int, n_best: int) -> NDArray[np.bool_]:
    """Return which experts are out: all but those of the best groups.

    A group is worth its second best expert plus its best one, or its best one alone where it has no
    other or ``n_best`` is 1; nothing where that is not a number.
    """
    size = len(score) // n_groups
    worth = np.zeros(n_groups, np.float32)
    for g, group in enumerate(score.reshape(n_groups, size)):
        first, *second = best_in_turn(group, min(size, n_best), np.zeros(size, bool))
        worth[g] = group[second[0]] + group[first] if second else group[first]
    worth[np.isnan(worth)] = -np.inf
    taken = np.ones((n_groups, size), bool)
    taken[best_in_turn(worth, n_used, np.zeros(n_groups, bool))] = False
    return taken.reshape(-1)


def route(
    x: F32,
    w: Matrix,
    correction: F32 | None = None,
    bias: F32 | None = None,
    factors: F32 | None = None,
    *,
    n_used: int,
    gate: str,
    normalise: bool,
    scale: float,
    n_groups: int,
    n_groups_used: int,
    n_best_of_group: int,
) -> tuple[NDArray[np.int32], F32]:
    """Return ids and weights of each row's experts, best first.

    The matrix is float32 whatever the file's type. The gates chosen are summed in the order of
    their ranks; each is divided by the sum, then multiplied by the scale, then by the factor.
    """
    z = w.times(x) if bias is None else w.times(x) + bias
    gates = sigmoid(z) if gate == "sigmoid" else softmax(z)
    scores = gates if correction is None else gates + correction
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    ids = np.zeros((len(x), n_used), np.int32)
    shares = np.zeros((len(x), n_used), np.float32)
    for t, score in enumerate(scores):
        taken = np.zeros(len(score), bool)
        if n_groups > 1:
            taken = taken_groups(score, n_groups, n_groups_used, n_best_of_group)
        ids[t] = best_in_turn(score, n_used, taken)
        shares[t] = gates[t, ids[t]]
        if normalise:
            total = np.float32(0)
            for share in shares[t]:
                total += share
            shares[t] = shares[t] / (total + SMALLEST_SUM)
    shares = shares * np.float32(scale)
    return ids, shares if factors is None else shares * factors[ids]


def head_matmul(x: F32, w: list[Matrix]) -> F32:
    """Return the product of each head with its matrix."""
    return np.stack([matrix.times(x[:, head]) for head, matrix in enumerate(w)], axis=1)


def matmul_by_position(x: F32, positions: NDArray[np.int32], w: list[Matrix], *, first: int) -> F32:
    """Return the product of each row with the matrix of its position."""
    ids = np.clip(positions[:, :1] - first, 0, len(w) - 1)
    return expert_matmul(x, ids, w)[:, 0]


def cluster_matmul(
    x: F32, ids: NDArray[np.int32], w: Matrix, ordering: F32, *, n_clusters: int
) -> F32:
    """Return products with the rows of each row's clusters, and -inf elsewhere."""
    y = w.times(x)
    found = np.full_like(y, -np.inf)
    clusters = ordering.reshape(n_clusters, -1).astype(np.int64)
    for t, chosen in enumerate(clusters[ids].reshape(len(x), -1)):
        found[t, chosen] = y[t, chosen]
    return found


def expert_matmul(x: F32, ids: NDArray[np.int32], w: list[Matrix], bias: F32 | None = None) -> F32:
    """Return the products of each row (or each rank's row) with the matrices of its experts.

    The sum with an expert's bias is a rounding of its own.
    """
    rows = x if x.ndim == 3 else np.repeat(x[:, None], ids.shape[1], axis=1)
    y = np.zeros((*ids.shape, w[0].n_outputs), np.float32)
    for expert in np.unique(ids):
        y[ids == expert] = w[expert].times(rows[ids == expert])
    return y if bias is None else y + bias[ids]


def mix(x: F32, shares: F32) -> F32:
    """Return the sum over ranks r of shares[r] x[r]: a chain of fmas from zero, best rank first."""
    return _mixed(x, shares, np.ones(shares.shape, bool))


def add_chosen(y: F32, x: F32, ids: NDArray[np.int32], shares: F32, *, n: int) -> F32:
    """Return y plus such a sum of the ranks whose id is below n; y where there is none."""
    total = y + _mixed(x, shares, ids < n)
    return np.where((ids < n).any(axis=1, keepdims=True), total, y)


def _mixed(x: F32, shares: F32, chosen: NDArray[np.bool_]) -> F32:
    total = np.zeros((len(x), x.shape[-1]), np.float32)
    for r in range(x.shape[1]):
        total = np.where(chosen[:, r, None], fma(shares[:, r, None], x[:, r], total), total)
    return total
