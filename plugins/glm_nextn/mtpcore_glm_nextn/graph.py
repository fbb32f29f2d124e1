"""The graphs of GLM-4.5, 4.6 and 4.7: trunk and NextN head share one layer."""

from mtpcore.plugin import (
    Experts,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    Value,
    attention_block,
    feed_forward,
    nextn_input,
    nextn_outputs,
    trunk_outputs,
)


class GlmHparams(Hparams, frozen=True, kw_only=True):
    """What GLM adds: experts, in all blocks but the first ones."""

    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed; by sigmoid where the file does not say."""
        return {"experts": Experts.read(fields, gate="sigmoid")}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: GlmHparams) -> Value:
    """Add attention and feed-forward of block n to the residual stream.

    ``post_attention_norm`` is the norm before the feed-forward part.
    """
    x = g.plus(x, attention_block(g, x, positions, n, h))
    f = g.rms_norm(x, f"blk.{n}.post_attention_norm.weight", h.norm_eps)
    return g.plus(x, feed_forward(g, f, n, h.experts))


def trunk(g: GraphBuilder, inputs: Inputs, h: GlmHparams) -> Outputs:
    """Build the trunk."""
    x = g.embed(inputs.tokens, "token_embd.weight", rows=True)
    for n in range(h.n_layers):
        x = layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    return trunk_outputs(g, x, h)


def head(g: GraphBuilder, inputs: Inputs, h: GlmHparams) -> Outputs:
    """Build the NextN head: token p meets the trunk's normed hidden row p - 1."""
    x = layer(g, nextn_input(g, inputs, h), inputs.positions, g.n, h)
    return nextn_outputs(g, x, h)
