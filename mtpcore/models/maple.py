"""Maple (``maple``): gates and rows of experts are cut at a limit that the file says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec

from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import moe
from mtpcore.models.checkpoints.own_code import MAPLE as CHECKPOINT
from mtpcore.models.variants import (
    Limit,
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["MAPLE", "MapleHparams"]


class MapleHparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: the limit of each layer's experts, 0 for none."""

    limits: tuple[float, ...] = ()

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read the metadata; see ``VariantHparams.read_variant``."""
        h = super().read_variant(variant, fields, tensors)
        limits = fields.per_layer("{arch}.swiglu_clamp_exp", h.n_blocks, Limit)
        return msgspec.structs.replace(h, limits=tuple(limits))


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: MapleHparams) -> Value:
    assert h.experts is not None
    block = f"blk.{n}"
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    gated = partial(g.gated, limit=h.limits[n])
    return g.add(x, moe(g, norm(g, x, f"{block}.ffn_norm", h), n, h.experts, gated=gated))


MAPLE = variant_spec(
    "maple",
    Variant(rotates=lambda h, n: h.kinds[n].window > 0, window_period=0),
    also=("blk.0.ffn_gate_inp.weight",),
    hparams=MapleHparams,
    build=partial(build, layer=_layer),
    checkpoint=CHECKPOINT,
)
