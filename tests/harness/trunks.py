"""Trunks restated from the published formulas, in float64, on weights as checkpoints hold them.

The witness works on a whole text at once. Weights go by their published names, without ``model.``
in front and without ``.weight`` after; experts are stacked.
"""

import math
from typing import NamedTuple

import numpy as np

from harness.restated import EPS, norm, silu

N_VOCAB, N_LAYERS, N_FF = 50, 2, 40
N_EXPERTS, N_USED = 5, 2
ROPE_FACTOR, N_CTX_ORIGINAL = 8.0, 64


class Config(NamedTuple):
    """One checkpoint of a family."""

    family: str
    width: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    head_width: int = 8
    qkv_bias: bool = False
    other_biases: bool = False
    qk_norm: bool = False
    tied: bool = False
    experts: bool = False
    dense_layers: tuple[int, ...] = ()
    normalised: bool = True
    rope_base: float = 10000.0
    scaling: str = ""


CONFIGS = {
    "llama": Config("llama"),
    "llama, tied, one key head": Config("llama", n_kv_heads=1, tied=True),
    "llama 3.1 rotation": Config("llama", rope_base=500000.0, scaling="llama3"),
    "llama, linear scaling": Config("llama", scaling="linear"),
    "llama with biases": Config("llama", qkv_bias=True, other_biases=True),
    "llama with experts": Config("llama", experts=True),
    "qwen2": Config("qwen2", qkv_bias=True, rope_base=1e6),
    "qwen2, tied": Config("qwen2", qkv_bias=True, tied=True, n_kv_heads=4),
    "qwen2, yarn": Config("qwen2", qkv_bias=True, rope_base=1e6, scaling="yarn"),
    "qwen3": Config("qwen3", qk_norm=True, head_width=12, rope_base=1e6),
    "qwen3, tied": Config("qwen3", qk_norm=True, tied=True),
    "qwen3 with experts": Config("qwen3moe", qk_norm=True, head_width=12, experts=True),
    "qwen3 with some experts": Config("qwen3moe", qk_norm=True, experts=True, dense_layers=(0,)),
    "qwen3, shares as they are": Config("qwen3moe", qk_norm=True, experts=True, normalised=False),
}


def checkpoint(c: Config, seed: int) -> dict[str, np.ndarray]:
    """Return random weights by their published names (the part after ``model.``)."""
    rng = np.random.default_rng(seed)

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    made = {"embed_tokens": random(N_VOCAB, c.width), "norm": random(c.width, around=1)}
    if not c.tied:
        made["lm_head"] = random(N_VOCAB, c.width)
    q_width, kv_width = c.n_heads * c.head_width, c.n_kv_heads * c.head_width
    for i in range(N_LAYERS):
        at, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        made[f"layers.{i}.input_layernorm"] = random(c.width, around=1)
        made[f"layers.{i}.post_attention_layernorm"] = random(c.width, around=1)
        for name, n in (("q_proj", q_width), ("k_proj", kv_width), ("v_proj", kv_width)):
            made[at + name] = random(n, c.width)
            if c.qkv_bias:
                made[at + name + ".bias"] = random(n)
        made[at + "o_proj"] = random(c.width, q_width)
        if c.qk_norm:
            made[at + "q_norm"] = random(c.head_width, around=1)
            made[at + "k_norm"] = random(c.head_width, around=1)
        mixed = c.experts and i not in c.dense_layers
        stack = (N_EXPERTS,) if mixed else ()
        made[mlp + "gate_proj"] = random(*stack, N_FF, c.width)
        made[mlp + "up_proj"] = random(*stack, N_FF, c.width)
        made[mlp + "down_proj"] = random(*stack, c.width, N_FF)
        if mixed:
            made[mlp + "router"] = random(N_EXPERTS, c.width)
        if c.other_biases:
            made[at + "o_proj.bias"] = random(c.width)
            made[mlp + "gate_proj.bias"] = random(N_FF)
            made[mlp + "up_proj.bias"] = random(N_FF)
            made[mlp + "down_proj.bias"] = random(c.width)
    return made


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def configuration(c):
    """Return ``config.json`` as transformers writes it."""
    made = {
        "architectures": [ARCHITECTURES[c.family]],
        "hidden_size": c.width,
        "intermediate_size": N_FF,
        "max_position_embeddings": 512,
        "num_attention_heads": c.n_heads,
        "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": c.n_kv_heads,
        "rms_norm_eps": EPS,
        "rope_theta": int(c.rope_base),
        "tie_word_embeddings": c.tied,
        "vocab_size": N_VOCAB,
        "attention_bias": c.other_biases,
        "mlp_bias": c.other_biases,
    }
    if c.head_width * c.n_heads != c.width or c.family == "qwen3":
        made["head_dim"] = c.head_width
    if c.scaling:
        made["rope_scaling"] = {
            "rope_type": c.scaling,
            "factor": ROPE_FACTOR,
            "original_max_position_embeddings": N_CTX_ORIGINAL,
        }
    if c.scaling == "llama3":
        made["rope_scaling"] |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if c.experts and c.family == "llama":
        made["architectures"] = ["MixtralForCausalLM"]
        made |= {"num_local_experts": N_EXPERTS, "num_experts_per_tok": N_USED}
    elif c.experts:
        made |= {
            # As published, and as transformers 5 writes it.
            "num_experts" if c.normalised else "num_local_experts": N_EXPERTS,
            "num_experts_per_tok": N_USED,
            "moe_intermediate_size": N_FF,
            "norm_topk_prob": c.normalised,
            "mlp_only_layers": list(c.dense_layers),
            "decoder_sparse_step": 1,
        }
    return made


def published(c, weights):
    """Return weights by the names and in the pieces of a published checkpoint."""
    made = {}
    for name, values in weights.items():
        stem, kind = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
        front = "" if stem == "lm_head" else "model."
        if c.family == "llama" and c.experts:
            stem = stem.replace(".mlp.", ".block_sparse_moe.")
        if stem.endswith(".router"):
            made[f"{front}{stem.removesuffix('router')}gate.weight"] = values
        elif values.ndim == 3:
            block, _, part = stem.rpartition(".")
            part = MIXTRAL[part] if c.family == "llama" else part
            for e, one in enumerate(values):
                made[f"{front}{block}.experts.{e}.{part}.weight"] = one
        else:
            made[f"{front}{stem}.{kind}"] = values
    return made


# The witness


def inverse_frequencies(c: Config) -> tuple[np.ndarray, float]:
    """Return the rotation of each pair, radians a position, and the factor of its magnitude."""
    d, base = c.head_width, c.rope_base
    plain = 1.0 / base ** (np.arange(0, d, 2) / d)
    if c.scaling == "linear":
        return plain / ROPE_FACTOR, 1.0
    if c.scaling == "llama3":  # low and high frequency factors 1 and 4
        wavelength = 2 * np.pi / plain
        smooth = (N_CTX_ORIGINAL / wavelength - 1) / (4 - 1)
        between = (1 - smooth) * plain / ROPE_FACTOR + smooth * plain
        made = np.where(wavelength > N_CTX_ORIGINAL, plain / ROPE_FACTOR, between)
        return np.where(wavelength < N_CTX_ORIGINAL / 4, plain, made), 1.0
    if c.scaling.startswith("yarn"):
        low, high = (
            d * math.log(N_CTX_ORIGINAL / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (32, 1)
        )
        if c.scaling == "yarn":
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        keep = 1 - np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
        return plain / ROPE_FACTOR * (1 - keep) + plain * keep, 0.1 * math.log(ROPE_FACTOR) + 1
    return plain, 1.0


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate [heads, n, d]: a pair's halves lie half a head apart, as in published checkpoints."""
    left, right = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-right, left], -1) * sin


def witness(c: Config, weights: dict[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n = len(tokens)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[name].T + w.get(name + ".bias", 0.0)

    def split(x: np.ndarray, n_heads: int) -> np.ndarray:
        return x.reshape(n, n_heads, -1).swapaxes(0, 1)

    turns, magnitude = inverse_frequencies(c)
    angles = np.outer(np.arange(n), np.concatenate([turns, turns]))
    cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    unseen = np.triu(np.full((n, n), -np.inf), 1)

    x = w["embed_tokens"][tokens]
    taps = {}
    for i in range(N_LAYERS):
        at, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        taps[f"layer_input:{i}"] = x
        a = norm(x, w[f"layers.{i}.input_layernorm"])
        q = split(linear(a, at + "q_proj"), c.n_heads)
        k = split(linear(a, at + "k_proj"), c.n_kv_heads)
        v = split(linear(a, at + "v_proj"), c.n_kv_heads)
        if c.qk_norm:
            q, k = norm(q, w[at + "q_norm"]), norm(k, w[at + "k_norm"])
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (np.repeat(y, c.n_heads // c.n_kv_heads, axis=0) for y in (k, v))
        scores = np.einsum("hid,hjd->hij", q, k) / math.sqrt(c.head_width) + unseen
        p = np.exp(scores)
        p /= p.sum(-1, keepdims=True)
        y = np.einsum("hij,hjd->ihd", p, v).reshape(n, -1)
        x = x + linear(y, at + "o_proj")
        f = norm(x, w[f"layers.{i}.post_attention_layernorm"])
        mixed = c.experts and i not in c.dense_layers
        x = x + (mixture(c, w, mlp, f) if mixed else feed_forward(linear, mlp, f))
    hidden = norm(x, w["norm"])
    head = w.get("lm_head", w["embed_tokens"])
    return {"logits": hidden @ head.T, "hidden": hidden, "residual": x, **taps}


def feed_forward(linear, mlp: str, f: np.ndarray) -> np.ndarray:
    gate, up = linear(f, mlp + "gate_proj"), linear(f, mlp + "up_proj")
    return linear(silu(gate) * up, mlp + "down_proj")


def mixture(c: Config, w: dict[str, np.ndarray], mlp: str, f: np.ndarray) -> np.ndarray:
    """Softmax over all experts' router logits; the chosen shares sum to one where normalised."""
    y = np.zeros_like(f)
    for t, row in enumerate(f):
        logits = w[mlp + "router"] @ row
        chosen = np.argsort(-logits)[:N_USED]
        among = logits[chosen] if c.normalised else logits
        shares = np.exp(logits[chosen]) / np.exp(among).sum()
        for e, share in zip(chosen, shares, strict=True):
            gate = w[mlp + "gate_proj"][e] @ row
            up = w[mlp + "up_proj"][e] @ row
            y[t] += share * (w[mlp + "down_proj"][e] @ (silu(gate) * up))
    return y
