"""Llama 4 (``llama4``): experts' shares multiply what they read, and not what they give.

Three layers of four see the chunk of 8192 tokens that a token is in, rotate queries and keys, and
norm them; in the others queries grow with their position. A longer context is refused: attention
here has no chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Self

import msgspec

from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import swiglu
from mtpcore.models.checkpoints.experts import LLAMA4 as CHECKPOINT
from mtpcore.models.variants import (
    QueryGrowth,
    Variant,
    VariantHparams,
    attention,
    build,
    feed_forward,
    norm,
    variant_spec,
)

__all__ = ["LLAMA4", "Llama4Hparams"]

_CHUNK = 8192
_WITHOUT_NORMS = 128
"""Experts of the model that norms no heads."""
_GROWTH = QueryGrowth(beta=0.1, n=_CHUNK, offset=1)
"""Of all models of the family; files say nothing of it."""


class Llama4Hparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters; where queries are rotated, they do not grow with their position."""

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read the metadata; see ``VariantHparams.read_variant``."""
        key = "{arch}.attention.sliding_window"
        if fields.get(key, int, _CHUNK) == 0:
            raise fields.error(key, "layers without chunks are not supported", wanted=_CHUNK, got=0)
        fields.dismiss("{arch}.attention.sliding_window_pattern", "{arch}.rope.freq_base_swa")
        fields.dismiss(*(f"{{arch}}.attention.temperature_{name}" for name in ("scale", "length")))
        if fields.get("{arch}.expert_count", int, 0) == _WITHOUT_NORMS:
            variant = msgspec.structs.replace(variant, head_norm="rms")
        h = super().read_variant(variant, fields, tensors)
        query_growth = tuple(None if _rotates(h, n) else _GROWTH for n in range(h.n_blocks))
        return msgspec.structs.replace(h, query_growth=query_growth)


def _rotates(h: VariantHparams, n: int) -> bool:
    return (n + 1) % 4 != 0


def _experts(g: GraphBuilder, x: Value, n: int, h: Llama4Hparams) -> Value:
    """Return the sum of the chosen experts, each of x times its share, and the shared one."""
    assert h.experts is not None
    block, n_used = f"blk.{n}", h.experts.n_used
    ids, shares = g.route(
        x, f"{block}.ffn_gate_inp.weight", n_used=n_used, gate="sigmoid", normalise=False
    )
    read = g.mul(g.repeat(g.split_heads(x, 1), n_used), shares)

    def multiply(rows: Value, name: str) -> Value:
        return g.expert_matmul(rows, ids, f"{block}.{name}.weight")

    y = g.gated(multiply(read, "ffn_gate_exps"), multiply(read, "ffn_up_exps"))
    y = g.merge_heads(multiply(y, "ffn_down_exps"))
    each = [g.slice(y, r * h.width, (r + 1) * h.width) for r in range(n_used)]
    return g.add(reduce(g.add, each), swiglu(g, x, n, "_shexp"))


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Llama4Hparams) -> Value:
    block = f"blk.{n}"
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    rows = norm(g, x, f"{block}.ffn_norm", h)
    has_experts = g.has(f"{block}.ffn_gate_inp.weight")
    return g.add(x, _experts(g, rows, n, h) if has_experts else feed_forward(g, rows, n, h))


def _build(g: GraphBuilder, inputs: Inputs, h: Llama4Hparams) -> Outputs:
    g.limit_context(_CHUNK, "attention within chunks of so many tokens is not supported")
    return build(g, inputs, h, layer=_layer)


LLAMA4 = variant_spec(
    "llama4",
    Variant(rope_style="pairs", rotates=_rotates, norms_rotated=True, head_norm="plain_rms"),
    hparams=Llama4Hparams,
    build=_build,
    checkpoint=CHECKPOINT,
)
