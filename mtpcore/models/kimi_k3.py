"""Kimi K3 (``kimi-k3``): Kimi Linear whose layers attend to what earlier ones left behind.

In every n-th layer the residual stream is kept as it is, and begins anew with what attention
adds. What a norm reads is a mean of the streams that were kept and the present one: by a softmax of
their products, each normed, with a vector of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.spec import ModelSpec
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, moe, swiglu, trunk_outputs
from mtpcore.models.decoder import trunk_fit
from mtpcore.models.hparams import Experts
from mtpcore.models.kda import KDA_EXACT, KDA_UNREAD, delta_attention
from mtpcore.models.kimi_linear import KimiLinearHparams
from mtpcore.models.mla import mla_attention

__all__ = ["KIMI_K3", "KimiK3Hparams", "build"]

_Bound = Annotated[float, msgspec.Meta(gt=0)]


class KimiK3Hparams(KimiLinearHparams, frozen=True, kw_only=True):
    """What Kimi K3 adds.

    Attributes
    ----------
    decay_bound : float
        The least logarithm of a decay.
    n_between : int
        After how many layers a stream is kept again.
    gate_bound, up_bound : float
        To what values of a feed-forward part's gate, and of what it multiplies, are bent by tanh.
    """

    decay_bound: Annotated[float, msgspec.Meta(lt=0)] = msgspec.field(name="kda.gate_lower_bound")
    n_between: Count = msgspec.field(name="attn_res.block_size")
    gate_bound: _Bound = msgspec.field(name="activation.situ_beta")
    up_bound: _Bound = msgspec.field(name="activation.situ_linear_beta")

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read as Kimi Linear does; files say whether weights of experts sum to one."""
        fields.dismiss("{arch}.expert_latent_length")  # the matrices are so wide
        return super().read_more(fields) | {"experts": Experts.read(fields, gate="sigmoid")}


class _Kept(NamedTuple):
    """A residual stream, f32[n_tokens, width], as it is and normed."""

    rows: Value
    normed: Value


def _mean(g: GraphBuilder, streams: Sequence[_Kept], weight: str) -> Value:
    """Return the mean of streams, weighted by a softmax of scores.

    One after the other: of those so far there is the mean, and the logarithm of the sum of the
    scores' exponentials.
    """
    mean, total = streams[0].rows, g.matmul(streams[0].normed, weight)
    for stream in streams[1:]:
        ahead = g.add(g.matmul(stream.normed, weight), g.scale(total, -1.0))
        change = g.split_heads(g.add(stream.rows, g.scale(mean, -1.0)), 1)
        mean = g.add(mean, g.merge_heads(g.mul(change, g.activation(ahead, "sigmoid"))))
        total = g.add(total, g.activation(ahead, "softplus"))
    return mean


def _bent(g: GraphBuilder, x: Value, bound: float) -> Value:
    return g.scale(g.activation(g.scale(x, 1 / bound), "tanh"), bound)


def _situ(g: GraphBuilder, gate: Value, up: Value, *, h: KimiK3Hparams) -> Value:
    """Return SwiGLU's product, with both of its linear factors bent."""
    gated = g.mul(_bent(g, gate, h.gate_bound), g.activation(gate, "sigmoid"))
    return g.mul(gated, _bent(g, up, h.up_bound))


def _feed_forward(g: GraphBuilder, x: Value, n: int, h: KimiK3Hparams) -> Value:
    """Return what a layer makes of normed rows: experts read and give narrower ones."""
    block, gated = f"blk.{n}.", partial(_situ, g, h=h)
    if h.experts is None or not g.has(block + "ffn_gate_inp.weight"):
        return swiglu(g, x, n, gated=gated)
    down, norm, up = (f"{block}ffn_routed_{name}.weight" for name in ("down", "norm", "up"))
    rows = g.matmul(x, down) if g.has(down) else x
    y = moe(g, rows, n, h.experts, routed=x, gated=gated, has_shared=False)
    y = g.rms_norm(y, norm, h.norm_eps) if g.has(norm) else y
    y = g.matmul(y, up) if g.has(up) else y
    if g.has(block + "ffn_gate_shexp.weight"):
        y = g.add(y, swiglu(g, x, n, "_shexp", gated=gated))
    return y


def build(g: GraphBuilder, inputs: Inputs, h: KimiK3Hparams) -> Outputs:
    """Build the trunk."""
    kept: list[_Kept] = []

    def stream(rows: Value) -> _Kept:
        return _Kept(rows, g.rms_norm(rows, None, h.norm_eps))

    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    for n in range(h.n_layers):
        block, now = f"blk.{n}.", stream(g.tap(f"layer_input:{n}", x))
        a = _mean(g, [*kept, now], block + "attn_res_score.weight")
        a = g.rms_norm(a, block + "attn_norm.weight", h.norm_eps)
        if g.has(block + "ssm_a"):
            y = delta_attention(g, a, n, h, decay_bound=h.decay_bound, rate=-1.0)
        else:
            y = mla_attention(g, a, inputs.positions, n, h, h.mla)
        if n % h.n_between == 0:
            kept.append(now)
            x = y
        else:
            x = g.add(x, y)
        f = _mean(g, [*kept, stream(x)], block + "ffn_res_score.weight")
        f = g.rms_norm(f, block + "ffn_norm.weight", h.norm_eps)
        x = g.add(x, _feed_forward(g, f, n, h))
    g.tap(f"layer_input:{h.n_layers}", x)
    return trunk_outputs(g, _mean(g, [*kept, stream(x)], "output_res_score.weight"), h)


KIMI_K3 = ModelSpec(
    name="kimi-k3",
    fit=trunk_fit("kimi-k3", also=("output_res_score.weight",)),
    hparams=KimiK3Hparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE, KDA_EXACT),
    scaled=(),
    unread=KDA_UNREAD,
)
