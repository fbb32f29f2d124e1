"""The MiMo-V2 architecture (`mimo2`) with its three MTP heads.

Full and sliding layers differ in KV heads and rotary base; sliding ones have sinks. Each head reads
the state before the final norm, recycles its own un-normed, and hands over to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import gguf
from torch import Tensor

from demo.blocks import Experts, Layer, RmsNorm, Sinks, attend, linear, rotate
from demo.network import Network, NextN, NextNNames, Shape, Value


@dataclass(frozen=True)
class Mimo2Shape(Shape):
    """Sizes of the network; a window counts the query's own position."""

    n_dense: int = 1
    n_ff: int = 256
    experts: Experts = field(default_factory=lambda: Experts(n_expert=6, shared=False))
    slides: tuple[bool, ...] = (False, True, True, False)
    window: int = 32
    n_mtp: int = 3
    n_head_kv: int = 1
    n_head_kv_sliding: int = 2
    n_key: int = 48
    n_value: int = 32
    n_rope: int = 16
    rope_base: float = 5_000_000.0
    rope_base_sliding: float = 10_000.0
    value_scale: float = 0.707


class Mimo2Layer(Layer):
    """Grouped attention, its values narrower than its keys, with or without a window."""

    def __init__(self, shape: Mimo2Shape, ff: int | Experts, slides: bool) -> None:
        super().__init__()
        self.shape, self.slides = shape, slides
        self.n_head_kv = shape.n_head_kv_sliding if slides else shape.n_head_kv
        self.attn_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.add_projections()
        self.attn_output = linear(shape.n_head * shape.n_value, shape.n_embd)
        if slides:
            self.attn_sinks = Sinks(shape.n_head)
        self.ffn_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.add_feed_forward(shape.n_embd, ff)

    def widths(self) -> list[int]:
        """Return how many rows q, k and v have."""
        s = self.shape
        return [s.n_head * s.n_key, self.n_head_kv * s.n_key, self.n_head_kv * s.n_value]

    def add_projections(self) -> None:
        """Add a matrix for each of q, k and v."""
        q, k, v = self.widths()
        self.attn_q = linear(self.shape.n_embd, q)
        self.attn_k = linear(self.shape.n_embd, k)
        self.attn_v = linear(self.shape.n_embd, v)

    def multiply(self, a: Tensor) -> Sequence[Tensor]:
        """Return the rows of q, k and v."""
        return self.attn_q(a), self.attn_k(a), self.attn_v(a)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, width]; row 0 is at position `first`."""
        s = self.shape
        base = s.rope_base_sliding if self.slides else s.rope_base
        q, k, v = (
            rows.unflatten(-1, (-1, width)).transpose(1, 2)
            for rows, width in zip(self.multiply(a), (s.n_key, s.n_key, s.n_value), strict=True)
        )
        return rotate(q, first, s.n_rope, base), rotate(k, first, s.n_rope, base), v

    def attend(self, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Attend within the window, if there is one."""
        if not self.slides:
            return attend(q, keys, values)
        return attend(q, keys, values, self.shape.window, self.attn_sinks.weight)

    def leave_attention(self, attended: Tensor) -> Tensor:
        """Scale what attention adds."""
        return super().leave_attention(attended) * self.shape.value_scale


class Mimo2Mtp(Mimo2Layer, NextN):
    """One head: a dense sliding layer with q, k and v in one matrix after the join."""

    recycles_normed = False

    def __init__(self, shape: Mimo2Shape) -> None:
        super().__init__(shape, shape.n_ff, slides=True)
        self.nextn = NextNNames(shape.n_embd, shape.rms_eps, own_norm=False)
        self.layer_output_norm = RmsNorm(shape.n_embd, shape.rms_eps)

    def add_projections(self) -> None:
        """Add the one matrix."""
        self.attn_qkv = linear(self.shape.n_embd, sum(self.widths()))

    def multiply(self, a: Tensor) -> Sequence[Tensor]:
        """Return the rows of q, k and v."""
        return [*self.attn_qkv(a).split(self.widths(), dim=-1)]

    def norm(self, y: Tensor) -> Tensor:
        """Apply the block's last norm."""
        return self.layer_output_norm(y)


class Mimo2(Network):
    """Trunk and three heads."""

    arch = "mimo2"
    title = "MiMo-V2 architecture with three MTP heads"
    sees_normed = False
    shape: Mimo2Shape

    def __init__(self, shape: Mimo2Shape = Mimo2Shape()) -> None:
        layers = [
            Mimo2Layer(shape, shape.n_ff if i < shape.n_dense else shape.experts, slides)
            for i, slides in enumerate(shape.slides)
        ]
        super().__init__(shape, list(layers), [Mimo2Mtp(shape) for _ in range(shape.n_mtp)])

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        s = self.shape
        slides = [*s.slides, *[True] * s.n_mtp]
        return {
            "block_count": s.n_layer + s.n_mtp,
            "context_length": s.n_ctx,
            "embedding_length": s.n_embd,
            "feed_forward_length": s.n_ff,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": [
                s.n_head_kv_sliding if slide else s.n_head_kv for slide in slides
            ],
            "attention.key_length": s.n_key,
            "attention.value_length": s.n_value,
            "attention.value_scale": s.value_scale,
            "attention.sliding_window": s.window,
            "attention.sliding_window_pattern": [int(slide) for slide in slides],
            "attention.layer_norm_rms_epsilon": s.rms_eps,
            "rope.dimension_count": s.n_rope,
            "rope.freq_base": s.rope_base,
            "rope.freq_base_swa": s.rope_base_sliding,
            "expert_count": s.experts.n_expert,
            "expert_used_count": s.experts.n_used,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "expert_feed_forward_length": s.experts.n_ff,
            "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
            "nextn_predict_layers": s.n_mtp,
        }
