"""NextN heads whose layer is the family's own: those of trunks that are a variant of Llama's."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from mtpcore.declarations.spec import DrafterSpec, Heads
from mtpcore.graph import GraphBuilder, Inputs, Outputs
from mtpcore.models.checkpoints.experts import HY_V3_NEXTN
from mtpcore.models.checkpoints.experts_and_windows import COHERE2_MOE_NEXTN, EXAONE_MOE_NEXTN
from mtpcore.models.checkpoints.gated_attention import STEP35_NEXTN
from mtpcore.models.checkpoints.own_code import BAILING_MOE2_NEXTN
from mtpcore.models.cohere2moe import cohere2moe_layer
from mtpcore.models.nextn import LAYER_NORM_TIES, nextn_spec
from mtpcore.models.step35 import step35_layer
from mtpcore.models.variants import H, LayerFunction, layer, norm

__all__ = ["HEADS", "variant_head"]


def variant_head(g: GraphBuilder, inputs: Inputs, h: H, *, layer: LayerFunction[H]) -> Outputs:
    """Build a head as ``nextn_head`` does, with the family's norms and its factor of logits."""
    token = g.embed(inputs.tokens, "blk.{n}.nextn.embed_tokens.weight", embeddings=True)
    token = norm(g, token, "blk.{n}.nextn.enorm", h)
    hidden = norm(g, inputs["hidden"], "blk.{n}.nextn.hnorm", h)
    x = g.matmul(g.concat(token, hidden), "blk.{n}.nextn.eh_proj.weight")
    x = layer(g, x, inputs.positions, g.n, h)
    hidden = norm(g, x, "blk.{n}.nextn.shared_head_norm", h)
    logits = g.matmul(g.output_rows(hidden), "blk.{n}.nextn.shared_head_head.weight")
    if h.logit_scale != 1:
        logits = g.scale(logits, h.logit_scale)
    return Outputs(logits=logits, hidden=hidden, residual=x)


def _head(
    architecture: str,
    layer: LayerFunction[H],
    state: Literal["hidden", "residual"] = "hidden",
    order: Literal["repeated", "each-step"] = "repeated",
    **more: Any,
) -> DrafterSpec:
    head = partial(variant_head, layer=layer)
    return nextn_spec(architecture, head, state=state, heads=Heads(order=order), **more)


HEADS = [
    _head(
        "bailingmoe2",
        layer,
        ties=LAYER_NORM_TIES,
        source="SGLang's BailingMoEModelNextN",
        checkpoint=BAILING_MOE2_NEXTN,
    ),
    _head("cohere2moe", cohere2moe_layer, checkpoint=COHERE2_MOE_NEXTN),
    # TensorRT-LLM's is as K-EXAONE's configuration says, ``mtp_layer_types``: the head sees all
    # tokens and rotates nothing.
    _head(
        "exaone-moe",
        layer,
        source="TensorRT-LLM's ExaoneMoeMTP",
        checkpoint=EXAONE_MOE_NEXTN,
    ),
    _head("hy_v3", layer, checkpoint=HY_V3_NEXTN),
    _head("step35", step35_layer, "residual", "each-step", checkpoint=STEP35_NEXTN),
]
"""Declarations, in no order."""
