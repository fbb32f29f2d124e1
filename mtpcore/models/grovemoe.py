"""GroveMoE (``grovemoe``): experts lie in groups, and each group has a small expert beside them.

A token meets the small ("adjugate") expert of each expert that it chose, with that expert's share:
twice where it chose two of a group (Wu et al., Grove MoE, 2025, arXiv 2508.07785).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Self

import msgspec

from mtpcore.declarations.spec import ATTENTION_SCALES, EXPERT_SCALES
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import moe
from mtpcore.models.checkpoints.own_code import GROVE_MOE as CHECKPOINT
from mtpcore.models.variants import (
    Limit,
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["GROVE_MOE", "GroveMoeHparams"]

_GroupSize = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class GroveMoeHparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: experts of a group, and the factor of what their small experts make."""

    n_of_group: int = 2
    group_scale: float = 1.0

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read the metadata; see ``VariantHparams.read_variant``."""
        h = super().read_variant(variant, fields, tensors)
        key = "{arch}.experts_per_group"
        n_of_group = fields.require(key, _GroupSize)
        if n_of_group == 1:
            raise fields.error(
                key,
                "no published model has groups of one expert, and llama.cpp computes another thing",
                wanted="2 or more",
                got=n_of_group,
            )
        scale = fields.require("{arch}.expert_group_scale", Limit)
        return msgspec.structs.replace(h, n_of_group=n_of_group, group_scale=scale)


def _adjugate(
    g: GraphBuilder, x: Value, n: int, h: GroveMoeHparams, ids: Value, shares: Value
) -> Value:
    """Return the sum of the small experts of chosen ones, which read the same rows."""
    groups = g.group_ids(ids, h.n_of_group)

    def multiply(rows: Value, part: str) -> Value:
        return g.expert_matmul(rows, groups, f"blk.{n}.ffn_{part}_chexps.weight")

    y = multiply(g.gated(multiply(x, "gate"), multiply(x, "up")), "down")
    return g.scale(g.mix(y, shares), h.group_scale)


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: GroveMoeHparams) -> Value:
    assert h.experts is not None
    block = f"blk.{n}"
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    rows = norm(g, x, f"{block}.ffn_norm", h)
    return g.add(x, moe(g, rows, n, h.experts, beside=partial(_adjugate, g, rows, n, h)))


GROVE_MOE = variant_spec(
    "grovemoe",
    Variant(scaled=(*ATTENTION_SCALES, *EXPERT_SCALES)),
    also=("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_chexps.weight"),
    hparams=GroveMoeHparams,
    build=partial(build, layer=_layer),
    checkpoint=CHECKPOINT,
)
