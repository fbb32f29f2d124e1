"""Decoders with layers of Mamba-2 alone, in place of attention, or beside it.

Mamba-2 itself, Granite 4 and Bamba, Falcon-H1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec

from mtpcore.declarations.spec import ATTENTION_SCALES
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints import mamba2 as checkpoints
from mtpcore.models.hybrid import check_kernels, count_heads_once
from mtpcore.models.ssm import SSM_EXACT, SSM_SCALES, Ssm, mamba2
from mtpcore.models.variants import (
    H,
    LayerFunction,
    Variant,
    VariantHparams,
    attention,
    build,
    layer,
    norm,
    variant_spec,
)

__all__ = [
    "FALCON_H1",
    "GRANITE_HYBRID",
    "MAMBA2",
    "MambaHparams",
    "pure_layer",
    "without_heads",
]


class MambaHparams(VariantHparams, frozen=True, kw_only=True):
    """What layers of Mamba-2 add."""

    ssm: Ssm | None = None

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a family's metadata, and check that convolutions are as long as it says."""
        check_kernels(fields, tensors, "ssm_conv1d.weight", "{arch}.ssm.conv_kernel")
        h = super().read_variant(variant, count_heads_once(fields), tensors)
        return msgspec.structs.replace(h, ssm=Ssm.read(fields))


def _mixed(g: GraphBuilder, a: Value, positions: Value, n: int, h: MambaHparams) -> Value:
    """Return what attention, a layer of Mamba-2, or both add, by the tensors of a block."""
    has_attention = g.has(f"blk.{n}.attn_output.weight")
    if h.ssm is None or not g.has(f"blk.{n}.ssm_in.weight"):
        return attention(g, a, positions, n, h)
    y = mamba2(g, a, n, h, h.ssm)
    return g.add(attention(g, a, positions, n, h), y) if has_attention else y


_build = partial(build, layer=partial(layer, mixer=_mixed))
_SCALED = (*ATTENTION_SCALES, *SSM_SCALES)


def _recurrent(g: GraphBuilder, a: Value, positions: Value, n: int, h: MambaHparams) -> Value:
    assert h.ssm is not None
    return mamba2(g, a, n, h, h.ssm)


def pure_layer(
    g: GraphBuilder, x: Value, positions: Value, n: int, h: H, *, mixer: LayerFunction[H]
) -> Value:
    """Add what stands in place of attention to the residual stream: the layer has nothing else."""
    return g.add(x, mixer(g, norm(g, x, f"blk.{n}.attn_norm", h), positions, n, h))


def without_heads(fields: Fields) -> Fields:
    """Return metadata with a head, which no layer has."""
    keys = "{arch}.attention.head_count", "{arch}.attention.head_count_kv"
    return fields if fields.get(keys[0], int, 0) else fields.replace(dict.fromkeys(keys, 1))


GRANITE_HYBRID = variant_spec(
    "granitehybrid",
    Variant(
        rope_style="pairs",
        rotates_by="{arch}.rope.scaling.finetuned",
        embedding_scale=lambda h: 1.0,
        residual_scale=lambda h: 1.0,
        logit_scale=lambda h: 1.0,
        divides_logits=True,
        scaled=_SCALED,
    ),
    hparams=MambaHparams,
    build=_build,
    min_types=(SSM_EXACT,),
    unread=(("rope_freqs.weight", "in most models no layer rotates"),),
    checkpoint=checkpoints.GRANITE_HYBRID,
    layouts=(checkpoints.BAMBA,),
)
FALCON_H1 = variant_spec(
    "falcon-h1",
    Variant(ignored=("rope_freqs.weight", "blk.{n}.attn_output.bias"), scaled=_SCALED),
    hparams=MambaHparams,
    build=_build,
    min_types=(SSM_EXACT,),
    checkpoint=checkpoints.FALCON_H1,
)
MAMBA2 = variant_spec(
    "mamba2",
    Variant(scaled=("output", *SSM_SCALES)),
    hparams=MambaHparams,
    build=partial(build, layer=partial(pure_layer, mixer=_recurrent)),
    adapt=without_heads,
    min_types=(SSM_EXACT,),
    checkpoint=checkpoints.MAMBA2,
)
