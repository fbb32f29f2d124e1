"""Gemma 4's assistant: layers with queries alone, which read the keys and values of the target.

Google: Gemma 4, multi-token prediction drafters, 2026. Names are llama.cpp's.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from mtpcore.plugin import (
    Count,
    GraphBuilder,
    Inputs,
    MemoryLayer,
    Outputs,
    Value,
    swiglu,
)
from mtpcore_gemma4.graph import GELU, queries
from mtpcore_gemma4.hparams import GemmaHparams

CENTROIDS, ORDERING = "masked_embd_centroids.weight", "masked_embd_ordering"


class AssistantHparams(GemmaHparams, frozen=True, kw_only=True):
    """What the assistant adds: the width of the target's rows, and how many clusters it reads."""

    reads_target: ClassVar[bool] = True

    target_width: Count = msgspec.field(name="embedding_length_out")
    n_clusters_used: Count = msgspec.field(name="centroid_intermediate_top_k", default=32)


def layers_of_target(stored: Sequence[MemoryLayer], h: AssistantHparams) -> list[int]:
    """Return which of the target's layers each layer reads: the last that stores of its kind."""
    last = {bool(layer.window): layer.layer for layer in stored}
    return [last.get(bool(kind.window), -1) for kind in h.kinds]


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: AssistantHparams) -> Value:
    """Add what layer n makes of the residual stream, and scale the sum."""
    block = f"blk.{n}"

    def normed(y: Value, name: str) -> Value:
        return g.rms_norm(y, f"{block}.{name}.weight", h.norm_eps)

    rows = g.matmul(normed(x, "attn_norm"), f"{block}.attn_q.weight")
    q = queries(g, rows, positions, n, h)
    y = g.attend(q, layer=n, scale=1.0, window=h.kinds[n].window)
    y = g.matmul(g.merge_heads(y), f"{block}.attn_output.weight")
    x = g.add(x, normed(y, "post_attention_norm"))
    y = swiglu(g, normed(x, "ffn_norm"), n, kind=GELU)
    x = g.add(x, normed(y, "post_ffw_norm"))
    if g.has(f"{block}.layer_output_scale.weight"):
        x = g.scale_by(x, f"{block}.layer_output_scale.weight")
    return x


def assistant(g: GraphBuilder, inputs: Inputs, h: AssistantHparams) -> Outputs:
    """Build the drafter: a token's embedding in the target, and the target's row before it.

    In later steps the normed state, projected back to the target's width, is that row.
    """
    scale = h.target_width**0.5
    token = g.embed(inputs.tokens, "target_embd.weight", scale=scale)
    x = g.matmul(g.concat(token, inputs["hidden"]), "nextn.pre_projection.weight")
    for n in range(h.n_layers):
        x = layer(g, x, inputs.positions, n, h)
    hidden = g.rms_norm(x, "output_norm.weight", h.norm_eps)
    projected = g.matmul(hidden, "nextn.post_projection.weight")
    return Outputs(logits=logits(g, g.output_rows(hidden), h), hidden=projected)


def logits(g: GraphBuilder, hidden: Value, h: AssistantHparams) -> Value:
    """Return logits, where the file has clusters of tokens those of the best clusters alone."""
    if not g.has(CENTROIDS):
        return g.matmul(hidden, "token_embd.weight")
    clusters, _ = g.route(hidden, CENTROIDS, n_used=h.n_clusters_used, gate="softmax")
    return g.cluster_matmul(hidden, clusters, "token_embd.weight", ORDERING)
