"""The graphs of DeepSeek-V2 and V3 and of GLM-4.7-Flash: trunk and MTP head share one layer."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from mtpcore.plugin import (
    Count,
    Experts,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    Mla,
    Outputs,
    Value,
    decoder,
    feed_forward_block,
    limit_to_chosen,
    mla_block,
    nextn_head,
    nextn_input,
    nextn_outputs,
)

SIGMOID = 2
GATE = "{arch}.expert_gating_func"


class DeepseekHparams(Hparams, frozen=True, kw_only=True):
    """What DeepSeek adds: latent attention, and experts in all blocks but the first ones."""

    rope_style = "pairs"
    raises_scores = True

    mla: Mla = Mla()
    experts: Experts | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read a model's metadata.

        Where older files do not say how experts are weighted, those whose routers have
        corrections (V3, GLM-4.7-Flash) do it by sigmoid, the others (V2) by softmax.
        """
        if not fields.get(GATE, int, 0) and any(
            name.endswith(".exp_probs_b.bias") for name in tensors
        ):
            fields = fields.replace({GATE: SIGMOID})
        return super().read(fields, tensors)

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read the sizes of latent attention, and how experts are routed."""
        return {"mla": Mla.read(fields), "experts": Experts.read(fields, gate="softmax")}


class IndexedHparams(DeepseekHparams, frozen=True, kw_only=True):
    """V3.2 and GLM-5, whose attention is sparse: an indexer chooses for each token what it sees.

    In contexts of up to ``top_k`` tokens it chooses all, and longer ones are refused.
    """

    top_k: Count = msgspec.field(name="attention.indexer.top_k")


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: DeepseekHparams) -> Value:
    """Add attention and feed-forward of block n to the residual stream."""
    x = g.add(x, mla_block(g, x, positions, n, h, h.mla))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def trunk(g: GraphBuilder, inputs: Inputs, h: DeepseekHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def indexed_trunk(g: GraphBuilder, inputs: Inputs, h: IndexedHparams) -> Outputs:
    """Build the trunk of a model with an indexer, as it is where the indexer chooses all tokens."""
    limit_to_chosen(g, h.top_k)
    return trunk(g, inputs, h)


def head(g: GraphBuilder, inputs: Inputs, h: DeepseekHparams) -> Outputs:
    """Build the MTP head: token p meets the trunk's hidden row p - 1."""
    return nextn_head(g, inputs, h, layer)


def residual_head(g: GraphBuilder, inputs: Inputs, h: DeepseekHparams) -> Outputs:
    """Build the head so that it also hands out the state before its norm, as ``residual``."""
    x = layer(g, nextn_input(g, inputs, h), inputs.positions, g.n, h)
    return nextn_outputs(g, x, h, residual=x)


def constant_head(g: GraphBuilder, inputs: Inputs, h: DeepseekHparams) -> Outputs:
    """Build the head so that it also hands out the row that it was fed, as ``fed``."""
    x = layer(g, nextn_input(g, inputs, h), inputs.positions, g.n, h)
    return nextn_outputs(g, x, h, fed=inputs["hidden"])
