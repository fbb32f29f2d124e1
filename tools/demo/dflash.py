"""A DFlash drafter for a trunk that is there already: layers that fill a block in one pass.

Row p of its context is made of the trunk's taps at p, the inputs of some layers: keys and values of
each layer, without that layer's norm. A block stands at the places n, n + 1, ...: the token x[n],
whose taps are not there yet, and mask tokens. Its rows see the context before n, and each other;
row i foresees the token at n + i.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.blocks import RmsNorm, linear, rotate
from demo.network import Network, Value, draw_weights


@dataclass(frozen=True)
class DflashShape:
    """Sizes of the drafter; `taps` are layers of the trunk, whose inputs are read."""

    n_embd: int
    n_ctx: int
    rms_eps: float
    taps: tuple[int, ...] = (1, 2, 4)
    n_layer: int = 3
    n_head: int = 4
    n_head_kv: int = 2
    n_head_dim: int = 32
    n_ff: int = 384
    rope_base: float = 10_000.0
    n_block: int = 6
    mask_token: int = 1


class DflashLayer(nn.Module):
    """A layer as Qwen3's, over a context that is given and a block's own rows."""

    def __init__(self, shape: DflashShape) -> None:
        super().__init__()
        self.shape = shape
        d, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.attn_q = linear(d, shape.n_head * head)
        self.attn_k = linear(d, shape.n_head_kv * head)
        self.attn_v = linear(d, shape.n_head_kv * head)
        self.attn_q_norm = RmsNorm(head, shape.rms_eps)
        self.attn_k_norm = RmsNorm(head, shape.rms_eps)
        self.attn_output = linear(shape.n_head * head, d)
        self.ffn_norm = RmsNorm(d, shape.rms_eps)
        self.ffn_gate = linear(d, shape.n_ff)
        self.ffn_up = linear(d, shape.n_ff)
        self.ffn_down = linear(shape.n_ff, d)

    def heads(self, x: Tensor, matrix: nn.Linear, norm: RmsNorm | None) -> Tensor:
        """Return [batch, heads, rows, width]."""
        y = matrix(x).unflatten(-1, (-1, self.shape.n_head_dim))
        return (y if norm is None else norm(y)).transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor, places: Tensor, hidden: Tensor) -> Tensor:
        """Run the layer over rows [batch, m, n_embd] at `places` [m], of several blocks.

        `context` [batch, n, n_embd] stands at the places 0..n-1; `hidden` [m, n + m] says which
        rows of the context and of the blocks a row does not see.
        """
        a = self.attn_norm(x)
        both = torch.cat([context, a], dim=1)
        at = torch.cat([torch.arange(context.shape[1]), places])
        q = self.turn(self.heads(a, self.attn_q, self.attn_q_norm), places)
        k = self.turn(self.heads(both, self.attn_k, self.attn_k_norm), at)
        v = self.heads(both, self.attn_v, None)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, enable_gqa=True)
        x = x + self.attn_output(seen.transpose(1, 2).flatten(-2))
        f = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(f)) * self.ffn_up(f))

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        """Rotate rows by their places."""
        return rotate(x, places, self.shape.n_head_dim, self.shape.rope_base)


class Dflash(nn.Module):
    """The drafter's own file; it borrows the trunk's tables."""

    arch = "dflash"
    title = "DFlash drafter"

    def __init__(self, shape: DflashShape) -> None:
        super().__init__()
        self.shape, self.mask_token = shape, shape.mask_token
        self.fc = linear(len(shape.taps) * shape.n_embd, shape.n_embd)
        self.enc = nn.ModuleDict({"output_norm": RmsNorm(shape.n_embd, shape.rms_eps)})
        self.blk = nn.ModuleList([DflashLayer(shape) for _ in range(shape.n_layer)])
        self.output_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        draw_weights(self, shape.n_layer)

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        s = self.shape
        return {
            "block_count": s.n_layer,
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
            "block_size": s.n_block,
            "target_layers": list(s.taps),
        }

    def forward(self, trunk: Network, tokens: Tensor, taps: Tensor, starts: Tensor) -> Tensor:
        """Fill blocks that start anywhere in a text: [batch, blocks, rows - 1, n_embd].

        Parameters
        ----------
        tokens, taps
            [batch, n] and [batch, n, n_taps * n_embd].
        starts
            The place of the first row of each block, [blocks].
        """
        s, m = self.shape, len(starts)
        context = self.enc["output_norm"](self.fc(taps))
        block = torch.full((len(tokens), m, s.n_block), s.mask_token)
        block[:, :, 0] = tokens[:, starts]
        x = trunk.token_embd(block).flatten(1, 2)
        places = (starts[:, None] + torch.arange(s.n_block)).flatten()
        of = torch.arange(m).repeat_interleave(s.n_block)
        before = torch.arange(taps.shape[1])[None] < starts[of, None]
        hidden = ~torch.cat([before, of[:, None] == of[None]], dim=1)
        for layer in self.blk:
            x = layer(x, context, places, hidden)
        return self.output_norm(x).unflatten(1, (m, s.n_block))[:, :, 1:]
