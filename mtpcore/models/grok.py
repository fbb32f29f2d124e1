"""Grok (``grok``): experts beside a dense feed-forward part, and norms after both branches."""

from __future__ import annotations

import math
from functools import partial

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import moe, swiglu
from mtpcore.models.checkpoints.grok import GROK1, GROK2
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["GROK"]

_GELU = "gelu_tanh"


def _adapt(fields: Fields) -> Fields:
    """Put the factor of scores where other families have it, and what files of Grok 1 lack."""
    output_scale, beta_fast = "{arch}.attention.output_scale", "{arch}.rope.scaling.yarn_beta_fast"
    return fields.replace(
        {
            "{arch}.attention.scale": fields.get(output_scale, float, 0.08838834764831845),
            beta_fast: fields.get(beta_fast, float, 8.0),
        }
    )


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    assert h.experts is not None
    block = f"blk.{n}"
    y = attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h)
    x = g.add(x, norm(g, y, f"{block}.attn_output_norm", h))
    rows = norm(g, x, f"{block}.ffn_norm", h)
    y = moe(g, rows, n, h.experts, gated=partial(g.gated, kind=_GELU))
    if g.has(f"{block}.ffn_up.weight"):
        y = g.scale(g.add(swiglu(g, rows, n, kind=_GELU), y), math.sqrt(0.5))
    has_own = g.has(f"{block}.layer_output_norm.weight")
    return g.add(x, norm(g, y, f"{block}.{'layer_output_norm' if has_own else 'post_ffw_norm'}", h))


GROK = variant_spec(
    "grok",
    Variant(
        embedding_scale=lambda h: 78.38367176906169,
        logit_scale=lambda h: 0.5773502691896257,
        softcaps_scores=30.0,
        softcaps_logits=True,
    ),
    also=("blk.0.ffn_gate_inp.weight",),
    build=partial(build, layer=_layer),
    adapt=_adapt,
    checkpoint=GROK2,
    layouts=(GROK1,),
    unread=(
        ("{arch}.router_logit_softcapping", "llama.cpp does not compute with it"),
        ("{arch}.attention.temperature_length", "llama.cpp does not compute with it"),
    ),
)
