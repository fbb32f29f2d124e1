"""Nemotron-H, Nemotron Nano 2 and 3: each layer is one of Mamba-2, attention or feed-forward."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from mtpcore.declarations.spec import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    SHARED_EXPERT_SCALES,
)
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import moe, relu_squared
from mtpcore.models.checkpoints import mamba2 as checkpoints
from mtpcore.models.mamba2 import MambaHparams
from mtpcore.models.nextn import nextn_fit, nextn_input, nextn_spec
from mtpcore.models.ssm import SSM_EXACT, SSM_SCALES, mamba2
from mtpcore.models.variants import Variant, attention, build, feed_forward, norm, variant_spec

__all__ = [
    "NEMOTRON_H",
    "NEMOTRON_H_HEAD",
    "NEMOTRON_H_MOE",
    "NemotronHparams",
    "head",
    "nemotron_experts",
]

_EPS = "{arch}.attention.layer_norm_rms_epsilon"


class NemotronHparams(MambaHparams, frozen=True, kw_only=True):
    """What the head adds: the constant of its layer norm."""

    layer_norm_eps: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="attention.layer_norm_epsilon", default=1e-5
    )


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: MambaHparams) -> Value:
    """Add layer n, of whichever kind, to the residual stream."""
    block = f"blk.{n}"
    a = norm(g, x, f"{block}.attn_norm", h)
    if h.ssm is not None and g.has(f"{block}.ssm_in.weight"):
        y = mamba2(g, a, n, h, h.ssm)
    elif g.has(f"{block}.attn_output.weight"):
        y = attention(g, a, positions, n, h)
    elif g.has(f"{block}.ffn_gate_inp.weight"):
        y = nemotron_experts(g, a, n, h)
    else:
        y = feed_forward(g, a, n, h)
    return g.add(x, y)


def nemotron_experts(g: GraphBuilder, x: Value, n: int, h: MambaHparams) -> Value:
    """Return what experts without gates, and the shared one, make of normed rows.

    Experts may read and write narrower rows than the router and the shared expert, between
    ``ffn_latent_down`` and ``ffn_latent_up``.
    """
    block = f"blk.{n}."
    assert h.experts is not None
    has_latent = g.has(block + "ffn_latent_down.weight")
    rows = g.matmul(x, block + "ffn_latent_down.weight") if has_latent else x
    y = moe(g, rows, n, h.experts, routed=x, ungated=partial(relu_squared, g))
    if has_latent:
        y = g.matmul(y, block + "ffn_latent_up.weight")
    shared = relu_squared(g, g.matmul(x, block + "ffn_up_shexp.weight"))
    return g.add(y, g.matmul(shared, block + "ffn_down_shexp.weight"))


def _with_one_eps(fields: Fields) -> Fields:
    """Return metadata in which norms have a constant; files may have that of layer norms only."""
    if _EPS in fields:
        return fields
    return fields.replace({_EPS: fields.require("{arch}.attention.layer_norm_epsilon", float)})


def head(g: GraphBuilder, inputs: Inputs, h: NemotronHparams) -> Outputs:
    """Build the MTP head: attention, then experts, in one block; its last norm is a layer norm."""
    block, x = f"blk.{g.n}", nextn_input(g, inputs, h)
    a = norm(g, x, f"{block}.attn_norm", h)
    x = g.add(x, attention(g, a, inputs.positions, g.n, h))
    f = norm(g, x, f"{block}.post_attention_norm", h)
    x = g.add(x, nemotron_experts(g, f, g.n, h))
    weight = "blk.{n}.nextn.shared_head_norm.weight"
    hidden = g.layer_norm(x, weight, None, h.layer_norm_eps)
    logits = g.matmul(g.output_rows(hidden), "blk.{n}.nextn.shared_head_head.weight")
    return Outputs(logits=logits, hidden=hidden)


NEMOTRON_H = variant_spec(
    "nemotron_h",
    Variant(
        rotates=lambda h, n: False,
        activation="relu_squared",
        experts_gate="sigmoid",
        normalises=None,
        scaled=(
            *ATTENTION_SCALES,
            *SSM_SCALES,
            *FEED_FORWARD_SCALES,
            *EXPERT_SCALES,
            *SHARED_EXPERT_SCALES,
        ),
    ),
    hparams=NemotronHparams,
    min_types=(SSM_EXACT,),
    build=partial(build, layer=_layer),
    adapt=_with_one_eps,
    unread=(("{arch}.moe_latent_size", "the matrices are so wide"),),
    checkpoint=checkpoints.NEMOTRON_H,
)
NEMOTRON_H_MOE = msgspec.structs.replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    fit=msgspec.structs.replace(NEMOTRON_H.fit, architectures=frozenset({"nemotron_h_moe"})),
    checkpoint=checkpoints.NEMOTRON_H_MOE,
)
NEMOTRON_H_HEAD = nextn_spec(
    "nemotron_h_moe",
    head,
    fit=nextn_fit("nemotron_h_moe", also=("blk.{n}.nextn.shared_head_norm.weight",)),
    checkpoint=checkpoints.NEMOTRON_H_NEXTN,
)
