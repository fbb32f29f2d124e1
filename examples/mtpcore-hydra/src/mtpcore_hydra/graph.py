"""A head of Hydra, the layer that goes before the heads, and what both are built with."""

import msgspec

from mtpcore.plugin import (
    Count,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    attention_block,
    feed_forward_block,
)


class HydraHparams(Hparams, frozen=True, kw_only=True):
    """Sizes of the target, which those of the heads are.

    ``n_residual`` are the blocks of a head, ``state_length`` the values that heads hand on: the
    target's row and the embeddings of all tokens but the last head's own.
    """

    n_residual: Count = msgspec.field(name="residual_block_count", default=1)
    state_length: Count

    @property
    def target_width(self) -> int:
        """Width of the target's rows."""
        return self.width


def head(g: GraphBuilder, inputs: Inputs, h: HydraHparams) -> Outputs:
    """Draft after the row and the tokens so far: head n reads n + 1 of them.

    The first block narrows all of these to a row, by a matrix where others have their input. In the
    state that is handed on, places of tokens to come hold this head's.
    """
    token = g.embed(inputs.tokens, "token_embd.weight")
    known = g.slice(inputs["state"], 0, (g.n + 1) * h.width)
    path = g.concat(known, token)
    x = g.matmul(path, "blk.{n}.hydra.residual.weight", "blk.{n}.hydra.residual.bias")
    for b in range(h.n_residual):
        block = f"blk.{{n}}.hydra.{b}"
        y = g.matmul(x if b else path, f"{block}.weight", f"{block}.bias")
        x = g.add(x, g.activation(y, "silu"))
    logits = g.matmul(g.output_rows(x), "blk.{n}.output.weight", "blk.{n}.output.bias")
    state = g.slice(g.concat(path, *[token] * h.n_layers), 0, h.state_length)
    return Outputs(logits=logits, state=state)


def prefix(g: GraphBuilder, inputs: Inputs, h: HydraHparams) -> Outputs:
    """Let each row of the target read those before it, in a layer like the target's own."""
    x = inputs["hidden"]
    with g.within("prefix."):
        x = g.add(x, attention_block(g, x, inputs.positions, 0, h))
        x = g.add(x, feed_forward_block(g, x, 0, h))
        return Outputs(prefix=g.rms_norm(x, "output_norm.weight", h.norm_eps))
