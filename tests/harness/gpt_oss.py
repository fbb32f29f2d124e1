"""Small published checkpoints of gpt-oss, with random weights that a seed determines.

``tools/gpt_oss_references.py`` computes with them what ``tests/data/gpt-oss`` holds. The module
needs NumPy only, for its sake.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_VOCAB, WIDTH, N_CTX = 48, 64, 256
N_HEADS, N_KV_HEADS, HEAD_WIDTH = 4, 2, 16
N_FF, N_EXPERTS, N_USED = 64, 6, 3
EPS = 1e-5
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


class Shape(NamedTuple):
    """One model.

    ``packed``: experts in MXFP4, as published. ``scaled``: YaRN.
    """

    packed: bool
    scaled: bool = True
    n_layers: int = 4
    window: int = 6


SHAPES = {
    "as published": Shape(packed=True),
    "plain experts": Shape(packed=False, n_layers=3, window=9),
    "unscaled": Shape(packed=False, scaled=False, n_layers=2),
}


def configuration(s: Shape) -> dict[str, object]:
    """Return ``config.json``."""
    scaling = {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    }
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": N_VOCAB,
        "hidden_size": WIDTH,
        "num_hidden_layers": s.n_layers,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "intermediate_size": N_FF,
        "num_local_experts": N_EXPERTS,
        "num_experts_per_tok": N_USED,
        "max_position_embeddings": N_CTX,
        "sliding_window": s.window,
        "rms_norm_eps": EPS,
        "rope_parameters": {
            "rope_theta": 1000.0,
            **(scaling if s.scaled else {"rope_type": "default"}),
        },
        "tie_word_embeddings": False,
        "attention_bias": True,
    }


def weights(s: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their names in transformers' model.

    Experts of a packed shape are values that MXFP4 has. Gates and what they multiply go beyond
    their limit at times.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.3, around: float = 0.0) -> None:
        made[name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    def matrix(name: str, *shape: int, spread: float) -> None:
        random(name, *shape, spread=spread)
        if s.packed:  # [experts, inputs, outputs]: blocks run along the inputs
            codes, scales = packed(made[name].swapaxes(1, 2))
            made[name] = np.ascontiguousarray(unpacked(codes, scales).swapaxes(1, 2))

    random("model.embed_tokens.weight", N_VOCAB, WIDTH, spread=1.0)
    random("model.norm.weight", WIDTH, around=1.0)
    random("lm_head.weight", N_VOCAB, WIDTH)
    for n in range(s.n_layers):
        at = f"model.layers.{n}."
        random(at + "input_layernorm.weight", WIDTH, around=1.0)
        random(at + "post_attention_layernorm.weight", WIDTH, around=1.0)
        for part, n_heads in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS)):
            random(at + f"self_attn.{part}_proj.weight", n_heads * HEAD_WIDTH, WIDTH)
            random(at + f"self_attn.{part}_proj.bias", n_heads * HEAD_WIDTH)
        random(at + "self_attn.o_proj.weight", WIDTH, N_HEADS * HEAD_WIDTH)
        random(at + "self_attn.o_proj.bias", WIDTH)
        random(at + "self_attn.sinks", N_HEADS, spread=1.0)
        random(at + "mlp.router.weight", N_EXPERTS, WIDTH)
        random(at + "mlp.router.bias", N_EXPERTS, spread=1.0)
        matrix(at + "mlp.experts.gate_up_proj", N_EXPERTS, WIDTH, 2 * N_FF, spread=0.5)
        random(at + "mlp.experts.gate_up_proj_bias", N_EXPERTS, 2 * N_FF, spread=2.0)
        matrix(at + "mlp.experts.down_proj", N_EXPERTS, N_FF, WIDTH, spread=0.02)
        random(at + "mlp.experts.down_proj_bias", N_EXPERTS, WIDTH)
    return made


def packed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return published blocks and scales of rows, uint8[..., n / 32, 16] and uint8[..., n / 32]."""
    rows = values.reshape(*values.shape[:-1], -1, 32)
    scales = np.floor(np.log2(np.abs(rows).max(-1))).astype(int) - 2
    scales = np.where(scales % 5 == 0, scales + 1, scales)  # not always the smallest that holds
    codes = np.abs((rows / 2.0 ** scales[..., None])[..., None] - FP4).argmin(-1).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (scales + 127).astype(np.uint8)


def unpacked(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the values of published blocks."""
    values = np.stack([FP4[codes & 15], FP4[codes >> 4]], -1).reshape(*codes.shape[:-1], 32)
    values = values * np.float32(2) ** (scales[..., None].astype(np.float32) - 127)
    return values.reshape(*values.shape[:-2], -1)


def published(s: Shape, made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights by the names and in the pieces of a published checkpoint."""
    found: dict[str, np.ndarray] = {}
    for name, values in made.items():
        if s.packed and name.endswith(("gate_up_proj", "down_proj")):
            found[name + "_blocks"], found[name + "_scales"] = packed(values.swapaxes(1, 2))
        else:
            found[name] = values
    return found


def tokens(n: int = 40) -> np.ndarray:
    """Return a text."""
    return np.random.default_rng(1).integers(0, N_VOCAB, n).astype(np.int32)
