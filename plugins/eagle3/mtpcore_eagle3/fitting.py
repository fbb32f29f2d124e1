"""How an EAGLE-3 head is fitted to a target: its weights, and its graph in JAX.

Weights have the names of the file, and lie as in it, so that writing a head is writing its weights.
Li, Wei, Zhang, Zhang: EAGLE-3, 2025 (arXiv 2503.01840): a head learns on rows of its own, as it
drafts ("training-time test").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

ARCHITECTURE = "eagle3"

_BASE = 10000.0
_EPS = 1e-5


class _LayerSizes(NamedTuple):
    """Sizes of a head's layer, which need not be those of the target's."""

    width: int
    n_heads: int
    head_width: int
    feed_forward: int

    @classmethod
    def of(cls, target: Any) -> _LayerSizes:
        """Choose heads of 64 where the target's width allows it, each with keys of its own.

        All that a later row knows of a token comes through values; so they are as wide as it.
        """
        width = target.hparams.width
        head_width = next(n for n in (64, 32, 16, 8, 4, 2) if width % n == 0)
        feed_forward = 32 * max(round(width * 8 / 3 / 32), 1)
        return cls(width, width // head_width, head_width, feed_forward)


def taps(target: Any) -> tuple[str, ...]:
    """Return what the head reads of the target: the inputs of a low, a middle, the last layer."""
    return tuple(f"layer_input:{layer}" for layer in _layers(target))


def _layers(target: Any) -> list[int]:
    n = target.hparams.n_layers
    return [min(2, n // 3), n // 2, n - 1]


def metadata(target: Any) -> dict[str, Any]:
    """Return the entries of the head's file."""
    sizes = _LayerSizes.of(target)
    entries = {
        "block_count": 1,
        "context_length": target.hparams.n_ctx_train,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.feed_forward,
        "vocab_size": target.hparams.n_vocab,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_heads,
        "attention.key_length": sizes.head_width,
        "attention.value_length": sizes.head_width,
        "attention.layer_norm_rms_epsilon": _EPS,
        "rope.dimension_count": sizes.head_width,
        "rope.freq_base": _BASE,
        "target_layers": _layers(target),
        "target_hidden_size": sizes.width,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }
    return {f"{ARCHITECTURE}.{key}": value for key, value in entries.items()}


def begin(
    target: Any, output: F32, sample: Iterable[tuple[F32, F32, F32]], seed: int
) -> dict[str, F32]:
    """Return the weights before the first step: the best linear guess, which the layer passes on.

    Least squares say what matrices of token and taps, added up, come nearest to the target's next
    row. Equal matrices for queries and keys make a place attend to itself most, so that its token
    comes through; the feed-forward network adds nothing yet.
    """
    s = _LayerSizes.of(target)
    rng = np.random.default_rng(seed)

    def drawn(n_out: int, n_in: int) -> F32:
        matrix: F32 = (rng.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)
        return matrix

    norm = target.tensors["output_norm.weight"].array()
    least = np.abs(norm).mean() / 100  # by which rows are divided
    norm = np.where(np.abs(norm) < least, least, norm)
    ones = np.ones(s.width, np.float32)
    linear = _solve(
        (np.concatenate([_norm(embeddings, ones), taps], axis=1), hidden / norm)
        for embeddings, taps, hidden in sample
    )
    attend, zeros = drawn(s.width, 2 * s.width), np.zeros((s.width, s.width), np.float32)
    norms = ("attn_norm", "attn_norm_2", "ffn_norm")
    return {
        "fc.weight": linear[:, s.width :],
        **{f"blk.0.{name}.weight": ones for name in norms},
        "blk.0.attn_q.weight": attend,
        "blk.0.attn_k.weight": attend,
        "blk.0.attn_v.weight": np.concatenate([np.eye(s.width, dtype=np.float32), zeros], axis=1),
        "blk.0.attn_output.weight": linear[:, : s.width],
        "blk.0.ffn_gate.weight": drawn(s.feed_forward, s.width),
        "blk.0.ffn_up.weight": drawn(s.feed_forward, s.width),
        "blk.0.ffn_down.weight": np.zeros((s.width, s.feed_forward), np.float32),
        "output_norm.weight": norm,
        "output.weight": output,
    }


def _solve(pairs: Iterable[tuple[F32, F32]]) -> F32:
    """Return the matrix float32[n_out, n_in] that makes of known rows the wanted ones, or nearly.

    Least squares; a hundredth of the columns' mean square keeps the matrix small.
    """
    squares: Any = 0
    products: Any = 0
    for known, wanted in pairs:
        squares, products = squares + known.T @ known, products + known.T @ wanted
    ridge = np.trace(squares) / len(squares) / 100
    matrix = np.linalg.solve(squares + ridge * np.eye(len(squares)), products).T
    return np.ascontiguousarray(matrix, np.float32)


def scaled(weights: Mapping[str, F32], scale: F32) -> dict[str, F32]:
    """Return weights that read taps as they are where these read taps times ``scale``."""
    return {**weights, "fc.weight": weights["fc.weight"] * scale}


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
    sizes = _LayerSizes.of(target)
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
        keys.append(_rotate(k, places))
        values.append(v)
        mixed = _attend(_rotate(q, places), keys, values)
        x = row + mixed @ weights["blk.0.attn_output.weight"].T
        a = _norm(x, weights["blk.0.ffn_norm.weight"])
        gate = jax.nn.silu(a @ weights["blk.0.ffn_gate.weight"].T)
        up = a @ weights["blk.0.ffn_up.weight"].T
        row = x + (gate * up) @ weights["blk.0.ffn_down.weight"].T
        rows.append(_norm(row, weights["output_norm.weight"]))
    return rows


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + _EPS) * weight


def _in_heads(x: jax.Array, head_width: int) -> jax.Array:
    """Return [batch, n, heads * width] as [batch, heads, n, width]."""
    return x.reshape(*x.shape[:2], -1, head_width).swapaxes(1, 2)


def _rotate(x: jax.Array, places: jax.Array) -> jax.Array:
    """Rotate neighbouring pairs of [batch, heads, n, width]."""
    half = x.shape[-1] // 2
    angles = places[:, None] * _BASE ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


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
