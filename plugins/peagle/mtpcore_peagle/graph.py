"""The graphs of P-EAGLE, EAGLE-3's layers over rows that know no token yet, and of PARD.

P-EAGLE: 2026 (arXiv 2602.01469). What a head is made of is in ``mtpcore.models.fused_heads``.
"""

from mtpcore.plugin import (
    FusedHparams,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    Value,
    attention_block,
    feed_forward_block,
    fuse_taps,
    fused_layer,
)


def head(g: GraphBuilder, inputs: Inputs, h: FusedHparams) -> Outputs:
    """Build the layers: token p meets row p - 1 of the target, a mask token the row of masks."""
    row = fuse_taps(g, inputs["taps"], h)
    x = fused_layer(g, inputs.tokens, row, inputs.positions, h)
    return _outputs(g, _layers(g, x, inputs.positions, h, first=1), h)


def model(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build a decoder that was trained to draft after mask tokens."""
    x = g.embed(inputs.tokens, "token_embd.weight")
    return _outputs(g, _layers(g, x, inputs.positions, h), h)


def _layers(g: GraphBuilder, x: Value, positions: Value, h: Hparams, first: int = 0) -> Value:
    for n in range(first, h.n_layers):
        x = g.add(x, attention_block(g, x, positions, n, h, factors="rope_freqs.weight"))
        x = g.add(x, feed_forward_block(g, x, n, h))
    return x


def _outputs(g: GraphBuilder, x: Value, h: Hparams) -> Outputs:
    hidden = g.rms_norm(g.output_rows(x), "output_norm.weight", h.norm_eps)
    return Outputs(logits=g.matmul(hidden, "output.weight"))
