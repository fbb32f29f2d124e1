"""How a P-EAGLE head is fitted to a target: EAGLE-3's first step, and rows of masks beside it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import begin_fused_head, draft_fused_head, fused_head_entries, scale_fused_head
from mtpcore.plugin import fused_head_taps as taps

__all__ = ["ARCHITECTURE", "begin", "draft", "metadata", "scaled", "taps"]

F32 = NDArray[np.float32]

ARCHITECTURE = "peagle"

_ROW = "mask_hidden.weight"
"""What rows of masks read in place of taps."""


def metadata(target: Any, depth: int) -> dict[str, Any]:
    """Return the entries of the head's file; a block has as many drafts as are learned."""
    return {
        **fused_head_entries(target, ARCHITECTURE),
        f"{ARCHITECTURE}.block_size": depth,
        "tokenizer.ggml.mask_token_id": _mask_token(target),
    }


def _mask_token(target: Any) -> int:
    """Return the target's own token for masks, else one after which nothing is drafted."""
    own = target.metadata.get("tokenizer.ggml.mask_token_id")
    return int(min(target.tokenizer.end_tokens, default=0) if own is None else own)


def begin(
    target: Any,
    embeddings: F32,
    output: F32,
    sample: Callable[[], Iterator[tuple[F32, F32, F32]]],
    seed: int,
    depth: int,
) -> dict[str, F32]:
    """Return the weights before the first step: EAGLE-3's, and masks that read average taps."""
    weights = begin_fused_head(target, embeddings, output, sample, seed)
    means = [rows.mean(axis=0) for _, rows, _ in sample()]
    return {**weights, _ROW: np.mean(means, axis=0, dtype=np.float32)}


def scaled(weights: Mapping[str, F32], scale: F32) -> dict[str, F32]:
    """Return weights that read taps as they are where these read taps times ``scale``."""
    return {**scale_fused_head(weights, scale), _ROW: weights[_ROW] / scale}


def draft(
    weights: Mapping[str, Any], embeddings: Any, taps: Any, depth: int, target: Any
) -> list[Any]:
    """Compute ``depth`` drafts that begin at every place in one pass, [batch, n, width] each."""
    token = _mask_token(target)
    embedding = target.tensors["token_embd.weight"].rows(token, token + 1)[0]
    return draft_fused_head(weights, embeddings, taps, depth, target, (embedding, weights[_ROW]))
