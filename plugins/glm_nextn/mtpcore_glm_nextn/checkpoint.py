"""How GLM-4.5, 4.6 and 4.7 are published, and what their model files call it."""

from mtpcore.plugin import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    NEXTN,
    ROPE_KEYS,
    SHARED_EXPERT,
    SPEAKER_TOKENS,
    STATED,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    block_renames,
    head_width,
    on_layers,
    optional,
)

PUBLISHED = frozenset({"Glm4MoeForCausalLM"})
SIGMOID = 2


def dense(config: Config) -> range:
    """Return the first layers, which have no experts."""
    return range(config["first_k_dense_replace"])


def sparse(config: Config) -> range:
    """Return the other layers of the trunk."""
    return range(config["first_k_dense_replace"], config.n_layers)


def rotated(config: Config) -> int:
    """Return how much of a head is rotated."""
    share = config.get(
        "rope_parameters.partial_rotary_factor", "partial_rotary_factor", default=0.5
    )
    return int(head_width(config) * share)


BLOCK = (
    *ATTENTION,
    *optional(lambda config: not config.get("attention_bias"), BIASES),
    *optional(lambda config: not config.get("use_qk_norm"), HEAD_NORMS),
    *block_renames({"post_attention_layernorm.weight": "post_attention_norm.weight"}),
)

MIXTURE = (
    *EXPERTS,
    *block_renames({"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    *optional(lambda config: not config.get("n_shared_experts"), SHARED_EXPERT),
)

TRUNK_CHECKPOINT = Checkpoint(
    architectures=PUBLISHED,
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("n_shared_experts", 1),
        ("n_group", 1),
        ("topk_group", 1),
        ("routed_scaling_factor", 1.0),
        ("norm_topk_prob", True),
    ),
    tensors=(*TABLES, *BLOCK, *on_layers(dense, SWIGLU), *on_layers(sparse, MIXTURE)),
    metadata=(
        *DECODER,
        *EXPERT_KEYS,
        *ROPE_KEYS,
        ("{arch}.rope.dimension_count", rotated),
        ("{arch}.expert_gating_func", lambda config: SIGMOID),
    ),
    special_tokens=SPEAKER_TOKENS,
    constants=CONSTANTS,
)

HEAD_CHECKPOINT = Checkpoint(
    architectures=PUBLISHED,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(*NEXTN, *BLOCK, *MIXTURE),
)
