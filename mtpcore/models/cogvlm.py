"""CogVLM (``cogvlm``): a Llama whose rows of an image go through matrices of their own.

Those rows are refused: which matrices a row meets would depend on what it is.
"""

from __future__ import annotations

from mtpcore.graph import GraphBuilder, Inputs, Outputs
from mtpcore.models.checkpoints.vision import COGVLM as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    layer,
    outputs,
    run_layers,
    variant_spec,
)

__all__ = ["COGVLM"]


def _build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    x = g.embed(inputs.tokens, "token_embd.weight")
    return outputs(g, run_layers(g, x, inputs, h, layer), h)


COGVLM = variant_spec(
    "cogvlm",
    Variant(ignored=("rope_freqs.weight",), scaled=("blk.{n}.attn_output", "output")),
    build=_build,
    checkpoint=CHECKPOINT,
    unread=(("blk.{n}.vis_*", "matrices for rows of images, which the graph does not take"),),
)
