"""How an EAGLE-3 head is fitted to a target: its file, and its graph in JAX.

Li, Wei, Zhang, Zhang: EAGLE-3, 2025 (arXiv 2503.01840): a head learns on rows of its own, as it
drafts ("training-time test").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mtpcore_eagle3.first_weights import EPS
from mtpcore_eagle3.fitted_file import (
    ARCHITECTURE,
    BASE,
    begin,
    metadata,
    scaled,
    sizes_for,
    taps,
)

__all__ = ["ARCHITECTURE", "begin", "draft", "metadata", "scaled", "taps"]


def draft(
    weights: Mapping[str, jax.Array],
    embeddings: jax.Array,
    taps: jax.Array,
    depth: int,
    target: Any,
) -> list[jax.Array]:
    """Compute ``depth`` steps of the drafts that begin at every place, [batch, n, width] each.

    The first step's rows are what the head knows of a text. A later step sees those up to its
    draft's place, and the rows of its own draft since.
    """
    sizes = sizes_for(target)
    row = taps @ weights["fc.weight"].T
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    rows = []
    for step in range(depth):
        token = _norm(jnp.roll(embeddings, -step, axis=1), weights["blk.0.attn_norm.weight"])
        pair = jnp.concatenate([token, _norm(row, weights["blk.0.attn_norm_2.weight"])], axis=-1)
        q, k, v = (
            _in_heads(pair @ weights[f"blk.0.attn_{name}.weight"].T, sizes.head_width)
            for name in ("q", "k", "v")
        )
        places = jnp.arange(embeddings.shape[1]) + step
        keys.append(_rotate(k, places, sizes.n_rotated))
        values.append(v)
        mixed = _attend(_rotate(q, places, sizes.n_rotated), keys, values)
        x = row + mixed @ weights["blk.0.attn_output.weight"].T
        a = _norm(x, weights["blk.0.ffn_norm.weight"])
        gate = jax.nn.silu(a @ weights["blk.0.ffn_gate.weight"].T)
        up = a @ weights["blk.0.ffn_up.weight"].T
        row = x + (gate * up) @ weights["blk.0.ffn_down.weight"].T
        rows.append(_norm(row, weights["output_norm.weight"]))
    return rows


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def _in_heads(x: jax.Array, head_width: int) -> jax.Array:
    """Return [batch, n, heads * width] as [batch, heads, n, width]."""
    return x.reshape(*x.shape[:2], -1, head_width).swapaxes(1, 2)


def _rotate(x: jax.Array, places: jax.Array, n_rotated: int) -> jax.Array:
    """Rotate neighbouring pairs of the first values of [batch, heads, n, width]."""
    half = n_rotated // 2
    angles = places[:, None] * BASE ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    even, odd = x[..., :n_rotated:2], x[..., 1:n_rotated:2]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([rotated.reshape(*x.shape[:-1], -1), x[..., n_rotated:]], axis=-1)


def _attend(q: jax.Array, keys: list[jax.Array], values: list[jax.Array]) -> jax.Array:
    """Mix the values of the first step up to a draft's place, and of the draft itself since.

    Parameters
    ----------
    q : float32[batch, heads, n, width]
    keys, values : list of float32[batch, heads, n, width]
        Of the steps so far, the newest last.

    Returns
    -------
    float32[batch, n, heads * width]
    """
    n, width = q.shape[2:]
    q = q * width**-0.5
    scores = q @ keys[0].swapaxes(2, 3)
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    own = [jnp.sum(q * k, axis=-1, keepdims=True) for k in keys[1:]]
    shares = jax.nn.softmax(jnp.concatenate([scores, *own], axis=-1), axis=-1)
    mixed = shares[..., :n] @ values[0]
    for step, v in enumerate(values[1:]):
        mixed += shares[..., n + step, None] * v
    return mixed.swapaxes(1, 2).reshape(q.shape[0], n, -1)
