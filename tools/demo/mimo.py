"""The MiMo-7B architecture (`mimo`): a Qwen2 trunk with one MTP layer.

The published checkpoints join [hidden, embedding]; in a file the two halves of the joining matrix
are swapped, as in every other NextN block, and so they are here.
"""

from dataclasses import dataclass

from torch import Tensor

from demo.blocks import Layer, RmsNorm, linear, rotate
from demo.network import Network, NextN, NextNNames, Shape, Value


@dataclass(frozen=True)
class MimoShape(Shape):
    """Sizes of the network."""

    n_ff: int = 448
    n_head_kv: int = 2
    n_head_dim: int = 32
    rope_base: float = 640_000.0


class MimoLayer(Layer):
    """Qwen2's layer: grouped attention with biases on q, k and v."""

    def __init__(self, shape: MimoShape) -> None:
        super().__init__()
        self.shape = shape
        d, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.attn_q = linear(d, shape.n_head * head, bias=True)
        self.attn_k = linear(d, shape.n_head_kv * head, bias=True)
        self.attn_v = linear(d, shape.n_head_kv * head, bias=True)
        self.attn_output = linear(shape.n_head * head, d)
        self.ffn_norm = RmsNorm(d, shape.rms_eps)
        self.add_feed_forward(d, shape.n_ff)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, head dim]; row 0 is at position `first`."""
        n, base = self.shape.n_head_dim, self.shape.rope_base
        q, k, v = (
            matrix(a).unflatten(-1, (-1, n)).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        return rotate(q, first, n, base), rotate(k, first, n, base), v


class MimoMtp(MimoLayer, NextN):
    """The MTP layer: one of the trunk's kind after the join."""

    def __init__(self, shape: MimoShape) -> None:
        super().__init__(shape)
        self.nextn = NextNNames(shape.n_embd, shape.rms_eps)


class Mimo(Network):
    """Trunk and MTP layer."""

    arch = "mimo"
    title = "MiMo-7B architecture with an MTP layer"
    shape: MimoShape

    def __init__(self, shape: MimoShape = MimoShape()) -> None:
        super().__init__(shape, [MimoLayer(shape) for _ in range(shape.n_layer)], [MimoMtp(shape)])

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
            "attention.key_length": s.n_head_dim,
            "attention.value_length": s.n_head_dim,
            "attention.layer_norm_rms_epsilon": s.rms_eps,
            "rope.dimension_count": s.n_head_dim,
            "rope.freq_base": s.rope_base,
            "nextn_predict_layers": 1,
        }
