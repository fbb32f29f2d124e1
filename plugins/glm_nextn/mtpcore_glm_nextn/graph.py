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
    decoder,
    feed_forward_block,
    nextn_head,
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
    x = g.add(x, attention_block(g, x, positions, n, h))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts, norm="post_attention_norm"))


def trunk(g: GraphBuilder, inputs: Inputs, h: GlmHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def head(g: GraphBuilder, inputs: Inputs, h: GlmHparams) -> Outputs:
    """Build the NextN head: token p meets the trunk's normed hidden row p - 1."""
    return nextn_head(g, inputs, h, layer)
