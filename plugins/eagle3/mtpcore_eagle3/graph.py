"""The two graphs of EAGLE-3: a fusion of the target's taps, and one layer that drafts.

What they are made of, and where it comes from, is in ``mtpcore.models.fused_heads``.
"""

from collections.abc import Mapping
from typing import Any, Self

from mtpcore.plugin import (
    Fields,
    FusedHparams,
    GraphBuilder,
    Inputs,
    Outputs,
    fuse_taps,
    fused_layer,
)


class Eagle3Hparams(FusedHparams, frozen=True, kw_only=True):
    """Hyper-parameters of a head of one layer."""

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read the metadata; refuse more layers than the graph has."""
        made = super().read(fields, tensors)
        if made.n_layers != 1:
            raise fields.error(
                "{arch}.block_count", "an EAGLE-3 head has one layer", wanted=1, got=made.n_layers
            )
        return made


def fusion(g: GraphBuilder, inputs: Inputs, h: Eagle3Hparams) -> Outputs:
    """Make one row of the target's taps at a position."""
    return Outputs(fused=fuse_taps(g, inputs["taps"], h))


def head(g: GraphBuilder, inputs: Inputs, h: Eagle3Hparams) -> Outputs:
    """Build the layer that drafts: token p meets the fused row p - 1.

    In later steps the layer's own output is that row, not fused again: EAGLE-3's as it is,
    EAGLE-3.1's after the norm.
    """
    x = fused_layer(g, inputs.tokens, inputs["fused"], inputs.positions, h)
    hidden = g.rms_norm(x, "output_norm.weight", h.norm_eps)
    logits = g.matmul(g.output_rows(hidden), "output.weight")
    return Outputs(logits=logits, recycled=hidden if h.norm_output else x)
