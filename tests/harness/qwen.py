"""Small published checkpoints of hybrids, with random weights that a seed determines.

``tools/qwen_references.py`` computes with them what ``tests/data/qwen`` holds. The module needs
NumPy only, for its sake.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_VOCAB, WIDTH, N_CTX = 48, 24, 256
N_HEADS, N_KV_HEADS, HEAD_WIDTH = 2, 1, 16
N_FF, N_EXPERTS, N_USED, N_FF_EXPERT, N_FF_SHARED = 40, 5, 2, 16, 20
EPS = 1e-6
LINEAR, FULL = "linear_attention", "full_attention"


class Shape(NamedTuple):
    """One model.

    ``layer_types`` None: every ``interval``-th layer is one of attention. ``nested``: as in
    checkpoints that also see images. ``split``: experts are tensors of their own.
    """

    family: str
    n_keys: int
    n_values: int
    layer_types: tuple[str, ...] | None = None
    n_layers: int = 4
    interval: int = 4
    k_width: int = 8
    v_width: int = 8
    kernel: int = 4
    nested: bool = False
    tied: bool = False
    split: bool = False
    dense_layers: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kind of each layer."""
        if self.layer_types is not None:
            return self.layer_types
        return tuple(LINEAR if (n + 1) % self.interval else FULL for n in range(self.n_layers))


SHAPES = {
    "one K head, flat": Shape("qwen3_5", 1, 3, interval=2),
    "irregular layers, tied": Shape(
        "qwen3_5", 2, 4, (FULL, LINEAR, LINEAR, FULL, LINEAR), 5, nested=True, tied=True
    ),
    "experts in one piece": Shape("qwen3_5_moe", 2, 6, nested=True, kernel=3),
    "experts one by one": Shape("qwen3_5_moe", 3, 3, interval=3, split=True, tied=True),
    "grouped": Shape("qwen3_next", 2, 6, split=True, dense_layers=(1,)),
}
WITH_ROWS = ("one K head, flat", "experts in one piece")
"""Shapes that a text with an image in it is computed of."""
CLASSES = {
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}


def text_config(s: Shape) -> dict[str, object]:
    """Return the configuration of the text model, as transformers' classes take it."""
    made: dict[str, object] = {
        "vocab_size": N_VOCAB,
        "hidden_size": WIDTH,
        "num_hidden_layers": s.n_layers,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "intermediate_size": N_FF,
        "max_position_embeddings": N_CTX,
        "rms_norm_eps": EPS,
        "tie_word_embeddings": s.tied,
        "linear_conv_kernel_dim": s.kernel,
        "linear_key_head_dim": s.k_width,
        "linear_value_head_dim": s.v_width,
        "linear_num_key_heads": s.n_keys,
        "linear_num_value_heads": s.n_values,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
    }
    made |= (
        {"layer_types": list(s.kinds)} if s.layer_types else {"full_attention_interval": s.interval}
    )
    if s.family != "qwen3_5":
        made |= {
            "num_experts": N_EXPERTS,
            "num_experts_per_tok": N_USED,
            "moe_intermediate_size": N_FF_EXPERT,
            "shared_expert_intermediate_size": N_FF_SHARED,
        }
    if s.family == "qwen3_next":
        made |= {"norm_topk_prob": True, "decoder_sparse_step": 1}
        made |= {"mlp_only_layers": list(s.dense_layers)}
        made["rope_parameters"] = {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5
        }  # fmt: skip
    return made


def configuration(s: Shape) -> dict[str, object]:
    """Return ``config.json``."""
    if not s.nested:
        return {"architectures": [CLASSES[s.family]], "model_type": s.family, **text_config(s)}
    name = CLASSES[s.family].replace("ForCausalLM", "ForConditionalGeneration")
    return {"architectures": [name], "model_type": s.family, "text_config": text_config(s)}


def weights(s: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their names in a checkpoint of a text model, experts stacked."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.3, around: float = 0.0) -> None:
        made[name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    def attention(at: str) -> None:
        random(at + "q_proj.weight", 2 * N_HEADS * HEAD_WIDTH, WIDTH)
        random(at + "k_proj.weight", N_KV_HEADS * HEAD_WIDTH, WIDTH)
        random(at + "v_proj.weight", N_KV_HEADS * HEAD_WIDTH, WIDTH)
        random(at + "o_proj.weight", WIDTH, N_HEADS * HEAD_WIDTH)
        random(at + "q_norm.weight", HEAD_WIDTH)
        random(at + "k_norm.weight", HEAD_WIDTH)

    def delta_net(at: str) -> None:
        keys, values = s.n_keys * s.k_width, s.n_values * s.v_width
        random(at + "conv1d.weight", 2 * keys + values, 1, s.kernel, spread=0.5)
        if s.family == "qwen3_next":
            random(at + "in_proj_qkvz.weight", 2 * keys + 2 * values, WIDTH)
            random(at + "in_proj_ba.weight", 2 * s.n_values, WIDTH)
        else:
            random(at + "in_proj_qkv.weight", 2 * keys + values, WIDTH)
            random(at + "in_proj_z.weight", values, WIDTH)
            random(at + "in_proj_b.weight", s.n_values, WIDTH)
            random(at + "in_proj_a.weight", s.n_values, WIDTH)
        random(at + "dt_bias", s.n_values)
        random(at + "A_log", s.n_values, spread=0.7)
        random(at + "norm.weight", s.v_width, around=1.0)
        random(at + "out_proj.weight", WIDTH, values)

    def feed_forward(at: str, n: int | None) -> None:
        if s.family == "qwen3_5" or n in s.dense_layers:
            random(at + "gate_proj.weight", N_FF, WIDTH)
            random(at + "up_proj.weight", N_FF, WIDTH)
            random(at + "down_proj.weight", WIDTH, N_FF)
            return
        random(at + "gate.weight", N_EXPERTS, WIDTH)
        random(at + "experts.gate_up_proj", N_EXPERTS, 2 * N_FF_EXPERT, WIDTH)
        random(at + "experts.down_proj", N_EXPERTS, WIDTH, N_FF_EXPERT)
        random(at + "shared_expert.gate_proj.weight", N_FF_SHARED, WIDTH)
        random(at + "shared_expert.up_proj.weight", N_FF_SHARED, WIDTH)
        random(at + "shared_expert.down_proj.weight", WIDTH, N_FF_SHARED)
        random(at + "shared_expert_gate.weight", 1, WIDTH)

    def layer(at: str, kind: str, n: int | None) -> None:
        random(at + "input_layernorm.weight", WIDTH)
        random(at + "post_attention_layernorm.weight", WIDTH)
        delta_net(at + "linear_attn.") if kind == LINEAR else attention(at + "self_attn.")
        feed_forward(at + "mlp.", n)

    random("model.embed_tokens.weight", N_VOCAB, WIDTH)
    random("model.norm.weight", WIDTH)
    if not s.tied:
        random("lm_head.weight", N_VOCAB, WIDTH)
    for n, kind in enumerate(s.kinds):
        layer(f"model.layers.{n}.", kind, n)
    random("mtp.fc.weight", WIDTH, 2 * WIDTH)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        random(f"mtp.{name}.weight", WIDTH)
    layer("mtp.layers.0.", FULL, None)
    return made


def published(s: Shape, made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights by the names and in the pieces of a published checkpoint."""
    found: dict[str, np.ndarray] = {}
    for name, values in made.items():
        stem, _, part = name.rpartition(".")
        if s.split and part == "gate_up_proj":
            for e, one in enumerate(values):
                gate, up = np.split(one, 2)
                found[f"{stem}.{e}.gate_proj.weight"] = gate
                found[f"{stem}.{e}.up_proj.weight"] = up
        elif s.split and stem.endswith(".experts"):
            found |= {f"{stem}.{e}.down_proj.weight": one for e, one in enumerate(values)}
        elif s.nested and name.startswith("model."):
            found[name.replace("model.", "model.language_model.", 1)] = values
        elif s.nested:
            found["model." * name.startswith("mtp.") + name] = values
        else:
            found[name] = values
    if s.nested:
        found["model.visual.patch_embed.proj.weight"] = np.zeros((2, 3), np.float32)
    return found


def tokens(n: int = 20) -> np.ndarray:
    """Return a text."""
    return np.random.default_rng(1).integers(0, N_VOCAB, n).astype(np.int32)


def positions(n: int = 20) -> np.ndarray:
    """Return the positions of an image in a text, int32[axis, n]: time, height, width."""
    made = np.tile(np.arange(n, dtype=np.int32), (3, 1))
    made[:, 4:10] = 4 + np.array([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    made[:, 10:] = np.arange(7, n - 3)
    return made


def image() -> np.ndarray:
    """Return the embedding rows of that image, float32[6, WIDTH]."""
    return np.random.default_rng(3).normal(0, 0.5, (6, WIDTH)).astype(np.float32)
