"""The GLM-4.5 architecture (`glm4moe`) with its NextN block, in plain PyTorch.

Module names are GGUF's tensor names (`blk.1.ffn_gate_exps.weight`), so that a state dict and a
file hold the same things. Positions are counted from 0; `x[p]` is the token at p, `h[p]` the
hidden state after the final norm when `x[p]` was read.

The NextN block reads pairs (x[p], h[p-1]) and predicts x[p+1]. When it drafts several tokens, the
pair of a later step holds its own normed output in place of the trunk's hidden state, while its
attention sees the true pairs of all accepted tokens and its own pairs of this draft.
`NextN.forward` computes every draft that could start anywhere in a text at once: with `depth` 3,
row p of depth j is step j of a draft that began j-1 tokens earlier, the tokens between being
those of the text. Along a text the model itself chose, that is what a draft loop computes for
as long as its drafts are accepted.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; widths of matrix inputs are multiples of 32 (Q8_0 blocks)."""

    n_vocab: int = 2048
    n_embd: int = 160
    n_layer: int = 4
    n_dense: int = 1
    n_ff: int = 384
    n_ff_expert: int = 96
    n_expert: int = 8
    n_expert_used: int = 2
    n_head: int = 8
    n_head_kv: int = 2
    n_head_dim: int = 32
    n_rope: int = 16
    rope_base: float = 10_000.0
    rms_eps: float = 1e-5
    expert_scale: float = 1.5
    n_ctx: int = 512


class RmsNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Experts(nn.Module):
    """One matrix for each expert, stacked: [n_expert, out, in]."""

    def __init__(self, n_expert: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_expert, n_out, n_in))


class CorrectionBias(nn.Module):
    """Added to the router's probabilities for the choice only; moved by load, not by gradient."""

    bias: Tensor

    def __init__(self, n_expert: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(n_expert))


class Layer(nn.Module):
    """One decoder layer: attention, then a dense or a routed feed-forward part."""

    load: Tensor

    def __init__(self, shape: Shape, routed: bool) -> None:
        super().__init__()
        self.shape, self.routed = shape, routed
        d, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.attn_q = nn.Linear(d, shape.n_head * head)
        self.attn_k = nn.Linear(d, shape.n_head_kv * head)
        self.attn_v = nn.Linear(d, shape.n_head_kv * head)
        self.attn_output = nn.Linear(shape.n_head * head, d, bias=False)
        self.post_attention_norm = RmsNorm(d, shape.rms_eps)
        if routed:
            f, n = shape.n_ff_expert, shape.n_expert
            self.ffn_gate_inp = nn.Linear(d, n, bias=False)
            self.exp_probs_b = CorrectionBias(n)
            self.ffn_gate_exps, self.ffn_up_exps = Experts(n, d, f), Experts(n, d, f)
            self.ffn_down_exps = Experts(n, f, d)
            self.ffn_gate_shexp = nn.Linear(d, f, bias=False)
            self.ffn_up_shexp = nn.Linear(d, f, bias=False)
            self.ffn_down_shexp = nn.Linear(f, d, bias=False)
            self.register_buffer("load", torch.zeros(n), persistent=False)
        else:
            self.ffn_gate = nn.Linear(d, shape.n_ff, bias=False)
            self.ffn_up = nn.Linear(d, shape.n_ff, bias=False)
            self.ffn_down = nn.Linear(shape.n_ff, d, bias=False)

    def project(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, head dim]; row 0 is at position `first`."""
        a = self.attn_norm(x)
        q, k, v = (
            linear(a).unflatten(-1, (-1, self.shape.n_head_dim)).transpose(1, 2)
            for linear in (self.attn_q, self.attn_k, self.attn_v)
        )
        return self._rotate(q, first), self._rotate(k, first), v

    def _rotate(self, x: Tensor, first: int) -> Tensor:
        half = self.shape.n_rope // 2
        speed = self.shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None] * speed
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's result and the feed-forward part to the residual stream."""
        x = x + self.attn_output(attended.transpose(1, 2).flatten(-2))
        f = self.post_attention_norm(x)
        if not self.routed:
            return x + self.ffn_down(F.silu(self.ffn_gate(f)) * self.ffn_up(f))
        shared = self.ffn_down_shexp(F.silu(self.ffn_gate_shexp(f)) * self.ffn_up_shexp(f))
        return x + shared + self._route(f.flatten(0, -2)).view_as(f)

    def _route(self, f: Tensor) -> Tensor:
        probability = torch.sigmoid(self.ffn_gate_inp(f))
        chosen = (probability + self.exp_probs_b.bias).topk(self.shape.n_expert_used).indices
        weight = probability.gather(-1, chosen)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=2.0**-14)
        weight = weight * self.shape.expert_scale
        out = torch.zeros_like(f)
        for expert in range(self.shape.n_expert):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            rows = f[row]
            gate = F.silu(rows @ self.ffn_gate_exps.weight[expert].T)
            up = rows @ self.ffn_up_exps.weight[expert].T
            down = (gate * up) @ self.ffn_down_exps.weight[expert].T
            out = out.index_add(0, row, down * weight[row, place, None])
            if self.training:
                self.load[expert] += len(row)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer over [batch, n, n_embd]; row 0 is at position 0."""
        q, k, v = self.project(x, 0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.finish(x, attended)


class Heading(nn.Module):
    """The tensors that GGUF keeps under `nextn.`; table and head are borrowed from the trunk."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.eh_proj = nn.Linear(2 * shape.n_embd, shape.n_embd, bias=False)
        self.enorm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.hnorm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.shared_head_norm = RmsNorm(shape.n_embd, shape.rms_eps)


class NextN(Layer):
    """The NextN block: a routed layer behind the join of an embedding and a hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, routed=True)
        self.nextn = Heading(shape)

    def forward(self, embedding: Tensor, hidden: Tensor, depth: int = 1) -> list[Tensor]:
        """Compute the normed output of `depth` draft steps everywhere in a text.

        Parameters
        ----------
        embedding, hidden
            [batch, n, n_embd]: embedding of x[p] and trunk's h[p], p = 0..n-1.

        Returns
        -------
        list of Tensor
            Step j (from 1): [batch, n - j, n_embd], row i belongs to position j + i and predicts
            the token at j + i + 1. There is no entry for position 0.
        """
        n = embedding.shape[1]
        steps: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for j in range(1, depth + 1):
            e = self.nextn.enorm(embedding[:, j:])
            h = self.nextn.hnorm(hidden[:, : n - j] if j == 1 else steps[-1][:, : n - j])
            z = self.nextn.eh_proj(torch.cat([e, h], dim=-1))
            q, k, v = self.project(z, j)
            keys.append(k)
            values.append(v)
            y = self.finish(z, _attend_draft(q, keys, values))
            steps.append(self.nextn.shared_head_norm(y))
        return steps


def _attend_draft(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend at the last step of a draft: true pairs before its start, then its own steps.

    `keys[i]` starts at position i + 1, `q` at len(keys). Row m of q sees rows 0..m of `keys[0]`
    and row m of each later one.
    """
    if len(keys) == 1:
        return F.scaled_dot_product_attention(
            q, keys[0], values[0], is_causal=True, enable_gqa=True
        )
    n, n_repeat = q.shape[-2], q.shape[1] // keys[0].shape[1]
    ks = [k[:, :, :n].repeat_interleave(n_repeat, dim=1) for k in keys]
    vs = [v[:, :, :n].repeat_interleave(n_repeat, dim=1) for v in values]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    scores = (q @ ks[0].transpose(-1, -2)).masked_fill(future, float("-inf"))
    own = [(q * k).sum(-1, keepdim=True) for k in ks[1:]]
    weights = torch.softmax(torch.cat([scores, *own], dim=-1) * q.shape[-1] ** -0.5, dim=-1)
    out = weights[..., :n] @ vs[0]
    for i, v in enumerate(vs[1:]):
        out = out + weights[..., n + i, None] * v
    return out


class Network(nn.Module):
    """Trunk and NextN block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        layers = [Layer(shape, routed=i >= shape.n_dense) for i in range(shape.n_layer)]
        self.blk = nn.ModuleList([*layers, NextN(shape)])
        self.output_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.output = nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        self._draw_weights()

    def _draw_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                scale = 0.02 if name.startswith(("token_embd", "output")) else 0.05
                if "attn_output" in name or "ffn_down" in name:
                    scale /= (2 * self.shape.n_layer) ** 0.5
                nn.init.normal_(parameter, std=scale)

    @property
    def head(self) -> NextN:
        """The NextN block."""
        head = self.blk[-1]
        assert isinstance(head, NextN)
        return head

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and the hidden states after the final norm, [batch, n, n_embd]."""
        embedding = self.token_embd(tokens)
        x = embedding
        for layer in self.blk[:-1]:
            x = layer(x)
        return embedding, self.output_norm(x)

    def balance(self, rate: float) -> None:
        """Move each correction bias against its expert's load since the last call."""
        for layer in self.blk:
            if layer.routed:
                layer.exp_probs_b.bias += rate * (layer.load.mean() - layer.load).sign()
                layer.load.zero_()
