"""DeciLM and Nemotron 51B to 253B (``deci``): layers may lack attention, or their other half.

A layer without key heads has one matrix in place of attention, one without query heads nothing.
Files say 0 for heads that are not there.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mtpcore.boundary.sizes import Depth
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.own_code import DECI as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    feed_forward,
    norm,
    variant_spec,
)

__all__ = ["DECI"]


def _adapt(fields: Fields) -> Fields:
    """Put the heads of other layers where a layer has none: its tensors say that it has none."""
    n_blocks = fields.require("{arch}.block_count", Depth)
    filled = {}
    for key in ("{arch}.attention.head_count", "{arch}.attention.head_count_kv"):
        counts = fields.per_layer(key, n_blocks, int)
        filled[key] = np.array([count or max(counts) for count in counts])
    return fields.replace(filled)


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    block = f"blk.{n}"
    a = norm(g, x, f"{block}.attn_norm", h)
    if g.has(f"{block}.attn_q.weight") or g.has(f"{block}.attn_qkv.weight"):
        x = g.add(x, attention(g, a, positions, n, h))
    elif g.has(f"{block}.attn_output.weight"):
        x = g.add(x, g.matmul(a, f"{block}.attn_output.weight"))
    if g.has(f"{block}.ffn_gate.weight"):
        x = g.add(x, feed_forward(g, norm(g, x, f"{block}.ffn_norm", h), n, h))
    return x


DECI = variant_spec(
    "deci",
    Variant(rope_style="pairs"),
    build=partial(build, layer=_layer),
    adapt=_adapt,
    checkpoint=CHECKPOINT,
)
