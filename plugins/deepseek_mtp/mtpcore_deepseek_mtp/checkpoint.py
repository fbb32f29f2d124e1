"""How DeepSeek-V2, V3, R1 and GLM-4.7-Flash are published, and what their model files call it."""

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from mtpcore.plugin import (
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    NEXTN,
    ROPE_KEYS,
    SHARED_EXPERT,
    SPEAKER_TOKENS,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    Key,
    block_renames,
    on_layers,
    optional,
)

SOFTMAX, SIGMOID = 1, 2
COUNT = "first_k_dense_replace"


def n_dense(config: Config) -> int:
    """Return how many layers have no experts, the first ones.

    Configurations count them, or name the kind of each layer, as transformers 5 does.

    Raises
    ------
    ValueError
        Both are said and disagree, or dense layers follow one with experts.
    """
    kinds = config.get("mlp_layer_types", type=list[Literal["dense", "sparse"]])
    if kinds is None:
        return int(config.require(COUNT, int))
    n: int = kinds.count("dense")
    told = n if config.lacks(COUNT) else config.get(COUNT, default=n, type=int)
    if kinds[:n] != ["dense"] * n or told != n or len(kinds) != config.n_layers:
        raise ValueError(f"mlp_layer_types says other layers than the first {told} of them")
    return n


def dense(config: Config) -> range:
    """Return the first layers, which have no experts."""
    return range(n_dense(config))


def sparse(config: Config) -> range:
    """Return the other layers of the trunk."""
    return range(n_dense(config), config.n_layers)


def halves_of_heads(values: Any, config: Config) -> tuple[Any, Any]:
    """Return key and value rows of ``kv_b_proj``, each [heads, width, rank]."""
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    n_plain = config["qk_nope_head_dim"]
    return heads[:, :n_plain], heads[:, n_plain:]


def keys(values: Any, config: Config) -> Any:
    """Return the matrices that take a head's query to the compressed row."""
    return halves_of_heads(values, config)[0].swapaxes(1, 2)


def values(values: Any, config: Config) -> Any:
    """Return the matrices that take a compressed row to a head's value."""
    return halves_of_heads(values, config)[1]


def low_rank(config: Config) -> bool:
    """Say whether queries go through a compressed row, too."""
    return config.get("q_lora_rank") is not None


def corrected(config: Config) -> bool:
    """Say whether routers have corrections."""
    return bool(config.get("topk_method", default="noaux_tc") == "noaux_tc")


BLOCK = (
    *block_renames(
        {
            "input_layernorm.weight": "attn_norm.weight",
            "post_attention_layernorm.weight": "ffn_norm.weight",
            "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
            "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
            "self_attn.o_proj.weight": "attn_output.weight",
        }
    ),
    *block_renames({"self_attn.kv_b_proj.weight": "attn_k_b.weight"}, change=keys),
    *block_renames({"self_attn.kv_b_proj.weight": "attn_v_b.weight"}, change=values),
    *block_renames({"self_attn.q_proj.weight": "attn_q.weight"}, optional=low_rank),
    *block_renames(
        {
            "self_attn.q_a_proj.weight": "attn_q_a.weight",
            "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
            "self_attn.q_b_proj.weight": "attn_q_b.weight",
        },
        optional=lambda config: not low_rank(config),
    ),
)

MIXTURE = (
    *EXPERTS,
    *block_renames(
        {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        optional=lambda config: not corrected(config),
    ),
    *optional(lambda config: not config.get("n_shared_experts"), SHARED_EXPERT),
)


def gate(config: Config) -> int:
    """Return how experts are weighted; configurations without corrections are V2's."""
    named = config.get("scoring_func", default="sigmoid" if corrected(config) else "softmax")
    return SIGMOID if named == "sigmoid" else SOFTMAX


def scaling(config: Config, name: str) -> float | None:
    """Return a value of YaRN's scaling, None where it is not used or the value is missing or 0."""
    for group in ("rope_parameters", "rope_scaling"):
        if config.get(f"{group}.rope_type", f"{group}.type") == "yarn":
            return float(config.get(f"{group}.{name}", default=0.0)) or None
    return None


def log_multiplier(config: Config) -> float | None:
    """Return the tenth of ``mscale_all_dim`` by which scores rise with the factor's logarithm."""
    share = scaling(config, "mscale_all_dim")
    return None if share is None else 0.1 * share


def magnitude(config: Config) -> float | None:
    """Return the rotation's magnitude where the two mscales differ, so that it is not 1."""
    ours, all_dims = scaling(config, "mscale"), scaling(config, "mscale_all_dim")
    if ours is None or all_dims is None or ours == all_dims:
        return None
    rise = 0.1 * math.log(scaling(config, "factor") or 1.0)
    return (1 + ours * rise) / (1 + all_dims * rise)


def total(*names: str) -> Callable[[Config], int]:
    """Return a source of metadata: the sum of some values."""
    return lambda config: sum(int(config[name]) for name in names)


MAGNITUDE = "{arch}.rope.scaling.attn_factor"
OWN = (
    # With a multiplier the factor's own rise is the scores', so that this one is whole.
    *((key, source) for key, source in ROPE_KEYS if key != MAGNITUDE),
    (MAGNITUDE, magnitude),
    ("{arch}.attention.head_count_kv", lambda config: 1),
    ("{arch}.attention.key_length", total("kv_lora_rank", "qk_rope_head_dim")),
    ("{arch}.attention.value_length", "kv_lora_rank"),
    ("{arch}.attention.key_length_mla", total("qk_nope_head_dim", "qk_rope_head_dim")),
    ("{arch}.attention.value_length_mla", "v_head_dim"),
    ("{arch}.attention.q_lora_rank", Key("q_lora_rank")),
    ("{arch}.attention.kv_lora_rank", "kv_lora_rank"),
    ("{arch}.rope.dimension_count", "qk_rope_head_dim"),
    ("{arch}.rope.scaling.yarn_log_multiplier", log_multiplier),
    ("{arch}.leading_dense_block_count", n_dense),
    ("{arch}.expert_gating_func", gate),
    ("{arch}.vocab_size", "vocab_size"),
)

FLASH = "Glm4MoeLiteForCausalLM"
PUBLISHED = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", FLASH})


COMMON = (("intermediate_size", None), ("q_lora_rank", None))
V2_CHECKPOINT = Checkpoint(
    architectures=frozenset({"DeepseekV2ForCausalLM"}),
    defaults=(
        *COMMON,
        ("rms_norm_eps", 1e-6),
        ("n_shared_experts", 2),
        ("routed_scaling_factor", 1.0),
        ("norm_topk_prob", False),
        ("topk_method", "greedy"),
    ),
    tensors=(*TABLES, *BLOCK, *on_layers(dense, SWIGLU), *on_layers(sparse, MIXTURE)),
    dropped=("model.layers.{n}.self_attn.rotary_emb.inv_freq",),
    metadata=(*DECODER, *EXPERT_KEYS, *OWN),
    constants=(*CONSTANTS, ("rope_interleave", (True,)), ("moe_layer_freq", (1,))),
    harmless=(("qk_head_dim head_dim", "a sum of others"),),
)

V3_CHECKPOINT = msgspec.structs.replace(
    V2_CHECKPOINT,
    architectures=frozenset({"DeepseekV3ForCausalLM"}),
    defaults=(
        *COMMON,
        ("rms_norm_eps", 1e-6),
        ("n_shared_experts", 1),
        ("n_group", 8),
        ("topk_group", 4),
        ("routed_scaling_factor", 2.5),
        ("norm_topk_prob", True),
    ),
)
FLASH_CHECKPOINT = msgspec.structs.replace(
    V2_CHECKPOINT,
    architectures=frozenset({FLASH}),
    defaults=(
        *COMMON,
        (COUNT, 1),
        ("rms_norm_eps", 1e-5),
        ("n_shared_experts", 1),
        ("n_group", 1),
        ("topk_group", 1),
        ("routed_scaling_factor", 1.8),
        ("norm_topk_prob", True),
    ),
    special_tokens=SPEAKER_TOKENS,
)
INDEXER = block_renames(
    {
        "self_attn.indexer.k_norm.weight": "indexer.k_norm.weight",
        "self_attn.indexer.k_norm.bias": "indexer.k_norm.bias",
        "self_attn.indexer.weights_proj.weight": "indexer.proj.weight",
        "self_attn.indexer.wk.weight": "indexer.attn_k.weight",
        "self_attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    }
)
"""What chooses the tokens that a row sees."""


def chosen_everywhere(config: Config) -> list[bool]:
    """Return which layers have an indexer of their own: all.

    Raises
    ------
    ValueError
        Some use that of another layer.
    """
    kinds = config.get("indexer_types", default=["full"] * config.n_layers, type=list[str])
    if kinds != ["full"] * config.n_layers:
        raise ValueError("layers without an indexer of their own (indexer_types)")
    return [True] * config.n_layers


V32_CHECKPOINT = msgspec.structs.replace(
    V3_CHECKPOINT,
    architectures=frozenset({"DeepseekV32ForCausalLM"}),
    tensors=(*V3_CHECKPOINT.tensors, *INDEXER),
    constants=(
        *V3_CHECKPOINT.constants,
        ("mlp_bias", (False,)),
        ("indexer_rope_interleave", (True,)),
    ),
    harmless=(
        *V3_CHECKPOINT.harmless,
        ("layer_types", "which layers have an indexer: all"),
    ),
    metadata=(
        *V3_CHECKPOINT.metadata,
        ("{arch}.attention.indexer.head_count", "index_n_heads"),
        ("{arch}.attention.indexer.key_length", "index_head_dim"),
        ("{arch}.attention.indexer.top_k", "index_topk"),
    ),
)
DSA_CHECKPOINT = msgspec.structs.replace(
    V32_CHECKPOINT,
    architectures=frozenset({"GlmMoeDsaForCausalLM"}),
    defaults=(
        *COMMON,
        ("rms_norm_eps", 1e-5),
        ("n_shared_experts", 1),
        ("n_group", 1),
        ("topk_group", 1),
        ("routed_scaling_factor", 2.5),
        ("norm_topk_prob", True),
    ),
    metadata=(
        *V32_CHECKPOINT.metadata,
        ("{arch}.attention.indexer.types", chosen_everywhere),
    ),
    special_tokens=SPEAKER_TOKENS,
)
HEAD_CHECKPOINT = Checkpoint(
    architectures=PUBLISHED | V32_CHECKPOINT.architectures | DSA_CHECKPOINT.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(*NEXTN, *BLOCK, *MIXTURE, *optional(True, INDEXER)),
)
