"""Qwen2 and Qwen2.5: q, k and v have biases, rotation pairs lie half a head apart."""

from __future__ import annotations

from mtpcore.checkpoint import Checkpoint
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, attention_block, swiglu, trunk_outputs
from mtpcore.models.hparams import Hparams
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    DECODER,
    ROPE_KEYS,
    SWIGLU,
    TABLES,
    block_renames,
)
from mtpcore.spec import Fit, ModelSpec

__all__ = ["QWEN2", "build"]


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Hparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.plus(x, attention_block(g, x, positions, n, h))
    f = g.rms_norm(x, f"blk.{n}.ffn_norm.weight", h.norm_eps)
    return g.plus(x, swiglu(g, f, n))


def build(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build the trunk."""
    x = g.embed(inputs.tokens, "token_embd.weight", rows=True)
    for n in range(h.n_layers):
        x = layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    return trunk_outputs(g, x, h)


QWEN2 = ModelSpec(
    name="qwen2",
    fit=Fit(
        architectures=frozenset({"qwen2"}), tensors=("token_embd.weight", "output_norm.weight")
    ),
    hparams=Hparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    checkpoint=Checkpoint(
        architectures=frozenset({"Qwen2ForCausalLM"}),
        tensors=(
            *TABLES,
            *ATTENTION,
            *BIASES,
            *SWIGLU,
            *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
        ),
        metadata=(*DECODER, *ROPE_KEYS),
    ),
)
