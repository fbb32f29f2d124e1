"""Small published checkpoints of LFM2, dense and with experts, and what they compute.

The witness restates the published formulas in float64, on weights as checkpoints hold them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.restated import silu
from harness.trunks import rotate

N_VOCAB, WIDTH, N_HEADS, N_KV_HEADS, KERNEL = 50, 32, 4, 2, 3
N_EXPERTS, N_USED, N_FF_EXPERT = 5, 2, 20
EPS, BASE = 2.0**-17, 1e6
CONV, FULL = "conv", "full_attention"


class Shape(NamedTuple):
    """One checkpoint; ``said`` is the width that its configuration rounds to ``n_ff``."""

    kinds: tuple[str, ...] = (CONV, CONV, FULL, CONV, FULL)
    said: int = 70
    n_ff: int = 48
    n_dense: int | None = None
    lists_layers: bool = True


SHAPES = {
    "dense": Shape(),
    "layers by number": Shape((FULL, CONV, CONV), lists_layers=False),
    "experts": Shape(said=40, n_ff=40, n_dense=2),
}


def configuration(s: Shape) -> dict[str, object]:
    """Return ``config.json``."""
    made = {
        "architectures": ["Lfm2ForCausalLM" if s.n_dense is None else "Lfm2MoeForCausalLM"],
        "hidden_size": WIDTH,
        "max_position_embeddings": 512,
        "num_attention_heads": N_HEADS,
        "num_hidden_layers": len(s.kinds),
        "num_key_value_heads": N_KV_HEADS,
        "norm_eps": EPS,
        "conv_bias": False,
        "conv_L_cache": KERNEL,
        "vocab_size": N_VOCAB,
    }
    if s.lists_layers:
        made |= {"layer_types": list(s.kinds), "rope_theta": BASE}
    else:
        attending = [n for n, kind in enumerate(s.kinds) if kind == FULL]
        made |= {"full_attn_idxs": attending, "theta": BASE, "tie_embedding": True}
    if s.n_dense is None:
        return made | {
            "block_ff_dim": s.said,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 16,
        }
    return made | {
        "intermediate_size": s.said,
        "moe_intermediate_size": N_FF_EXPERT,
        "num_dense_layers": s.n_dense,
        "num_experts": N_EXPERTS,
        "num_experts_per_tok": N_USED,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
    }


def weights(s: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random tensors by their published names."""
    rng = np.random.default_rng(seed)

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    def swiglu(front: str, width: int) -> dict[str, np.ndarray]:
        return {
            f"{front}.w1.weight": random(width, WIDTH),
            f"{front}.w2.weight": random(WIDTH, width),
            f"{front}.w3.weight": random(width, WIDTH),
        }

    head, made = WIDTH // N_HEADS, {}
    made["model.embed_tokens.weight"] = random(N_VOCAB, WIDTH)
    made["model.embedding_norm.weight"] = random(WIDTH, around=1)
    for n, kind in enumerate(s.kinds):
        at = f"model.layers.{n}."
        made[at + "operator_norm.weight"] = random(WIDTH, around=1)
        made[at + "ffn_norm.weight"] = random(WIDTH, around=1)
        if kind == CONV:
            made[at + "conv.in_proj.weight"] = random(3 * WIDTH, WIDTH)
            made[at + "conv.conv.weight"] = random(WIDTH, 1, KERNEL)
            made[at + "conv.out_proj.weight"] = random(WIDTH, WIDTH)
        else:
            for name, n_heads in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS)):
                made[f"{at}self_attn.{name}_proj.weight"] = random(n_heads * head, WIDTH)
            made[at + "self_attn.out_proj.weight"] = random(WIDTH, WIDTH)
            made[at + "self_attn.q_layernorm.weight"] = random(head, around=1)
            made[at + "self_attn.k_layernorm.weight"] = random(head, around=1)
        if s.n_dense is None or n < s.n_dense:
            made |= swiglu(f"{at}feed_forward", s.n_ff)
            continue
        made[at + "feed_forward.gate.weight"] = random(N_EXPERTS, WIDTH)
        made[at + "feed_forward.expert_bias"] = random(N_EXPERTS)
        for e in range(N_EXPERTS):
            made |= swiglu(f"{at}feed_forward.experts.{e}", N_FF_EXPERT)
    return made


def witness(s: Shape, weights: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Return the logits of a whole text, float64[n, n_vocab]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n_tokens, head = len(tokens), WIDTH // N_HEADS
    turns = 1.0 / BASE ** (np.arange(0, head, 2) / head)
    angles = np.outer(np.arange(n_tokens), np.concatenate([turns, turns]))
    cos, sin = np.cos(angles), np.sin(angles)
    unseen = np.triu(np.full((n_tokens, n_tokens), -np.inf), 1)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return w[name] * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)

    def swiglu(x: np.ndarray, front: str) -> np.ndarray:
        gate, up = (x @ w[f"{front}.{part}.weight"].T for part in ("w1", "w3"))
        return (silu(gate) * up) @ w[f"{front}.w2.weight"].T

    def attention(a: np.ndarray, at: str) -> np.ndarray:
        q, k, v = (
            (a @ w[f"{at}{name}_proj.weight"].T).reshape(n_tokens, -1, head).swapaxes(0, 1)
            for name in "qkv"
        )
        q = rotate(norm(q, at + "q_layernorm.weight"), cos, sin)
        k = rotate(norm(k, at + "k_layernorm.weight"), cos, sin)
        k, v = (np.repeat(y, N_HEADS // N_KV_HEADS, axis=0) for y in (k, v))
        p = np.exp(np.einsum("hid,hjd->hij", q, k) / head**0.5 + unseen)
        p /= p.sum(-1, keepdims=True)
        y = np.einsum("hij,hjd->ihd", p, v).reshape(n_tokens, -1)
        return y @ w[at + "out_proj.weight"].T

    def convolution(a: np.ndarray, at: str) -> np.ndarray:
        b, c, x = np.split(a @ w[at + "in_proj.weight"].T, 3, axis=-1)
        padded = np.concatenate([np.zeros((KERNEL - 1, WIDTH)), b * x])
        taps = w[at + "conv.weight"][:, 0]
        y = sum(padded[j : j + n_tokens] * taps[:, j] for j in range(KERNEL))
        return (c * y) @ w[at + "out_proj.weight"].T

    def mixture(f: np.ndarray, at: str) -> np.ndarray:
        shares = 1 / (1 + np.exp(-f @ w[at + ".gate.weight"].T))
        y = np.zeros_like(f)
        for t, row in enumerate(shares):
            chosen = np.argsort(-(row + w[at + ".expert_bias"]))[:N_USED]
            for e in chosen:
                y[t] += row[e] / row[chosen].sum() * swiglu(f[t], f"{at}.experts.{e}")
        return y

    x = w["model.embed_tokens.weight"][tokens]
    for n, kind in enumerate(s.kinds):
        at = f"model.layers.{n}."
        a = norm(x, at + "operator_norm.weight")
        x = x + (convolution(a, at + "conv.") if kind == CONV else attention(a, at + "self_attn."))
        f = norm(x, at + "ffn_norm.weight")
        is_dense = s.n_dense is None or n < s.n_dense
        x = x + (swiglu if is_dense else mixture)(f, at + "feed_forward")
    return norm(x, "model.embedding_norm.weight") @ w["model.embed_tokens.weight"].T
