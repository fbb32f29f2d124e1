"""StableLM (``stablelm``): layers without a norm between their halves compute both of one row."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints import layer_norm
from mtpcore.models.variants import Variant, VariantHparams, build, layer, variant_spec

__all__ = ["STABLELM"]


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    is_parallel = not g.has(f"blk.{n}.ffn_norm.weight")
    return layer(g, x, positions, n, replace(h, is_parallel=is_parallel))


STABLELM = variant_spec(
    "stablelm",
    Variant(norm="layer", head_norm="layer"),
    build=partial(build, layer=_layer),
    unread=(("{arch}.use_parallel_residual", "the norms that a file has say it"),),
    checkpoint=layer_norm.STABLELM,
)
