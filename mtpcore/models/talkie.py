"""Talkie (``talkie``): norms without weights, and the embeddings again after each layer."""

from __future__ import annotations

from mtpcore.declarations.spec import ATTENTION_SCALES
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.checkpoints.own_code import TALKIE as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    embed,
    feed_forward,
    outputs,
    run_layers,
    variant_spec,
)

__all__ = ["TALKIE"]


def _build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    def norm(x: Value) -> Value:
        return g.rms_norm(x, None, h.norm_eps)

    def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
        x = g.add(x, attention(g, norm(x), positions, n, h))
        x = g.add(x, feed_forward(g, norm(x), n, h))
        return g.add(x, g.scale_by(embedded, f"blk.{n}.layer_output_scale.weight"))

    embedded = norm(embed(g, inputs, h))
    return outputs(g, run_layers(g, embedded, inputs, h, layer), h)


TALKIE = variant_spec(
    "talkie",
    Variant(
        norm="plain_rms",
        head_norm="plain_rms",
        norms_rotated=True,
        logit_scale=lambda h: 1.0,
        scaled=(*(one for one in ATTENTION_SCALES if one != "output"), "blk.{n}.ffn_down"),
    ),
    also=("blk.0.layer_output_scale.weight",),
    build=_build,
    checkpoint=CHECKPOINT,
)
