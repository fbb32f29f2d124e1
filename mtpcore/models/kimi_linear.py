"""Kimi Linear: hybrids of Kimi Delta Attention and latent attention without rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from mtpcore.declarations.spec import ModelSpec
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, feed_forward_block
from mtpcore.models.checkpoints.delta_attention import KIMI_LINEAR as CHECKPOINT
from mtpcore.models.decoder import decoder, trunk_fit
from mtpcore.models.hparams import Experts
from mtpcore.models.hybrid import HybridHparams, times_scale
from mtpcore.models.kda import KDA_EXACT, KDA_UNREAD, check_kda, delta_attention
from mtpcore.models.mla import Mla, mla_attention

__all__ = ["KIMI_LINEAR", "KimiLinearHparams", "build"]


class KimiLinearHparams(HybridHparams, frozen=True, kw_only=True):
    """What Kimi Linear adds: latent attention, and experts in all blocks but the first ones."""

    mla: Mla = Mla()
    experts: Experts | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata, and check that convolutions are as long as it says."""
        check_kda(fields, tensors)
        return super().read(fields, tensors)

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read the sizes of latent attention, and how experts are routed: always normalised."""
        experts = Experts.read(fields, gate="sigmoid")
        if experts is not None:
            experts = msgspec.structs.replace(experts, normalise=True)
        mla = msgspec.structs.replace(Mla.read(fields), rotates=False)
        return {"mla": mla, "experts": experts}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: KimiLinearHparams) -> Value:
    """Add attention of either kind, and feed-forward, of layer n to the residual stream."""
    a = g.rms_norm(x, f"blk.{n}.attn_norm.weight", h.norm_eps)
    if g.has(f"blk.{n}.ssm_a"):
        y = delta_attention(g, a, n, h)
    else:
        y = mla_attention(g, a, positions, n, h, h.mla)
        y = times_scale(g, y, f"blk.{n}.attn_output")
    x = g.add(x, y)
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def build(g: GraphBuilder, inputs: Inputs, h: KimiLinearHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


KIMI_LINEAR = ModelSpec(
    name="kimi-linear",
    fit=trunk_fit("kimi-linear"),
    hparams=KimiLinearHparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE, KDA_EXACT),
    scaled=(),
    unread=KDA_UNREAD,
    checkpoint=CHECKPOINT,
)
