"""How Gemma 4 is published, and what its model files call it."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from mtpcore.plugin import (
    DECODER,
    HEAD_NORMS,
    SWIGLU,
    Checkpoint,
    Config,
    Count,
    Rename,
    block_renames,
    number,
    on_layers,
    optional,
)

SLIDING, FULL = "sliding_attention", "full_attention"
NEVER = np.float32(1e30)
"""Divides the frequency of pairs that are not rotated, as llama.cpp writes it."""


ROTATIONS = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""What a configuration means that describes no rotation; a described one has no defaults."""


def completed(config: Config) -> dict[str, object]:
    """Return the rotations that a configuration means without describing them."""
    is_said = config.get("rope_parameters") is not None
    return {} if is_said else {"rope_parameters": ROTATIONS}


# Layers


def kinds(config: Config) -> list[str]:
    """Return the kind of each layer.

    Raises
    ------
    ValueError
        They are another number, or the activation or the mask is none that files can hold.
    """
    found = config.require("layer_types", list[Literal["sliding_attention", "full_attention"]])
    if len(found) != config.n_layers:
        raise ValueError(f"layer_types has {len(found)} entries, not {config.n_layers}")
    activation = config.get("hidden_activation", default="gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise ValueError(f"hidden_activation is {activation!r}, not 'gelu_pytorch_tanh'")
    if config.get("use_bidirectional_attention") == "all":
        raise ValueError("tokens see those after them (use_bidirectional_attention)")
    return [*found]


def n_storing(config: Config) -> int:
    """Return how many layers store keys and values, the first ones."""
    n_sharing: int = config.get("num_kv_shared_layers", default=0, type=int)
    if not 0 <= n_sharing <= config.n_layers:
        raise ValueError(f"num_kv_shared_layers is {n_sharing} of {config.n_layers} layers")
    return config.n_layers - n_sharing


def storing(config: Config) -> range:
    """Return the layers that store keys and values."""
    return range(n_storing(config))


def with_values(config: Config) -> list[int]:
    """Return those with a matrix for values; others take those of keys."""
    shares = config.get("attention_k_eq_v", default=False)
    found = kinds(config)
    return [n for n in storing(config) if not shares or found[n] == SLIDING]


def with_experts(config: Config) -> range:
    """Return the layers that have experts beside their dense part."""
    return range(config.n_layers if config.get("enable_moe_block", default=False) else 0)


def with_embeddings(config: Config) -> range:
    """Return the layers that have embeddings of their own."""
    return range(config.n_layers if width_by_layer(config) else 0)


# Tensors

LAYER = (
    *block_renames(
        {
            "input_layernorm.weight": "attn_norm.weight",
            "self_attn.q_proj.weight": "attn_q.weight",
            "self_attn.q_norm.weight": "attn_q_norm.weight",
            "self_attn.o_proj.weight": "attn_output.weight",
            "post_attention_layernorm.weight": "post_attention_norm.weight",
            "pre_feedforward_layernorm.weight": "ffn_norm.weight",
            "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
        }
    ),
    *SWIGLU,
    *block_renames({"layer_scalar": "layer_output_scale.weight"}, optional=True),
)
"""What trunk and assistant have in every layer."""

STORED = (
    *block_renames({"self_attn.k_proj.weight": "attn_k.weight"}),
    *(rename for rename in HEAD_NORMS if "k_norm" in rename.source),
)
EXPERTS = (
    *block_renames(
        {
            "router.proj.weight": "ffn_gate_inp.weight",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
            "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
            "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
        }
    ),
    *block_renames({"experts.gate_up_proj": "ffn_gate_up_exps.weight"}, is_stack=True),
    *block_renames({"experts.down_proj": "ffn_down_exps.weight"}, is_stack=True),
)
EMBEDDINGS = block_renames(
    {
        "per_layer_input_gate.weight": "inp_gate.weight",
        "per_layer_projection.weight": "proj.weight",
        "post_per_layer_input_norm.weight": "post_norm.weight",
    }
)

OF_LAYERS = (
    Rename("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    Rename("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    Rename("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
)
TABLES = (
    Rename("model.embed_tokens.weight", "token_embd.weight"),
    Rename("model.norm.weight", "output_norm.weight"),
    Rename("lm_head.weight", "output.weight", optional=True, copy_of="model.embed_tokens.weight"),
)


def frequency_divisors(config: Config) -> np.ndarray:
    """Return the divisors of rotary frequencies of layers that see all, float32[width / 2].

    Raises
    ------
    ValueError
        The rotation is none that files can hold.
    """
    at = f"rope_parameters.{FULL}."
    kind = config.get(at + "rope_type", default="default")
    if kind != "proportional" or config.get(at + "factor", default=1.0, type=float) != 1:
        raise ValueError(f"layers that see all have another rotation (rope_type {kind})")
    share = config.get(at + "partial_rotary_factor", default=1.0, type=float)
    width = wide_head(config)
    n = int(share * width // 2)
    return np.where(np.arange(width // 2) < n, np.float32(1), NEVER)


# Metadata


def of_full(config: Config, name: str) -> int | None:
    """Return what layers that see all have in place of ``name``."""
    found = kinds(config)
    by_layer: dict[str, Any] = config.get("per_layer_config", default={}, type=dict)
    given = {
        config.get(f"per_layer_config.{key}.{spelled}", type=Count)
        for key, layer in by_layer.items()
        if key == FULL or (key.isdecimal() and int(key) < len(found) and found[int(key)] == FULL)
        for spelled in (name, f"num_{name}")
        if spelled in layer
    }
    for spelled in (f"global_{name}", f"num_global_{name}"):
        given.add(config.get(spelled, type=Count))
    given.discard(None)
    if len(given) > 1:
        raise ValueError(f"layers that see all differ in {name}: {sorted(given)}")
    return int(given.pop()) if given else None


def wide_head(config: Config) -> int:
    """Return the width of heads of layers that see all."""
    return of_full(config, "head_dim") or 512


def kv_heads(config: Config) -> list[int]:
    """Return each layer's key and value heads."""
    near = config.require("num_key_value_heads", Count)
    wide = of_full(config, "key_value_heads") if config.get("attention_k_eq_v") else None
    return [near if kind == SLIDING else wide or near for kind in kinds(config)]


def n_ff(config: Config) -> int | list[int]:
    """Return the width of dense feed-forward parts; layers that share may have twice of it."""
    width, n = config.require("intermediate_size", Count), n_storing(config)
    if not config.get("use_double_wide_mlp", default=False):
        return int(width)
    return [width if i < n else 2 * width for i in range(config.n_layers)]


def plain_rotation(of: str) -> Callable[[Config], float]:
    """Return a source of metadata: the base of the rotation of layers of a kind, of whole heads.

    It raises ValueError where the rotation is another one than files can hold.
    """
    at = f"rope_parameters.{of}."

    def read(config: Config) -> float:
        kind = config.get(at + "rope_type", default="default")
        if kind != "default" or config.get(at + "partial_rotary_factor", default=1.0) != 1:
            raise ValueError(f"layers of {of} have another rotation (rope_type {kind})")
        return float(config.require(at + "rope_theta", float))

    return read


def wide_rotation(config: Config) -> float:
    """Return the base of the rotation of layers that see all."""
    return float(config.require(f"rope_parameters.{FULL}.rope_theta", float))


def width_by_layer(config: Config) -> int:
    """Return the width of the embedding that each layer has of each token."""
    return int(config.get("hidden_size_per_layer_input", default=0, type=int))


def of_experts(name: str) -> Callable[[Config], int | None]:
    """Return a source of metadata: a value that a model with experts has."""
    return lambda config: config.require(name, Count) if with_experts(config) else None


SIZES = (
    *(
        (key, source)
        for key, source in DECODER
        if key.partition(".")[2]
        not in (
            "feed_forward_length",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.value_length",
        )
    ),
    ("{arch}.feed_forward_length", n_ff),
    ("{arch}.attention.head_count_kv", kv_heads),
    ("{arch}.attention.key_length", wide_head),
    ("{arch}.attention.value_length", wide_head),
    ("{arch}.attention.key_length_swa", "head_dim"),
    ("{arch}.attention.value_length_swa", "head_dim"),
    ("{arch}.attention.sliding_window", "sliding_window"),
    (
        "{arch}.attention.sliding_window_pattern",
        lambda config: [kind == SLIDING for kind in kinds(config)],
    ),
    ("{arch}.rope.freq_base", wide_rotation),
    ("{arch}.rope.freq_base_swa", plain_rotation(SLIDING)),
    ("{arch}.rope.dimension_count", wide_head),
    ("{arch}.rope.dimension_count_swa", "head_dim"),
    ("{arch}.embedding_length_per_layer_input", width_by_layer),
)
"""Keys of trunk and assistant."""

EPSILON = (("rms_norm_eps", 1e-6),)
PARTS = (
    ("vision_soft_tokens_per_image", "of images"),
    ("audio_soft_tokens_per_clip", "of sound"),
)
CHECKPOINT = Checkpoint(
    architectures=frozenset({"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"}),
    completed=completed,
    defaults=(*EPSILON, ("hidden_size_per_layer_input", None)),
    tensors=(
        *TABLES,
        *LAYER,
        *on_layers(storing, STORED),
        *on_layers(with_values, block_renames({"self_attn.v_proj.weight": "attn_v.weight"})),
        *on_layers(with_experts, EXPERTS),
        *on_layers(with_embeddings, EMBEDDINGS),
        *optional(lambda config: not width_by_layer(config), OF_LAYERS),
    ),
    dropped=(
        # Of layers that share; the model does not read them.
        "model.layers.{n}.self_attn.k_proj.weight",
        "model.layers.{n}.self_attn.v_proj.weight",
        "model.layers.{n}.self_attn.k_norm.weight",
        "model.vision_tower.*",
        "model.audio_tower.*",
        "model.vision_embedder.*",
        "model.embed_vision.*",
        "model.embed_audio.*",
    ),
    made=(("rope_freqs.weight", frequency_divisors),),
    metadata=(
        *SIZES,
        ("{arch}.attention.shared_kv_layers", lambda config: config.n_layers - n_storing(config)),
        (
            "{arch}.attention.image_spans",
            lambda config: config.get("use_bidirectional_attention") == "vision",
        ),
        # 0 is none; without the key llama.cpp takes 30.
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping", default=0.0)),
        ("{arch}.expert_count", of_experts("num_experts")),
        ("{arch}.expert_used_count", of_experts("top_k_experts")),
        ("{arch}.expert_feed_forward_length", of_experts("moe_intermediate_size")),
    ),
    harmless=(("vocab_size_per_layer_input", "the tensors say it"), *PARTS),
    prefixes=(("model.language_model.", "model."),),
    nested=("text_config",),
)
UNIFIED_CHECKPOINT = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"}),
    defaults=(*EPSILON, ("use_bidirectional_attention", "vision")),
)


def as_ids(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the tokens of the first cluster, of the second, and so on, as files hold them."""
    return values.astype(np.int32)


def n_clusters_used(config: Config) -> int | None:
    """Return how many clusters of tokens the assistant computes logits of; None: all tokens."""
    n_used = config.get("centroid_intermediate_top_k", type=Count)
    if not config.get("use_ordered_embeddings", default=False):
        return None
    return int(n_used or config.require("centroid_intermediate_top_k", Count))


def n_reading(config: Config) -> int:
    """Return how many layers of the assistant read what the trunk stores: all.

    Raises
    ------
    ValueError
        The configuration counts some of them.
    """
    if config.n_layers - n_storing(config) not in (0, config.n_layers):
        raise ValueError("num_kv_shared_layers counts some layers of the assistant, not all")
    return config.n_layers


def without_clusters(config: Config) -> bool:
    """Say whether the assistant has no clusters of tokens."""
    return n_clusters_used(config) is None


ASSISTANT_CHECKPOINT = Checkpoint(
    architectures=frozenset({"Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"}),
    requires=("backbone_hidden_size",),
    completed=completed,
    defaults=EPSILON,
    tensors=(
        Rename("pre_projection.weight", "nextn.pre_projection.weight"),
        Rename("post_projection.weight", "nextn.post_projection.weight"),
        Rename("model.embed_tokens.weight", "token_embd.weight"),
        Rename("model.norm.weight", "output_norm.weight"),
        *LAYER,
        *optional(
            without_clusters,
            (
                Rename("masked_embedding.centroids.weight", "masked_embd_centroids.weight"),
                Rename("masked_embedding.token_ordering", "masked_embd_ordering", as_ids),
            ),
        ),
    ),
    dropped=("lm_head.weight",),  # the embedding table
    constants=(("enable_moe_block", (False,)),),
    harmless=(
        ("num_centroids vocab_size_per_layer_input", "the tensors say it"),
        ("final_logit_softcapping", "the order of drafts is the same without it"),
        *PARTS,
    ),
    made=(("rope_freqs.weight", frequency_divisors),),
    metadata=(
        *SIZES,
        ("{arch}.attention.shared_kv_layers", n_reading),
        ("{arch}.embedding_length_out", "backbone_hidden_size"),
        ("{arch}.nextn_predict_layers", lambda config: config.n_layers),
        ("{arch}.centroid_intermediate_top_k", n_clusters_used),
    ),
    nested=("text_config",),
)
