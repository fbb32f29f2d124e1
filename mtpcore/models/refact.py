"""Refact (``refact``): a Llama with ALiBi in place of rotations, and without biases."""

from __future__ import annotations

from functools import partial

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.gpt import REFACT as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["REFACT"]

_IGNORED = (
    "rope_freqs.weight",
    *(f"blk.{{n}}.{name}.bias" for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")),
)


def _adapt(fields: Fields) -> Fields:
    key = "{arch}.expert_count"
    if n := fields.get(key, int, 0):
        raise fields.error(key, "experts, with which llama.cpp does not compute", wanted=0, got=n)
    return fields


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    block = f"blk.{n}"
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    rows = norm(g, x, f"{block}.ffn_norm", h)
    gate, up = (g.matmul(rows, f"{block}.ffn_{name}.weight") for name in ("gate", "up"))
    return g.add(x, g.matmul(g.gated(gate, up), f"{block}.ffn_down.weight"))


REFACT = variant_spec(
    "refact",
    Variant(rotates=lambda h, n: False, alibi=lambda h: 8.0, ignored=_IGNORED),
    build=partial(build, layer=_layer),
    adapt=_adapt,
    checkpoint=CHECKPOINT,
)
