"""How heads of ``fused_heads`` are fitted to a target: their files' entries, and their drafts.

Weights have the names of the file, and lie as in it, so that writing a head is writing its weights.
Drafts are computed with the functions of whatever arrays come (Python's array API standard): JAX's
while a head is trained, NumPy's where its drafts are compared with those of the graph that runs.

Li, Wei, Zhang, Zhang: EAGLE-3, 2025 (arXiv 2503.01840): a head learns on rows of its own, as it
drafts ("training-time test").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mtpcore.models.fused_first_weights import EPS, LayerSizes, TextSample, first_weights
from mtpcore.models.hparams import Hparams
from mtpcore.runtime.model import Model

__all__ = [
    "begin_fused_head",
    "draft_fused_head",
    "fused_head_entries",
    "fused_head_taps",
    "scale_fused_head",
]

F32 = NDArray[np.float32]

_BASE = 10000.0
"""Of rotations."""


def fused_head_taps(target: Model) -> tuple[str, ...]:
    """Return what such a head reads: the inputs of a low, a middle and the target's last layer."""
    return tuple(f"layer_input:{layer}" for layer in _layers(target))


def _layers(target: Model) -> list[int]:
    n = target.hparams.n_layers
    return [min(1, n // 3), n // 2, n - 1]


def fused_head_entries(target: Model, architecture: str) -> dict[str, object]:
    """Return the entries of the file of a head of one layer, for a target.

    ``architecture`` is what their names begin with.
    """
    sizes = LayerSizes.of(target.hparams.width)
    entries: dict[str, object] = {
        "block_count": 1,
        "context_length": cast(Hparams, target.hparams).n_ctx_train,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.feed_forward,
        "vocab_size": target.hparams.n_vocab,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_heads,
        "attention.key_length": sizes.head_width,
        "attention.value_length": sizes.head_width,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": sizes.n_rotated,
        "rope.freq_base": _BASE,
        "target_layers": _layers(target),
        "target_hidden_size": sizes.width,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }
    return {f"{architecture}.{key}": value for key, value in entries.items()}


def begin_fused_head(
    target: Model, embeddings: F32, output: F32, sample: TextSample, seed: int
) -> dict[str, F32]:
    """Return the weights before the first step: the best linear guess, and heads that copy.

    Parameters
    ----------
    target : Model
    embeddings, output : float32[n_drafted, width]
        Rows of the target's matrices for the tokens that can be drafted.
    sample : callable
        ``sample()`` yields pieces of text: embeddings float32[n, width], taps float32[n, ...] of
        the token before each, and the target's row after it, float32[n, width].
    seed : int
    """
    norm = target.tensors["output_norm.weight"].array()
    least = np.abs(norm).mean() / 100  # by which rows are divided
    norm = np.where(np.abs(norm) < least, least, norm)
    sizes = LayerSizes.of(target.hparams.width)
    return first_weights(sizes, norm, embeddings, output, sample, seed)


def scale_fused_head(weights: Mapping[str, F32], scale: F32) -> dict[str, F32]:
    """Return weights that read taps as they are where these read taps times ``scale``.

    ``weights`` are float32 arrays by the names of the file; ``scale``, float32[width of all taps],
    has a factor for each column.
    """
    return {**weights, "fc.weight": weights["fc.weight"] * scale}


def draft_fused_head(
    weights: Mapping[str, F32],
    embeddings: F32,
    taps: F32,
    depth: int,
    target: Model,
    mask: tuple[F32, F32] | None = None,
) -> list[F32]:
    """Compute ``depth`` steps of the drafts that begin at every place, [batch, n, width] each.

    The first step's rows are what the head knows of a text. A later step sees those up to its
    draft's place, and the rows of its own draft since.

    Parameters
    ----------
    weights : mapping of str to float32 array
        By the names of the file. All arrays are of one library, NumPy or another.
    embeddings : float32[batch, n, width]
        Of the token after each place.
    taps : float32[batch, n, ...]
        Of the place.
    depth : int
    target : Model
    mask : (float32[width], float32[...]), optional
        The embedding of a token and a row of taps. Without it later steps read the token that was
        drafted and the row that drafted it; with it all steps are one pass, and later ones read it.
    """
    xp = embeddings.__array_namespace__()
    sizes = LayerSizes.of(target.hparams.width)
    row = taps @ weights["fc.weight"].T
    keys: list[F32] = []
    values: list[F32] = []
    rows = []
    for step in range(depth):
        if mask is None or step == 0:
            token = xp.roll(embeddings, -step, axis=1)
        else:  # the same at all places: computed once
            token, unknown = (x[None, None] for x in mask)
            row = unknown @ weights["fc.weight"].T
        token = _norm(token, weights["blk.0.attn_norm.weight"])
        pair = xp.concat([token, _norm(row, weights["blk.0.attn_norm_2.weight"])], axis=-1)
        q, k, v = (
            _in_heads(pair @ weights[f"blk.0.attn_{name}.weight"].T, sizes.head_width)
            for name in ("q", "k", "v")
        )
        places = xp.arange(embeddings.shape[1]) + step
        keys.append(_rotate(k, places, sizes.n_rotated))
        values.append(v)
        mixed = _attend(_rotate(q, places, sizes.n_rotated), keys, values)
        x = row + mixed @ weights["blk.0.attn_output.weight"].T
        a = _norm(x, weights["blk.0.ffn_norm.weight"])
        gate = a @ weights["blk.0.ffn_gate.weight"].T
        up = a @ weights["blk.0.ffn_up.weight"].T
        # The sigmoid by a tangent, which no value overflows.
        gated = 0.5 * gate * (1 + xp.tanh(0.5 * gate)) * up
        row = x + gated @ weights["blk.0.ffn_down.weight"].T
        rows.append(_norm(row, weights["output_norm.weight"]))
    return rows


def _norm(x: Any, weight: Any) -> Any:
    xp = x.__array_namespace__()
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def _in_heads(x: F32, head_width: int) -> F32:
    """Return [batch, n, heads * width] as [batch, heads, n, width]."""
    return x.reshape(*x.shape[:2], -1, head_width).swapaxes(1, 2)


def _rotate(x: Any, places: Any, n_rotated: int) -> Any:
    """Rotate neighbouring pairs of the first values of [batch, heads, n or 1, width]."""
    xp, half = x.__array_namespace__(), n_rotated // 2
    x = xp.broadcast_to(x, (*x.shape[:2], len(places), x.shape[3]))
    frequencies = (_BASE ** (-np.arange(half) / half)).astype(np.float32)
    angles = places[:, None] * frequencies
    cos, sin = xp.cos(angles), xp.sin(angles)
    even, odd = x[..., :n_rotated:2], x[..., 1:n_rotated:2]
    rotated = xp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return xp.concat([rotated.reshape(*x.shape[:-1], -1), x[..., n_rotated:]], axis=-1)


def _attend(q: Any, keys: list[Any], values: list[Any]) -> Any:
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
    xp = keys[0].__array_namespace__()
    n, width = keys[0].shape[2:]
    q = q * width**-0.5
    scores = q @ keys[0].swapaxes(2, 3)
    scores = xp.where(xp.tril(xp.ones((n, n), dtype=bool)), scores, -xp.inf)
    own = [xp.sum(q * k, axis=-1, keepdims=True) for k in keys[1:]]
    own = [xp.broadcast_to(one, (*scores.shape[:3], 1)) for one in own]
    scores = xp.concat([scores, *own], axis=-1)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    shares = powers / xp.sum(powers, axis=-1, keepdims=True)
    mixed = shares[..., :n] @ values[0]
    for step, v in enumerate(values[1:]):
        mixed = mixed + shares[..., n + step, None] * v
    return mixed.swapaxes(1, 2).reshape(scores.shape[0], n, -1)
