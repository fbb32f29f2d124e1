"""The file of an EAGLE-3 head that is fitted: its entries, its taps, and its first weights.

Weights have the names of the file, and lie as in it, so that writing a head is writing its weights.
Nothing here computes a draft, so JAX is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore_eagle3.first_weights import EPS, LayerSizes, TextSample, first_weights

__all__ = ["ARCHITECTURE", "BASE", "begin", "metadata", "scaled", "sizes_for", "taps"]

F32 = NDArray[np.float32]

ARCHITECTURE = "eagle3"

BASE = 10000.0
"""Of rotations."""


def taps(target: Any) -> tuple[str, ...]:
    """Return what the head reads of the target: the inputs of a low, a middle, the last layer."""
    return tuple(f"layer_input:{layer}" for layer in _layers(target))


def _layers(target: Any) -> list[int]:
    n = target.hparams.n_layers
    return [min(1, n // 3), n // 2, n - 1]


def metadata(target: Any) -> dict[str, Any]:
    """Return the entries of the head's file."""
    sizes = sizes_for(target)
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
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": sizes.n_rotated,
        "rope.freq_base": BASE,
        "target_layers": _layers(target),
        "target_hidden_size": sizes.width,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }
    return {f"{ARCHITECTURE}.{key}": value for key, value in entries.items()}


def begin(
    target: Any, embeddings: F32, output: F32, sample: TextSample, seed: int
) -> dict[str, F32]:
    """Return the weights before the first step: the best linear guess, and heads that copy."""
    norm = target.tensors["output_norm.weight"].array()
    least = np.abs(norm).mean() / 100  # by which rows are divided
    norm = np.where(np.abs(norm) < least, least, norm)
    return first_weights(sizes_for(target), norm, embeddings, output, sample, seed)


def sizes_for(target: Any) -> LayerSizes:
    """Return the sizes of the head's layer."""
    return LayerSizes.of(target.hparams.width)


def scaled(weights: Mapping[str, F32], scale: F32) -> dict[str, F32]:
    """Return weights that read taps as they are where these read taps times ``scale``."""
    return {**weights, "fc.weight": weights["fc.weight"] * scale}
