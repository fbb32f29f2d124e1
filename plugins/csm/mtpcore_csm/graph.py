"""The graphs of CSM: Llama's layers in the backbone and in the depth decoder.

Schalkwyk et al., "Crossing the uncanny valley of conversational voice" (Sesame, 2025); the layers'
order is that of transformers' ``modeling_csm``.
"""

from mtpcore.plugin import (
    CodebookHparams,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    Value,
    attention_block,
    decoder,
    depth_decoder,
    feed_forward_block,
)


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Hparams) -> Value:
    """Add attention and feed-forward of block n to the residual stream."""
    x = g.add(x, attention_block(g, x, positions, n, h, factors="rope_freqs.weight"))
    return g.add(x, feed_forward_block(g, x, n, h))


def backbone(g: GraphBuilder, inputs: Inputs, h: CodebookHparams) -> Outputs:
    """Build the backbone: a row is a text token, a frame of codes, or both."""
    tokens = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    codes = g.embed_codes(inputs.codes(h.n_codebooks), "audio_embd.weight")
    return decoder(g, inputs, h, layer, g.add(tokens, codes))


def depth(g: GraphBuilder, inputs: Inputs, h: CodebookHparams) -> Outputs:
    """Build the depth decoder."""
    return depth_decoder(g, inputs, h, layer)
