"""Small published checkpoints of Gemma 4 and its assistant, with weights that a seed determines.

``tools/gemma4_references.py`` computes with them what ``tests/data/gemma4`` holds. The module needs
NumPy only, for its sake.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_VOCAB, WIDTH, N_CTX, WINDOW = 48, 32, 256, 9
N_HEADS, NEAR_HEAD, WIDE_HEAD = 4, 8, 16
N_FF, N_EXPERTS, N_USED, N_FF_EXPERT, BY_LAYER = 40, 5, 2, 12, 6
EPS = 1e-6
NEAR, FULL = "sliding_attention", "full_attention"


class Shape(NamedTuple):
    """One model.

    ``n_sharing`` layers at the end store no keys and values; ``kv_heads`` are those of layers with
    a window and of others; ``nested``: as in checkpoints that also see images, and ``unified`` as
    those without towers for it; ``spans``: where rows of an image see each other.
    """

    kinds: tuple[str, ...] = (NEAR, NEAR, FULL)
    kv_heads: tuple[int, int] = (2, 1)
    k_eq_v: bool = False
    experts: bool = False
    by_layer: bool = False
    n_sharing: int = 0
    double: bool = False
    softcap: float | None = 4.0
    nested: bool = False
    spans: bool = False
    unified: bool = False


SHAPES = {
    "dense, keys are values": Shape(k_eq_v=True, nested=True, spans=True),
    "experts": Shape(kinds=(NEAR, FULL), k_eq_v=True, experts=True, softcap=None, spans=True),
    "embeddings by layer, sharing": Shape(
        kinds=(NEAR, FULL, NEAR, NEAR, FULL),
        kv_heads=(1, 1),
        by_layer=True,
        n_sharing=3,
        double=True,
        nested=True,
    ),
}

UNIFIED = Shape(kinds=(NEAR, FULL, NEAR, FULL), k_eq_v=True, nested=True, spans=True, unified=True)


def text_config(s: Shape) -> dict[str, object]:
    """Return the configuration of the text model."""
    made: dict[str, object] = {
        "vocab_size": N_VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": N_FF,
        "num_hidden_layers": len(s.kinds),
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": s.kv_heads[0],
        "num_global_key_value_heads": s.kv_heads[1] if s.k_eq_v else None,
        "head_dim": NEAR_HEAD,
        "global_head_dim": WIDE_HEAD,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": N_CTX,
        "rms_norm_eps": EPS,
        "tie_word_embeddings": True,
        "sliding_window": WINDOW,
        "use_bidirectional_attention": "vision" if s.spans else None,
        "layer_types": list(s.kinds),
        "final_logit_softcapping": s.softcap,
        "attention_k_eq_v": s.k_eq_v,
        "num_kv_shared_layers": s.n_sharing,
        "use_double_wide_mlp": s.double,
        "rope_parameters": {
            NEAR: {"rope_type": "default", "rope_theta": 100.0},
            FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000.0,
            },
        },
    }
    if not s.unified:  # whose class knows neither
        made["enable_moe_block"] = s.experts
        made["hidden_size_per_layer_input"] = BY_LAYER if s.by_layer else 0
        made["vocab_size_per_layer_input"] = N_VOCAB
    if s.experts:
        made |= {"num_experts": N_EXPERTS, "top_k_experts": N_USED}
        made["moe_intermediate_size"] = N_FF_EXPERT
    return made


def configuration(s: Shape) -> dict[str, object]:
    """Return ``config.json``."""
    if not s.nested:
        return {"architectures": ["Gemma4ForCausalLM"], **text_config(s)}
    kind = "Gemma4Unified" if s.unified else "Gemma4"
    return {"architectures": [f"{kind}ForConditionalGeneration"], "text_config": text_config(s)}


def weights(s: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their names in transformers' text model."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.3, around: float = 0.0) -> None:
        made[name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    random("model.embed_tokens.weight", N_VOCAB, WIDTH, spread=0.5)
    random("model.norm.weight", WIDTH, around=1.0)
    if s.by_layer:
        width = len(s.kinds) * BY_LAYER
        random("model.embed_tokens_per_layer.weight", N_VOCAB, width, spread=0.5)
        random("model.per_layer_model_projection.weight", width, WIDTH)
        random("model.per_layer_projection_norm.weight", BY_LAYER, around=1.0)
    n_storing = len(s.kinds) - s.n_sharing
    for n, kind in enumerate(s.kinds):
        at, head = f"model.layers.{n}.", NEAR_HEAD if kind == NEAR else WIDE_HEAD
        n_kv = s.kv_heads[0] if kind == NEAR or not s.k_eq_v else s.kv_heads[1]
        add_layer(random, at, head, N_FF * (2 if s.double and n >= n_storing else 1), WIDTH)
        if n < n_storing:
            random(at + "self_attn.k_proj.weight", n_kv * head, WIDTH)
            random(at + "self_attn.k_norm.weight", head, around=1.0)
            if not (s.k_eq_v and kind == FULL):
                random(at + "self_attn.v_proj.weight", n_kv * head, WIDTH)
        if s.experts:
            for name in (
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
                "pre_feedforward_layernorm_2",
            ):
                random(at + name + ".weight", WIDTH, around=1.0)
            random(at + "router.proj.weight", N_EXPERTS, WIDTH, spread=3.0)
            random(at + "router.scale", WIDTH, around=1.0)
            random(at + "router.per_expert_scale", N_EXPERTS, around=1.0)
            random(at + "experts.gate_up_proj", N_EXPERTS, 2 * N_FF_EXPERT, WIDTH)
            random(at + "experts.down_proj", N_EXPERTS, WIDTH, N_FF_EXPERT)
        if s.by_layer:
            random(at + "per_layer_input_gate.weight", BY_LAYER, WIDTH)
            random(at + "per_layer_projection.weight", WIDTH, BY_LAYER)
            random(at + "post_per_layer_input_norm.weight", WIDTH, around=1.0)
    return made


def add_layer(random, at: str, head: int, n_ff: int, width: int) -> None:
    """Add what layers of trunk and assistant have."""
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        random(f"{at}{name}_layernorm.weight", width, around=1.0)
    random(at + "self_attn.q_proj.weight", N_HEADS * head, width)
    random(at + "self_attn.q_norm.weight", head, around=1.0)
    random(at + "self_attn.o_proj.weight", width, N_HEADS * head)
    random(at + "mlp.gate_proj.weight", n_ff, width)
    random(at + "mlp.up_proj.weight", n_ff, width)
    random(at + "mlp.down_proj.weight", width, n_ff)
    random(at + "layer_scalar", 1, around=1.0)


def published(s: Shape, made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights by the names of a published checkpoint; layers that share have spare ones."""
    found = {
        name.replace("model.", "model.language_model.", 1) if s.nested else name: values
        for name, values in made.items()
    }
    if s.nested:
        parts = ("vision_tower.patch_embedder.input_proj",)
        if s.unified:
            parts = ("vision_embedder.patch_dense", "embed_vision.embedding_projection")
        found |= {f"model.{part}.weight": np.zeros((2, 3), np.float32) for part in parts}
    for n in range(len(s.kinds) - s.n_sharing, len(s.kinds)):
        at = f"model.{'language_model.' * s.nested}layers.{n}.self_attn."
        found[at + "k_proj.weight"] = np.ones((NEAR_HEAD, WIDTH), np.float32)
        found[at + "k_norm.weight"] = np.ones(NEAR_HEAD, np.float32)
    return found


class Assistant(NamedTuple):
    """A drafter of one of the targets."""

    target: str
    kinds: tuple[str, ...] = (NEAR, NEAR, FULL)
    width: int = 24
    n_clusters: int = 0
    n_used: int = 3


ASSISTANTS = {
    "all tokens": Assistant("dense, keys are values"),
    "clusters": Assistant(
        "embeddings by layer, sharing", kinds=(NEAR, FULL), width=16, n_clusters=8
    ),
}


def assistant_config(a: Assistant) -> dict[str, object]:
    """Return ``config.json`` of an assistant."""
    target = SHAPES[a.target]
    plain = Shape(kinds=a.kinds, kv_heads=target.kv_heads, k_eq_v=target.k_eq_v, softcap=None)
    text = text_config(plain) | {"hidden_size": a.width, "num_kv_shared_layers": len(a.kinds)}
    text |= {"vocab_size_per_layer_input": 0, "model_type": "gemma4_text"}
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": WIDTH,
        "use_ordered_embeddings": bool(a.n_clusters),
        "num_centroids": a.n_clusters or 8,
        "centroid_intermediate_top_k": a.n_used,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def assistant_weights(a: Assistant, seed: int = 5) -> dict[str, np.ndarray]:
    """Return random weights by their names in transformers' model."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.3, around: float = 0.0) -> None:
        made[name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    random("model.embed_tokens.weight", N_VOCAB, a.width)
    random("model.norm.weight", a.width, around=1.0)
    random("pre_projection.weight", a.width, 2 * WIDTH)
    random("post_projection.weight", WIDTH, a.width)
    for n, kind in enumerate(a.kinds):
        head = NEAR_HEAD if kind == NEAR else WIDE_HEAD
        add_layer(random, f"model.layers.{n}.", head, N_FF, a.width)
    if a.n_clusters:
        random("masked_embedding.centroids.weight", a.n_clusters, a.width)
        made["masked_embedding.token_ordering"] = rng.permutation(N_VOCAB).astype(np.int64)
    return made


def with_images() -> tuple[list[list[int]], list[np.ndarray]]:
    """Return the texts around two images, and the rows of these: 3 lines of 4, more than a window
    counts, and 2 of 2."""
    rng, text = np.random.default_rng(6), tokens(16).tolist()
    rows = [rng.normal(0, 2, (n, WIDTH)).astype(np.float32) for n in (12, 4)]
    return [text[:8], text[8:10], text[10:]], rows


def tokens(n: int = 40) -> np.ndarray:
    """Return a text."""
    return np.random.default_rng(1).integers(0, N_VOCAB, n).astype(np.int32)
