"""Candidates of a block's rows: the best of each row, what they make of each other, and a walk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference import formulas
from mtpcore.backends.reference.arithmetic.functions import exp, log
from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.backends.reference.arithmetic.matrix import Matrix
from mtpcore.backends.reference.arithmetic.sums import sum_of_products, sum_of_row

__all__ = ["block_attention", "block_walk", "find_best", "rank_matmul"]

I32 = NDArray[np.int32]
LEAST = np.float32(-np.inf)


def find_best(x: F32, *, n: int) -> tuple[I32, F32]:
    """Return the n best columns of each row, and log and share of each.

    exp of what each value is less than the best one is summed in lanes. Its logarithm is taken, and
    subtracted, in double.
    """
    x = formulas.numbers(x)
    ids = np.stack([formulas.best_first(row)[:n] for row in x])
    top = np.take_along_axis(x, ids[:, :1], axis=1)
    less = np.zeros_like(x)
    np.subtract(x, top, out=less, where=x < top)
    e = exp(less)
    total = sum_of_row(e)
    less, e = (np.take_along_axis(values, ids, axis=1) for values in (less, e))
    logs = (less.astype(np.float64) - log(total.astype(np.float64))[:, None]).astype(np.float32)
    return ids.astype(np.int32), np.stack([logs, e / total[:, None]], axis=2)


def rank_matmul(x: F32, w: Matrix, bias: F32 | None = None) -> F32:
    """Return w x[t, r], then plus bias."""
    y = w.times(x.reshape(-1, x.shape[2])).reshape(*x.shape[:2], -1)
    return y if bias is None else y + bias


def block_attention(q: F32, k: F32, v: F32, bias: F32, *, first: int, scale: float) -> F32:
    """Return softmax(scale q.k + bias) v of candidates over those of rows from ``first`` on.

    Products of q and k, and the exponentials, are summed in lanes; the values in a chain, which is
    then divided by the sum of the exponentials.
    """
    n_rows, n, width = q.shape
    n_heads, middle = len(bias), bias.shape[1] // 2
    made = np.zeros_like(q)
    of_head = (n_rows * n, n_heads, width // n_heads)
    queries, keys, values = (x.reshape(of_head) for x in (q, k, v))
    keys, values = keys[first * n :], values[first * n :]
    if not len(keys):
        return made
    to = np.repeat(np.arange(first, n_rows), n)
    for at, head in np.ndindex(n_rows * n, n_heads):
        products = sum_of_products(queries[at, head], keys[:, head])
        scores = products * np.float32(scale) + bias[head, at // n - to + middle]
        e = exp(scores - formulas.numbers(scores).max())
        total = np.zeros(of_head[2], np.float32)
        for share, value in zip(e, values[:, head], strict=True):
            total = fma(share, value, total)
        made.reshape(of_head)[at, head] = total / sum_of_row(e)
    return made


def block_walk(ids: I32, start: F32, going: F32, coming: F32, *, first: int, width: int) -> F32:
    """Return the scores of candidates at their ids; the products are summed in lanes."""
    y = np.full((len(ids), width), LEAST)
    before = start[min(first, len(ids) - 1)]
    for i in range(first, len(ids)):
        scores = sum_of_products(before, coming[i])
        y[i, ids[i]] = scores
        before = going[i, formulas.best_first(formulas.numbers(scores))[0]]
    return y
