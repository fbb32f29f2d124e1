"""The GLM-4.5 architecture (`glm4moe`) with its NextN block."""

from dataclasses import dataclass, field

import gguf
from torch import Tensor

from demo.blocks import Experts, Layer, RmsNorm, linear, rotate
from demo.network import Network, NextN, NextNNames, Shape, Value


@dataclass(frozen=True)
class GlmShape(Shape):
    """Sizes of the network."""

    n_embd: int = 160
    n_head: int = 8
    n_dense: int = 1
    n_ff: int = 384
    experts: Experts = field(default_factory=lambda: Experts(n_ff=96, scale=1.5))
    n_head_kv: int = 2
    n_head_dim: int = 32
    n_rope: int = 16
    rope_base: float = 10_000.0


class GlmLayer(Layer):
    """Grouped attention with biases, half of each head rotated."""

    ffn_norm_name = "post_attention_norm"

    def __init__(self, shape: GlmShape, ff: int | Experts) -> None:
        super().__init__()
        self.shape = shape
        d, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.attn_q = linear(d, shape.n_head * head, bias=True)
        self.attn_k = linear(d, shape.n_head_kv * head, bias=True)
        self.attn_v = linear(d, shape.n_head_kv * head, bias=True)
        self.attn_output = linear(shape.n_head * head, d)
        self.post_attention_norm = RmsNorm(d, shape.rms_eps)
        self.add_feed_forward(d, ff)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, head dim]; row 0 is at position `first`."""
        q, k, v = (
            matrix(a).unflatten(-1, (-1, self.shape.n_head_dim)).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        n, base = self.shape.n_rope, self.shape.rope_base
        return rotate(q, first, n, base), rotate(k, first, n, base), v


class GlmNextN(GlmLayer, NextN):
    """The NextN block: a routed layer after the join."""

    def __init__(self, shape: GlmShape) -> None:
        super().__init__(shape, shape.experts)
        self.nextn = NextNNames(shape.n_embd, shape.rms_eps)


class Glm(Network):
    """Trunk and NextN block."""

    arch = "glm4moe"
    title = "GLM-4.5 architecture with a NextN block"
    shape: GlmShape

    def __init__(self, shape: GlmShape = GlmShape()) -> None:
        layers = [
            GlmLayer(shape, shape.n_ff if i < shape.n_dense else shape.experts)
            for i in range(shape.n_layer)
        ]
        super().__init__(shape, list(layers), [GlmNextN(shape)])

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        s = self.shape
        return {
            "block_count": s.n_layer + 1,
            "context_length": s.n_ctx,
            "embedding_length": s.n_embd,
            "feed_forward_length": s.n_ff,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": s.n_head_kv,
            "rope.freq_base": s.rope_base,
            "attention.layer_norm_rms_epsilon": s.rms_eps,
            "expert_count": s.experts.n_expert,
            "expert_used_count": s.experts.n_used,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "attention.key_length": s.n_head_dim,
            "attention.value_length": s.n_head_dim,
            "rope.dimension_count": s.n_rope,
            "expert_feed_forward_length": s.experts.n_ff,
            "expert_shared_count": 1,
            "leading_dense_block_count": s.n_dense,
            "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
            "expert_weights_scale": s.experts.scale,
            "expert_weights_norm": True,
            "nextn_predict_layers": 1,
        }
