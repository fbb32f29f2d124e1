"""The plainest decoder: attention, then a dense feed-forward part, in every layer."""

from __future__ import annotations

from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import attention_block, swiglu, trunk_outputs
from mtpcore.models.hparams import Hparams

__all__ = ["dense_layer", "dense_trunk"]


def dense_layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Hparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.plus(x, attention_block(g, x, positions, n, h))
    f = g.rms_norm(x, f"blk.{n}.ffn_norm.weight", h.norm_eps)
    return g.plus(x, swiglu(g, f, n))


def dense_trunk(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build a trunk of such layers."""
    x = g.embed(inputs.tokens, "token_embd.weight", rows=True)
    for n in range(h.n_layers):
        x = dense_layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    return trunk_outputs(g, x, h)
