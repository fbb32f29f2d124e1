"""MPT (``mpt``): ALiBi or a table of positions, and projections that may be cut at a limit."""

from __future__ import annotations

from mtpcore.errors import GraphError
from mtpcore.graph import GraphBuilder, Inputs, Outputs
from mtpcore.models.checkpoints.gpt import MPT as CHECKPOINT
from mtpcore.models.variants import Variant, VariantHparams, build, variant_spec

__all__ = ["MPT"]

_NORM = "blk.0.attn_q_norm.weight"


def _build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    if g.has(_NORM):
        raise GraphError("layer norms of all queries together are not supported", where=_NORM)
    return build(g, inputs, h)


MPT = variant_spec(
    "mpt",
    Variant(
        norm="layer",
        activation="gelu_tanh",
        rotates=lambda h, n: False,
        alibi=lambda h: 0.0,
        clamps=True,
        ignored=("blk.{n}.attn_k_norm.weight", "blk.{n}.attn_k_norm.bias"),
    ),
    build=_build,
    checkpoint=CHECKPOINT,
)
