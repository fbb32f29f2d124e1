"""MiniMax-M3: GQA with norms of heads, and an indexer that chooses blocks of tokens."""

from __future__ import annotations

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.spec import ATTENTION_SCALES, ModelSpec
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, attention_block, moe, swiglu
from mtpcore.models.checkpoints.minimax import MINIMAX_M3 as CHECKPOINT
from mtpcore.models.decoder import decoder, trunk_fit
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.indexer import UNREAD_INDEXER, limit_to_chosen

__all__ = ["MINIMAX_M3", "MinimaxM3Hparams", "build"]

_GATE_LIMIT = 7.0  # a constant of the family, which files do not hold


class MinimaxM3Hparams(Hparams, frozen=True, kw_only=True):
    """What MiniMax-M3 adds: how many blocks, of how many tokens, an indexer chooses; experts."""

    n_chosen: Count = msgspec.field(name="attention.indexer.top_k")
    n_of_block: Count = msgspec.field(name="attention.indexer.block_size")
    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed."""
        return {"experts": Experts.read(fields, gate="sigmoid")}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: MinimaxM3Hparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""

    def gated(gate: Value, up: Value) -> Value:
        return g.gated(gate, up, "gelu_sigmoid", limit=_GATE_LIMIT, offset=1)

    x = g.add(x, attention_block(g, x, positions, n, h))
    f = g.rms_norm(x, f"blk.{n}.ffn_norm.weight", h.norm_eps)
    if h.experts is not None and g.has(f"blk.{n}.ffn_gate_inp.weight"):
        return g.add(x, moe(g, f, n, h.experts, gated=gated, shared_gated=gated))
    return g.add(x, swiglu(g, f, n, gated=gated))


def build(g: GraphBuilder, inputs: Inputs, h: MinimaxM3Hparams) -> Outputs:
    """Build the trunk."""
    limit_to_chosen(g, h.n_chosen * h.n_of_block)
    return decoder(g, inputs, h, layer)


MINIMAX_M3 = ModelSpec(
    name="minimax-m3",
    fit=trunk_fit("minimax-m3"),
    hparams=MinimaxM3Hparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    scaled=ATTENTION_SCALES,
    unread=UNREAD_INDEXER,
    checkpoint=CHECKPOINT,
)
