"""The two graphs of EAGLE-3: a fusion of the target's taps, and one layer that drafts.

Li, Wei, Zhang, Zhang: EAGLE-3, 2025 (arXiv 2503.01840). Names are llama.cpp's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from mtpcore.plugin import (
    Count,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    attention,
    swiglu,
)


class Eagle3Hparams(Hparams, frozen=True, kw_only=True):
    """What EAGLE-3 adds: the width of the target's rows, and where norms stand."""

    # Converters reorder q and k so that the halves of a pair are neighbours.
    rope_style: ClassVar[str] = "pairs"

    target_width: Count = msgspec.field(name="target_hidden_size")
    norm_before_residual: bool = False
    norm_before_fc: bool = False

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
    x = inputs["taps"]
    if h.norm_before_fc:
        x = g.rms_norm(x, "enc.output_norm.weight", h.norm_eps)
    return Outputs(fused=g.matmul(x, "fc.weight"))


def head(g: GraphBuilder, inputs: Inputs, h: Eagle3Hparams) -> Outputs:
    """Build the layer that drafts: token p meets the fused row p - 1.

    In later steps the layer's own output, not normed and not fused again, is that row.
    """
    row = inputs["fused"]
    token = g.embed(inputs.tokens, "token_embd.weight")
    token = g.rms_norm(token, "blk.0.attn_norm.weight", h.norm_eps)
    normed = g.rms_norm(row, "blk.0.attn_norm_2.weight", h.norm_eps)
    pair = g.concat(token, normed)
    x = normed if h.norm_before_residual else row
    x = g.add(x, attention(g, pair, inputs.positions, 0, h, factors="rope_freqs.weight"))
    x = g.add(x, swiglu(g, g.rms_norm(x, "blk.0.ffn_norm.weight", h.norm_eps), 0))
    hidden = g.rms_norm(x, "output_norm.weight", h.norm_eps)
    return Outputs(logits=g.matmul(g.output_rows(hidden), "output.weight"), residual=x)
