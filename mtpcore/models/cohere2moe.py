"""Cohere 2 with experts (``cohere2moe``): shared and chosen experts count half each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from mtpcore.declarations.spec import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    SHARED_EXPERT_SCALES,
)
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.experts_and_windows import COHERE2_MOE as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    feed_forward,
    norm,
    variant_spec,
)

__all__ = ["COHERE2_MOE", "Cohere2MoeHparams", "cohere2moe_layer"]


def _rotates(h: VariantHparams, n: int) -> bool:
    """Rotate in layers with a window, in the dense ones before those with experts, and in heads."""
    return h.kinds[n].window > 0 or not h.n_dense_layers <= n < h.n_layers


class Cohere2MoeHparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: norms are RMS norms where the file has an epsilon for these."""

    @classmethod
    def read_variant(
        cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]
    ) -> Cohere2MoeHparams:
        """Read the metadata; see ``VariantHparams.read_variant``."""
        if fields.get("{arch}.attention.layer_norm_rms_epsilon", float, 0.0):
            variant = replace(variant, norm="rms")
        return super().read_variant(variant, fields, tensors)


def cohere2moe_layer(
    g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams
) -> Value:
    """Add attention and feed-forward part, which read the same rows, to the residual stream."""
    a = norm(g, x, f"blk.{n}.attn_norm", h)
    y = feed_forward(g, a, n, h)
    if g.has(f"blk.{n}.ffn_gate_shexp.weight"):
        y = g.scale(y, 0.5)
    return g.add(g.add(y, x), attention(g, a, positions, n, h))


COHERE2_MOE = variant_spec(
    "cohere2moe",
    Variant(
        rope_style="pairs",
        norm="layer",
        rotates=_rotates,
        experts_gate="sigmoid",
        normalises=None,
        window_period=4,
        is_full_first=True,
        logit_scale=lambda h: 1.0,
        scaled=(
            *(name for name in ATTENTION_SCALES if name != "output"),
            *FEED_FORWARD_SCALES,
            *EXPERT_SCALES,
            *SHARED_EXPERT_SCALES,
        ),
    ),
    hparams=Cohere2MoeHparams,
    build=partial(build, layer=cohere2moe_layer),
    checkpoint=CHECKPOINT,
)
