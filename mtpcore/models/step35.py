"""Step 3.5 (``step35``): heads are gated, and gates are cut after their activation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import ROPE_FACTORS, moe, swiglu
from mtpcore.models.checkpoints.gated_attention import STEP35 as CHECKPOINT
from mtpcore.models.variants import (
    Limit,
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["STEP35", "Step35Hparams", "step35_layer"]


_LOWEST = 0.2785
"""No SiLU is below its negative: with limits from there on a cut on both sides is one above."""


class Step35Hparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: limits of each layer's gates, of experts and of all others; 0 for none."""

    limits: tuple[tuple[float, float], ...] = ()

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read the metadata; see ``VariantHparams.read_variant``.

        Layers that see all rotate half of what the file says, the others all of it; of a head
        where it says nothing.
        """
        key = "{arch}.rope.dimension_count"
        width = fields.get(key, Count, 0) or fields.require("{arch}.attention.key_length", Count)
        near = fields.get(f"{key}_swa", Count, width)
        h = super().read_variant(
            variant, fields.replace({key: width // 2, f"{key}_swa": near}), tensors
        )
        limits = (_read_limits(fields, name, h.n_blocks) for name in ("exp", "shexp"))
        return replace(h, limits=tuple(zip(*limits, strict=True)))


def _read_limits(fields: Fields, name: str, n_blocks: int) -> list[float]:
    key = f"{{arch}}.swiglu_clamp_{name}"
    limits = fields.per_layer(key, n_blocks, Limit, 0.0)
    if any(0 < limit < _LOWEST for limit in limits):
        raise fields.error(
            key, "limits so low are not supported", wanted=f"0 or {_LOWEST} and more", got=limits
        )
    return limits


def _gated(g: GraphBuilder, gate: Value, up: Value, limit: float) -> Value:
    """Return silu(gate), at most the limit, times up, cut to it on both sides."""
    if not limit:
        return g.gated(gate, up)
    return g.mul(g.clamp(g.activation(gate, "silu"), limit), g.clamp(up, limit))


def step35_layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Step35Hparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    block = f"blk.{n}"
    own = h
    if h.kinds[n].window:  # factors are for layers that see all
        own = replace(h, variant=replace(h.variant, ignored=(ROPE_FACTORS,)))
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, own))
    rows = norm(g, x, f"{block}.ffn_norm", h)
    gated, gated_elsewhere = (partial(_gated, g, limit=limit) for limit in h.limits[n])
    if h.experts is None or not g.has(f"{block}.ffn_gate_inp.weight"):
        return g.add(x, swiglu(g, rows, n, gated=gated_elsewhere))
    return g.add(x, moe(g, rows, n, h.experts, gated=gated, shared_gated=gated_elsewhere))


STEP35 = variant_spec(
    "step35",
    Variant(
        experts_gate="sigmoid",
        normalises=None,
        window_period=0,
        near_base=1e4,
        near_is_scaled=False,
    ),
    hparams=Step35Hparams,
    build=partial(build, layer=step35_layer),
    checkpoint=CHECKPOINT,
)
