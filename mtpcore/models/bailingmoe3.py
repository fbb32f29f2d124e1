"""Ling 3.0: hybrids of Kimi Delta Attention and gated latent attention, with experts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Self

import msgspec

from mtpcore.boundary.sizes import Depth
from mtpcore.declarations.spec import ModelSpec
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, moe, swiglu
from mtpcore.models.checkpoints import delta_attention as checkpoints
from mtpcore.models.decoder import decoder, trunk_fit
from mtpcore.models.hparams import Experts
from mtpcore.models.hybrid import HybridHparams
from mtpcore.models.kda import KDA_EXACT, KDA_UNREAD, check_kda, delta_attention
from mtpcore.models.mla import Mla, mla_attention
from mtpcore.models.nextn import LAYER_NORM_TIES, nextn_head, nextn_spec
from mtpcore.models.rope import Style
from mtpcore.models.variants import Limit

__all__ = ["BAILING_MOE3", "BAILING_MOE3_HEAD", "BailingMoe3Hparams", "build", "head"]

_LEAST_LIMIT = 0.3
"""A SiLU is above -0.28, so that a limit from here on cuts none of its values from below."""


class BailingMoe3Hparams(HybridHparams, frozen=True, kw_only=True):
    """What Ling 3.0 adds: latent attention, experts, and limits of activations.

    Attributes
    ----------
    decay_bound : float
        The least logarithm of a decay.
    limits, shared_limits : tuple of float
        Of each block's experts and shared expert: a gate after its SiLU is at most as large, and
        what it multiplies no larger in magnitude; 0: there is none.
    """

    rope_style: ClassVar[Style] = "pairs"

    decay_bound: Annotated[float, msgspec.Meta(lt=0)] = msgspec.field(name="kda.gate_lower_bound")
    mla: Mla = Mla()
    experts: Experts | None = None
    limits: tuple[float, ...] = ()
    shared_limits: tuple[float, ...] = ()

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata, and check that convolutions are as long as it says."""
        check_kda(fields, tensors)
        if not fields.get("{arch}.kda.safe_gate", bool, True):
            raise fields.error("{arch}.kda.safe_gate", "decays without a bound", wanted=True)
        h = super().read(fields, tensors)
        # Positions of several axes come with the other style.
        style: Style = "halves" if h.rope.n_axes > 1 else "pairs"
        return msgspec.structs.replace(h, rope=msgspec.structs.replace(h.rope, style=style))

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read the sizes of latent attention, how experts are routed, and limits."""
        return {
            "mla": Mla.read(fields),
            "experts": Experts.read(fields, gate="sigmoid"),
            "limits": _limits(fields, "exp"),
            "shared_limits": _limits(fields, "shexp"),
        }


def _limits(fields: Fields, of: str) -> tuple[float, ...]:
    key = f"{{arch}}.swiglu_clamp_{of}"
    limits = fields.per_layer(key, fields.require("{arch}.block_count", Depth), Limit, 0.0)
    if any(0 < limit < _LEAST_LIMIT for limit in limits):
        wanted = f"0 or at least {_LEAST_LIMIT}"
        raise fields.error(key, "so low a limit is not supported", wanted=wanted, got=limits)
    return tuple(limits)


def _limited(g: GraphBuilder, gate: Value, up: Value, *, limit: float) -> Value:
    """Return SwiGLU's product, where the gate is cut after its activation."""
    if not limit:
        return g.gated(gate, up)
    return g.mul(g.clamp(g.activation(gate, "silu"), limit), g.clamp(up, limit))


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: BailingMoe3Hparams) -> Value:
    """Add attention of either kind, and feed-forward, of layer n to the residual stream."""
    a = g.rms_norm(x, f"blk.{n}.attn_norm.weight", h.norm_eps)
    if g.has(f"blk.{n}.ssm_a"):
        x = g.add(x, delta_attention(g, a, n, h, decay_bound=h.decay_bound))
    else:
        x = g.add(x, mla_attention(g, a, positions, n, h, h.mla))
    f = g.rms_norm(x, f"blk.{n}.ffn_norm.weight", h.norm_eps)
    if h.experts is None or not g.has(f"blk.{n}.ffn_gate_inp.weight"):
        return g.add(x, swiglu(g, f, n))
    gated, shared = (
        partial(_limited, g, limit=limits[n]) for limits in (h.limits, h.shared_limits)
    )
    return g.add(x, moe(g, f, n, h.experts, gated=gated, shared_gated=shared))


def build(g: GraphBuilder, inputs: Inputs, h: BailingMoe3Hparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def head(g: GraphBuilder, inputs: Inputs, h: BailingMoe3Hparams) -> Outputs:
    """Build the NextN head: token p meets the trunk's normed hidden row p - 1."""
    return nextn_head(g, inputs, h, layer)


BAILING_MOE3 = ModelSpec(
    name="bailingmoe3",
    fit=trunk_fit("bailingmoe3"),
    hparams=BailingMoe3Hparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE, KDA_EXACT),
    scaled=(),
    unread=KDA_UNREAD,
    checkpoint=checkpoints.BAILING_MOE3,
)
BAILING_MOE3_HEAD = nextn_spec(
    "bailingmoe3", head, ties=LAYER_NORM_TIES, checkpoint=checkpoints.BAILING_MOE3_NEXTN
)
