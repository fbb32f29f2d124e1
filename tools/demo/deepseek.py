"""The DeepSeek-V3 architecture (`deepseek2`) with its MTP block.

Attention is written in the naive form: keys and values of every head are made from the compressed
row. The file holds the split matrices `attn_k_b` and `attn_v_b`, of which engines make either form.
"""

from dataclasses import dataclass, field

import gguf
import torch
from torch import Tensor

from demo.blocks import Experts, Layer, RmsNorm, Stack, linear, rotate
from demo.network import Network, NextN, NextNNames, Shape, Value


@dataclass(frozen=True)
class DeepseekShape(Shape):
    """Sizes of the network; a head's key is `n_nope` dimensions and `n_rope` rotated ones."""

    n_layer: int = 3
    n_dense: int = 1
    n_ff: int = 320
    experts: Experts = field(default_factory=lambda: Experts(scale=2.5, n_group=4, n_group_used=2))
    n_lora_q: int = 64
    n_lora_kv: int = 64
    n_nope: int = 32
    n_rope: int = 16
    n_value: int = 32
    rope_base: float = 10_000.0


class DeepseekLayer(Layer):
    """Multi-head latent attention."""

    def __init__(self, shape: DeepseekShape, ff: int | Experts) -> None:
        super().__init__()
        self.shape = shape
        d, n, eps = shape.n_embd, shape.n_head, shape.rms_eps
        self.attn_norm = RmsNorm(d, eps)
        self.attn_q_a = linear(d, shape.n_lora_q)
        self.attn_q_a_norm = RmsNorm(shape.n_lora_q, eps)
        self.attn_q_b = linear(shape.n_lora_q, n * (shape.n_nope + shape.n_rope))
        self.attn_kv_a_mqa = linear(d, shape.n_lora_kv + shape.n_rope)
        self.attn_kv_a_norm = RmsNorm(shape.n_lora_kv, eps)
        self.attn_k_b = Stack(n, shape.n_nope, shape.n_lora_kv)
        self.attn_v_b = Stack(n, shape.n_lora_kv, shape.n_value)
        self.attn_output = linear(n * shape.n_value, d)
        self.ffn_norm = RmsNorm(d, eps)
        self.add_feed_forward(d, ff)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, width]; row 0 is at position `first`."""
        s = self.shape
        q = self.attn_q_b(self.attn_q_a_norm(self.attn_q_a(a)))
        q = q.unflatten(-1, (s.n_head, -1)).transpose(1, 2)
        q_nope, q_rope = q.split([s.n_nope, s.n_rope], dim=-1)
        compressed, k_rope = self.attn_kv_a_mqa(a).split([s.n_lora_kv, s.n_rope], dim=-1)
        c = self.attn_kv_a_norm(compressed)[:, None]
        k_nope = c @ self.attn_k_b.weight
        k_rope = rotate(k_rope[:, None], first, s.n_rope, s.rope_base, adjacent=True)
        k_rope = k_rope.expand(-1, s.n_head, -1, -1)
        q_rope = rotate(q_rope, first, s.n_rope, s.rope_base, adjacent=True)
        q, k = torch.cat([q_nope, q_rope], dim=-1), torch.cat([k_nope, k_rope], dim=-1)
        return q, k, c @ self.attn_v_b.weight.mT


class DeepseekMtp(DeepseekLayer, NextN):
    """The MTP block: a routed layer after the join."""

    def __init__(self, shape: DeepseekShape) -> None:
        super().__init__(shape, shape.experts)
        self.nextn = NextNNames(shape.n_embd, shape.rms_eps)


class Deepseek(Network):
    """Trunk and MTP block."""

    arch = "deepseek2"
    title = "DeepSeek-V3 architecture with an MTP block"
    shape: DeepseekShape

    def __init__(self, shape: DeepseekShape = DeepseekShape()) -> None:
        layers = [
            DeepseekLayer(shape, shape.n_ff if i < shape.n_dense else shape.experts)
            for i in range(shape.n_layer)
        ]
        super().__init__(shape, list(layers), [DeepseekMtp(shape)])

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name; attention as one KV head."""
        s = self.shape
        return {
            "block_count": s.n_layer + 1,
            "context_length": s.n_ctx,
            "embedding_length": s.n_embd,
            "feed_forward_length": s.n_ff,
            "vocab_size": s.n_vocab,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": s.n_lora_q,
            "attention.kv_lora_rank": s.n_lora_kv,
            "attention.key_length": s.n_lora_kv + s.n_rope,
            "attention.value_length": s.n_lora_kv,
            "attention.key_length_mla": s.n_nope + s.n_rope,
            "attention.value_length_mla": s.n_value,
            "attention.layer_norm_rms_epsilon": s.rms_eps,
            "rope.freq_base": s.rope_base,
            "rope.dimension_count": s.n_rope,
            "expert_count": s.experts.n_expert,
            "expert_used_count": s.experts.n_used,
            "expert_group_count": s.experts.n_group,
            "expert_group_used_count": s.experts.n_group_used,
            "expert_feed_forward_length": s.experts.n_ff,
            "expert_shared_count": 1,
            "leading_dense_block_count": s.n_dense,
            "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
            "expert_weights_scale": s.experts.scale,
            "expert_weights_norm": True,
            "nextn_predict_layers": 1,
        }
