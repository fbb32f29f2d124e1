"""Muse Glimmer (``muse-glimmer``): embeddings and branches are normed, attention is gated."""

from __future__ import annotations

from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.checkpoints.gated_attention import MUSE_GLIMMER as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    embed,
    feed_forward,
    norm,
    outputs,
    run_layers,
    variant_spec,
)

__all__ = ["MUSE_GLIMMER"]

_POST_NORM_EPS = 1e-8
"""Of norms after a branch, whatever the file says of the others."""


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    block = f"blk.{n}"
    y = attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h)
    x = g.add(x, g.rms_norm(y, f"{block}.post_attention_norm.weight", _POST_NORM_EPS))
    y = feed_forward(g, norm(g, x, f"{block}.ffn_norm", h), n, h)
    return g.add(x, g.rms_norm(y, f"{block}.post_ffw_norm.weight", _POST_NORM_EPS))


def _build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    x = g.rms_norm(embed(g, inputs, h), None, h.norm_eps)
    return outputs(g, run_layers(g, x, inputs, h, _layer), h)


MUSE_GLIMMER = variant_spec(
    "muse-glimmer",
    Variant(
        rope_style="pairs",
        rotates=lambda h, n: h.kinds[n].window > 0,
        window_period=4,
        near_is_scaled=False,
        logit_scale=lambda h: 1.0,
        softcaps_logits=True,
    ),
    build=_build,
    checkpoint=CHECKPOINT,
)
