"""Snowflake Arctic (``arctic``): a dense feed-forward part, and experts beside the whole layer."""

from __future__ import annotations

from functools import partial

from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import moe, swiglu
from mtpcore.models.checkpoints.own_code import ARCTIC as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["ARCTIC"]


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    assert h.experts is not None
    block = f"blk.{n}"
    y = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    y = g.add(y, swiglu(g, norm(g, y, f"{block}.ffn_norm", h), n))
    return g.add(y, moe(g, norm(g, x, f"{block}.ffn_norm_exps", h), n, h.experts))


ARCTIC = variant_spec(
    "arctic",
    Variant(rope_style="pairs"),
    also=("blk.0.ffn_gate_inp.weight",),
    build=partial(build, layer=_layer),
    checkpoint=CHECKPOINT,
)
