"""A NextN head after a Llama trunk: the graph."""

from mtpcore.plugin import GraphBuilder, Hparams, Inputs, Outputs, attention_block, swiglu


def head(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build the head; ``{n}`` in a name is its block, ``h`` are the trunk's hyper-parameters."""
    n = g.n
    token = g.embed(inputs.tokens, "blk.{n}.nextn.embed_tokens.weight")
    token = g.rms_norm(token, "blk.{n}.nextn.enorm.weight", h.norm_eps)
    hidden = g.rms_norm(inputs["hidden"], "blk.{n}.nextn.hnorm.weight", h.norm_eps)
    x = g.matmul(g.concat(token, hidden), "blk.{n}.nextn.eh_proj.weight")
    x = g.add(x, attention_block(g, x, inputs.positions, n, h, factors="rope_freqs.weight"))
    x = g.add(x, swiglu(g, g.rms_norm(x, "blk.{n}.ffn_norm.weight", h.norm_eps), n))
    u = g.rms_norm(x, "blk.{n}.nextn.shared_head_norm.weight", h.norm_eps)
    logits = g.matmul(g.output_rows(u), "blk.{n}.nextn.shared_head_head.weight")
    return Outputs(logits=logits, hidden=u)
