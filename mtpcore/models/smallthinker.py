"""SmallThinker (``smallthinker``): experts are chosen by what enters the layer."""

from __future__ import annotations

from functools import partial

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import moe
from mtpcore.models.checkpoints.own_code import SMALLTHINKER as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["SMALLTHINKER"]

_WINDOW = 4096
"""That of all models of the family, whatever a file says; 0 says that there is none."""


def _rotates(h: VariantHparams, n: int) -> bool:
    """Rotate all layers but each fourth, the first among them, where some have a window."""
    return n % 4 != 0 or not any(kind.window for kind in h.kinds)


def _adapt(fields: Fields) -> Fields:
    key = "{arch}.attention.sliding_window"
    return fields.replace({key: _WINDOW}) if fields.get(key, int, 0) else fields


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    assert h.experts is not None
    block = f"blk.{n}"
    y = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    rows = norm(g, y, f"{block}.ffn_norm", h)
    gated = partial(g.gated, kind="relu")
    return g.add(y, moe(g, rows, n, h.experts, routed=x, gated=gated))


SMALLTHINKER = variant_spec(
    "smallthinker",
    Variant(rotates=_rotates, window_period=4, is_full_first=True),
    also=("blk.0.ffn_gate_inp.weight",),
    build=partial(build, layer=_layer),
    adapt=_adapt,
    checkpoint=CHECKPOINT,
)
