"""The graph of gpt-oss: attention with sinks, every other layer in a window; experts everywhere."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from mtpcore.plugin import (
    Count,
    Experts,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    LayerKind,
    Outputs,
    Rope,
    Value,
    attention_block,
    decoder,
    moe,
    windowed_blocks,
)

LIMIT = 7.0
"""Gates are cut above it, what they multiply beyond plus and minus it."""


class GptOssHparams(Hparams, frozen=True, kw_only=True):
    """What gpt-oss adds: layers with a window, and experts."""

    rounds_ramp: ClassVar[bool] = False  # "truncate": false in the published configurations

    window: Count = msgspec.field(name="attention.sliding_window")
    windowed: tuple[bool, ...] = ()
    near_rope: Rope | None = None
    experts: Experts = Experts(n_used=1, gate="softmax", normalise=True)

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read which layers have a window, and how experts are routed.

        By default every other layer has one, from the first on. Routing is a softmax over the
        logits of the experts that are chosen.
        """
        experts = Experts.read(fields, gate="softmax", normalise=True)
        if experts is None:
            raise fields.error("{arch}.expert_count", "no experts", wanted="1 or more", got=0)
        n_blocks = fields.require("{arch}.block_count", Count)
        return {"experts": experts, "windowed": tuple(windowed_blocks(fields, n_blocks, 2))}

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read a model's metadata; layers with a window may rotate with a base of their own."""
        h = super().read(fields, tensors)
        base = "freq_base_swa" if "{arch}.rope.freq_base_swa" in fields else "freq_base"
        rounds = cls.rounds_ramp
        near = Rope.read(fields, h.head_width, cls.rope_style, base, rounds_ramp=rounds)
        return msgspec.structs.replace(h, near_rope=near)

    def kind(self, n: int) -> LayerKind:
        """Return how layer n attends."""
        if self.windowed[n]:
            return LayerKind(self.n_kv_heads, self.near_rope or self.rope, self.window)
        return LayerKind(self.n_kv_heads, self.rope)


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: GptOssHparams) -> Value:
    """Add attention and experts of layer n to the residual stream."""
    sinks = f"blk.{n}.attn_sinks.weight"
    x = g.add(x, attention_block(g, x, positions, n, h, kind=h.kind(n), sinks=sinks))
    f = g.rms_norm(x, f"blk.{n}.post_attention_norm.weight", h.norm_eps)

    def gated(gate: Value, up: Value) -> Value:
        return g.gated(gate, up, "gelu_sigmoid", limit=LIMIT, offset=1)

    return g.add(x, moe(g, f, n, h.experts, gated=gated))


def trunk(g: GraphBuilder, inputs: Inputs, h: GptOssHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)
