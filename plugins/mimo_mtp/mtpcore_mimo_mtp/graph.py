"""The graphs of MiMo-V2: trunk and heads share one layer, which sees all or a sliding window."""

from mtpcore.plugin import (
    Experts,
    Fields,
    GraphBuilder,
    Inputs,
    MixedHparams,
    Outputs,
    Value,
    attention_block,
    decoder,
    feed_forward_block,
    nextn_input,
    nextn_outputs,
)


class Mimo2Hparams(MixedHparams, frozen=True, kw_only=True):
    """What MiMo-V2 adds: a factor on what attention adds, and experts."""

    value_scale: float = 1.0
    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read each block's kind, the factor, and how experts are routed."""
        return {
            **super().read_more(fields),
            "value_scale": fields.get("{arch}.attention.value_scale", float, 1.0),
            "experts": Experts.read(fields, gate="sigmoid", normalise=True),
        }


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Mimo2Hparams) -> Value:
    """Add attention and feed-forward of block n to the residual stream."""
    sinks = f"blk.{n}.attn_sinks.weight"
    y = attention_block(g, x, positions, n, h, kind=h.kinds[n], sinks=sinks)
    x = g.add(x, y if h.value_scale == 1 else g.scale(y, h.value_scale))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def trunk(g: GraphBuilder, inputs: Inputs, h: Mimo2Hparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def head(g: GraphBuilder, inputs: Inputs, h: Mimo2Hparams) -> Outputs:
    """Build a head: token p meets the trunk's row p - 1 before its final norm."""
    x = layer(g, nextn_input(g, inputs, h), inputs.positions, g.n, h)
    return nextn_outputs(g, x, h, residual=x)
