"""What the families' networks are built of, in plain PyTorch.

Module names are GGUF's tensor names (`blk.1.ffn_gate_exps.weight`), so that a state dict and a
file hold the same things. Positions are counted from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Stack(nn.Module):
    """One matrix for each expert or attention head, stacked: [n, out, in]."""

    def __init__(self, n: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, n_out, n_in))


class Sinks(nn.Module):
    """One logit for each attention head, of a key that everybody sees and that has no value."""

    def __init__(self, n_head: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_head))


class CorrectionBias(nn.Module):
    """Added to the router's probabilities for the choice only; moved by load, not by gradient."""

    bias: Tensor

    def __init__(self, n_expert: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(n_expert))


@dataclass(frozen=True)
class Experts:
    """Sizes of a routed feed-forward part; groups are chosen by their two best experts."""

    n_ff: int = 64
    n_expert: int = 8
    n_used: int = 2
    scale: float = 1.0
    shared: bool = True
    n_group: int = 1
    n_group_used: int = 1


def linear(n_in: int, n_out: int, bias: bool = False) -> nn.Linear:
    """Make a matrix, without a bias unless one is asked for."""
    return nn.Linear(n_in, n_out, bias=bias)


def rotate(
    x: Tensor, first: int | Tensor, n_rope: int, base: float, adjacent: bool = False
) -> Tensor:
    """Turn the first `n_rope` of the last axis by position; row 0 is at position `first`.

    A tensor has the position of each row. The pairs are (i, i + n_rope / 2), or with `adjacent`
    (2 i, 2 i + 1).
    """
    half = n_rope // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    if not isinstance(first, Tensor):
        first = torch.arange(first, first + x.shape[-2])
    angle = first.double()[:, None] * speed
    cos, sin = angle.cos().float(), angle.sin().float()
    if adjacent:
        a, b = x[..., :n_rope].unflatten(-1, (half, 2)).unbind(-1)
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return torch.cat([turned, x[..., n_rope:]], dim=-1)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def attend(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend, in a text or at the last step of a draft: [batch, heads, n, value width].

    `keys[0]` and `values[0]` are of the true rows before a draft, `keys[i]` of its i-th own step,
    which begins i positions later; a text is a draft of no own steps. Row m of `q` stands beside
    row m of the last keys: it sees rows 0..m of `keys[0]`, of these with a `window` only those
    fewer than `window` positions before its own, and row m of each later one.
    """
    if len(keys) == 1 and window is None and sinks is None:
        return F.scaled_dot_product_attention(
            q, keys[0], values[0], is_causal=True, enable_gqa=True
        )
    n, n_repeat = q.shape[-2], q.shape[1] // keys[0].shape[1]
    ks = [k[:, :, :n].repeat_interleave(n_repeat, dim=1) for k in keys]
    vs = [v[:, :, :n].repeat_interleave(n_repeat, dim=1) for v in values]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    if window is not None:
        hidden |= torch.ones(n, n, dtype=torch.bool).tril(len(keys) - 1 - window)
    scores = (q @ ks[0].transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    own = [(q * k).sum(-1, keepdim=True) for k in ks[1:]]
    logits = torch.cat([scores, *own], dim=-1) * q.shape[-1] ** -0.5
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(*q.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(logits, dim=-1)
    out = weights[..., :n] @ vs[0]
    for i, v in enumerate(vs[1:]):
        out = out + weights[..., n + i, None] * v
    return out


class Layer(nn.Module):
    """One decoder layer: attention, then a dense or a routed feed-forward part.

    A family adds its attention's matrices and `project`, and calls `add_feed_forward`.
    """

    load: Tensor
    attn_norm: RmsNorm
    attn_output: nn.Linear
    ffn_norm_name = "ffn_norm"

    def add_feed_forward(self, n_embd: int, ff: int | Experts) -> None:
        """Add a dense part of width `ff`, or a routed one."""
        self.experts = ff if isinstance(ff, Experts) else None
        if isinstance(ff, Experts):
            f, n = ff.n_ff, ff.n_expert
            self.ffn_gate_inp = linear(n_embd, n)
            self.exp_probs_b = CorrectionBias(n)
            self.ffn_gate_exps, self.ffn_up_exps = Stack(n, n_embd, f), Stack(n, n_embd, f)
            self.ffn_down_exps = Stack(n, f, n_embd)
            if ff.shared:
                self.ffn_gate_shexp = linear(n_embd, f)
                self.ffn_up_shexp = linear(n_embd, f)
                self.ffn_down_shexp = linear(f, n_embd)
            self.register_buffer("load", torch.zeros(n), persistent=False)
        else:
            self.ffn_gate = linear(n_embd, ff)
            self.ffn_up = linear(n_embd, ff)
            self.ffn_down = linear(ff, n_embd)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, width]; row 0 is at position `first`."""
        raise NotImplementedError

    def attend(self, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Attend to everything before; a family may narrow it."""
        return attend(q, keys, values)

    def leave_attention(self, attended: Tensor) -> Tensor:
        """Return what attention adds to the residual stream, [batch, n, n_embd]."""
        return self.attn_output(attended.transpose(1, 2).flatten(-2))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's result and the feed-forward part to the residual stream."""
        x = x + self.leave_attention(attended)
        f = getattr(self, self.ffn_norm_name)(x)
        if self.experts is None:
            return x + self.ffn_down(F.silu(self.ffn_gate(f)) * self.ffn_up(f))
        if self.experts.shared:
            x = x + self.ffn_down_shexp(F.silu(self.ffn_gate_shexp(f)) * self.ffn_up_shexp(f))
        return x + self._route(f.flatten(0, -2), self.experts).view_as(f)

    def _route(self, f: Tensor, experts: Experts) -> Tensor:
        probability = torch.sigmoid(self.ffn_gate_inp(f))
        chosen = _choose(probability + self.exp_probs_b.bias, experts)
        weight = probability.gather(-1, chosen)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=2.0**-14)
        weight = weight * experts.scale
        out = torch.zeros_like(f)
        for expert in range(experts.n_expert):
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
        q, k, v = self.project(self.attn_norm(x), 0)
        return self.finish(x, self.attend(q, [k], [v]))

    def balance(self, rate: float) -> None:
        """Move each expert's correction bias against its load since the last call."""
        if self.experts is not None:
            self.exp_probs_b.bias += rate * (self.load.mean() - self.load).sign()
            self.load.zero_()


def _choose(biased: Tensor, experts: Experts) -> Tensor:
    if experts.n_group > 1:
        groups = biased.unflatten(-1, (experts.n_group, -1))
        best = groups.topk(2).values.sum(-1).topk(experts.n_group_used).indices
        kept = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
        biased = groups.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
    return biased.topk(experts.n_used).indices
