"""Apertus (``apertus``): feed-forward parts without a gate, with an activation of each layer's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec
from msgspec.structs import replace

from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.dense import APERTUS as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    norm,
    variant_spec,
)

__all__ = ["APERTUS", "ApertusHparams", "Xielu", "apertus_layer"]


class Xielu(msgspec.Struct, frozen=True):
    """A layer's activation, by the arguments of ``GraphBuilder.xielu``."""

    alpha_p: float
    alpha_n: float
    beta: float
    eps: float


class ApertusHparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: each layer's activation."""

    activations: tuple[Xielu, ...] = ()

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read the metadata; see ``VariantHparams.read_variant``.

        Files hold both alphas as they are trained: their softplus counts, and of the one below 0
        what it is above beta.
        """
        h = super().read_variant(variant, fields, tensors)
        columns = (
            fields.per_layer(f"xielu.{name}", h.n_blocks, float)
            for name in ("alpha_p", "alpha_n", "beta", "eps")
        )
        activations = (
            Xielu(_softplus(alpha_p), beta + _softplus(alpha_n), beta, eps)
            for alpha_p, alpha_n, beta, eps in zip(*columns, strict=True)
        )
        return replace(h, activations=tuple(activations))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def apertus_layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: ApertusHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    block = f"blk.{n}"
    x = g.add(x, attention(g, norm(g, x, f"{block}.attn_norm", h), positions, n, h))
    up = g.matmul(norm(g, x, f"{block}.ffn_norm", h), f"{block}.ffn_up.weight")
    own = h.activations[n]
    y = g.xielu(up, alpha_p=own.alpha_p, alpha_n=own.alpha_n, beta=own.beta, eps=own.eps)
    return g.add(x, g.matmul(y, f"{block}.ffn_down.weight"))


APERTUS = variant_spec(
    "apertus",
    Variant(),
    hparams=ApertusHparams,
    build=partial(build, layer=apertus_layer),
    checkpoint=CHECKPOINT,
)
