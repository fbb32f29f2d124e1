"""Gemma 3n: several streams of which a layer computes one, and predicts and corrects the others.

AltUp: Baykal et al. 2023, "Alternating Updates for Efficient Transformers". LAuReL: Menghani et al.
2024, "LAuReL: Learned Augmented Residual Layer", arXiv 2411.07501.
"""

import math
from typing import Annotated, ClassVar

import msgspec

from mtpcore.plugin import Fields, GraphBuilder, Inputs, Outputs, Value, swiglu
from mtpcore_gemma4.graph import (
    GELU,
    attention,
    embeddings_by_layer,
    from_own_embedding,
    outputs,
)
from mtpcore_gemma4.hparams import GemmaHparams

_Streams = Annotated[int, msgspec.Meta(ge=2, le=8)]
_First = Annotated[int, msgspec.Meta(ge=0, le=0)]
_SMALLEST = 1e-30
"""Added to squares of lengths, which may be zero."""


class Gemma3nHparams(GemmaHparams, frozen=True, kw_only=True):
    """What Gemma 3n adds.

    Attributes
    ----------
    n_streams : int
        Rows of the residual stream for each token; layers compute the first.
    cutoffs : tuple of float
        How many standard deviations above their mean the gates of each layer are cut; -inf: they
        are not.
    """

    period: ClassVar[int | None] = 5

    n_streams: _Streams = msgspec.field(name="altup.num_inputs", default=4)
    cutoffs: tuple[float, ...] = ()

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read each layer's kind and cutoff, and that the first stream is the one computed."""
        more = super().read_more(fields)
        fields.get("{arch}.altup.active_idx", _First, 0)
        n_blocks = fields.require("{arch}.block_count", int)
        cutoffs = fields.per_layer("{arch}.activation_sparsity_scale", n_blocks, float)
        return more | {"cutoffs": tuple(cutoffs)}


class _AltUpLayer:
    """One layer; values are the builder's, streams [T, n_streams, width]."""

    def __init__(self, g: GraphBuilder, n: int, h: Gemma3nHparams) -> None:
        self.g, self.n, self.h, self.block = g, n, h, f"blk.{n}"

    def weight(self, name: str) -> str:
        return f"{self.block}.{name}.weight"

    def normed(self, x: Value, name: str) -> Value:
        return self.g.rms_norm(x, self.weight(name), self.h.norm_eps)

    def modalities(self, x: Value) -> Value:
        """Return f32[T, n_streams], by which streams are mixed and corrected."""
        rows = self.g.scale(self.normed(x, "altup_router_norm"), 1 / self.h.width)
        return self.g.activation(self.g.matmul(rows, self.weight("altup_router")), "tanh")

    def predict(self, streams: Value) -> Value:
        """Return each stream plus a mixture of all, of shares that the first one gives."""
        g, n = self.g, self.h.n_streams
        routed = self.modalities(first_of_streams(g, streams))
        shares = g.matmul(routed, self.weight("altup_predict_coef"))
        mixed = (g.mix(streams, g.slice(shares, i * n, (i + 1) * n)) for i in range(n))
        return g.add(streams, g.split_heads(g.concat(*mixed), n))

    def correct(self, predicted: Value, computed: Value) -> Value:
        """Add to each stream what the first one was wrong by, times a factor of its own plus 1."""
        g = self.g
        wrong = g.add(computed, g.scale(first_of_streams(g, predicted), -1))
        wrong = g.repeat(g.split_heads(wrong, 1), self.h.n_streams)
        factors = g.matmul(self.modalities(computed), self.weight("altup_correct_coef"))
        return g.add(g.add(predicted, wrong), g.mul(wrong, factors))

    def compute(self, x: Value, positions: Value) -> Value:
        """Return what attention, LAuReL and the feed-forward part make of the first stream."""
        g = self.g
        a = self.normed(x, "attn_norm")
        low_rank = g.matmul(g.matmul(a, self.weight("laurel_l")), self.weight("laurel_r"))
        laurel = g.add(a, self.normed(low_rank, "laurel_post_norm"))
        attended = self.normed(attention(g, a, positions, self.n, self.h), "post_attention_norm")
        x = g.scale(g.add(g.add(x, attended), laurel), 2**-0.5)
        y = swiglu(g, self.normed(x, "ffn_norm"), self.n, gated=self.gated)
        return g.add(x, self.normed(y, "post_ffw_norm"))

    def gated(self, gate: Value, up: Value) -> Value:
        cutoff = self.h.cutoffs[self.n]
        if math.isfinite(cutoff):
            gate = self.g.gaussian_topk(gate, cutoff)
        return self.g.gated(gate, up, GELU)

    def run(self, streams: Value, positions: Value, own: Value) -> Value:
        """Return the streams after the layer; ``own`` is its embedding of each token."""
        g, h = self.g, self.h
        predicted = self.predict(streams)
        computed = self.compute(first_of_streams(g, predicted), positions)
        corrected = g.merge_heads(self.correct(predicted, computed))
        first = g.slice(corrected, 0, h.width)
        rest = g.split_heads(g.slice(corrected, h.width, h.n_streams * h.width), h.n_streams - 1)
        scaled = g.scale_by(first, self.weight("altup_correct_scale"))
        y = g.split_heads(from_own_embedding(g, scaled, own, self.n, h), 1)
        rest = g.add(rest, g.repeat(y, h.n_streams - 1))
        return g.split_heads(g.concat(first, g.merge_heads(rest)), h.n_streams)


def first_of_streams(g: GraphBuilder, streams: Value) -> Value:
    """Return the first stream, f32[T, width]."""
    return g.slice(g.merge_heads(streams), 0, int(streams.shape[2]))


def as_long_as(g: GraphBuilder, x: Value, streams: Value) -> Value:
    """Return streams, f32[T, n, width], scaled to the length of x, f32[T, width]."""
    n, width = int(streams.shape[1]), int(streams.shape[2])
    length = g.mix(g.split_heads(x, width), g.l2_norm(x, _SMALLEST))  # x . x / |x|
    return g.mul(g.l2_norm(streams, _SMALLEST), g.concat(*[length] * n))


def widen(g: GraphBuilder, x: Value, h: Gemma3nHparams) -> Value:
    """Return the streams that enter the first layer: x, and projections as long as it."""
    n = h.n_streams - 1
    others = g.head_matmul(g.repeat(g.split_heads(x, 1), n), "altup_proj.weight")
    others = g.merge_heads(as_long_as(g, x, others))
    return g.split_heads(g.concat(x, others), h.n_streams)


def narrow(g: GraphBuilder, streams: Value, h: Gemma3nHparams) -> Value:
    """Return the mean of the first stream and projections of the others as long as it."""
    n, rows = h.n_streams, g.merge_heads(streams)
    x = g.slice(rows, 0, h.width)
    others = g.split_heads(g.slice(rows, h.width, n * h.width), n - 1)
    others = as_long_as(g, x, g.head_matmul(others, "altup_unembd_proj.weight"))
    others = g.merge_heads(others)
    for i in range(n - 1):
        x = g.add(x, g.slice(others, i * h.width, (i + 1) * h.width))
    return g.scale(x, 1 / n)


def gemma3n_trunk(g: GraphBuilder, inputs: Inputs, h: Gemma3nHparams) -> Outputs:
    """Build the trunk. What enters a layer, as a tap, is its first stream."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True, scale=h.width**0.5)
    of_layers = embeddings_by_layer(g, inputs, x, h)
    streams = widen(g, x, h)
    for n in range(h.n_layers):
        g.tap(f"layer_input:{n}", first_of_streams(g, streams))
        own = g.slice(of_layers, n * h.width_by_layer, (n + 1) * h.width_by_layer)
        streams = _AltUpLayer(g, n, h).run(streams, inputs.positions, own)
    g.tap(f"layer_input:{h.n_layers}", first_of_streams(g, streams))
    return outputs(g, narrow(g, streams, h), h)
