"""How MiMo-V2 is published, and what its model files call it."""

from mtpcore.plugin import (
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    Rename,
    Shards,
    block_renames,
    in_heads,
    number,
    on_layers,
    optional,
    scaling_type,
)

PUBLISHED = frozenset({"MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"})
SIGMOID = 2
HEAD = "model.mtp.layers.{i}."


def dense(config: Config) -> list[int]:
    """Return the layers without experts."""
    return [n for n, sparse in enumerate(config["moe_layer_freq"]) if not sparse]


def sparse(config: Config) -> list[int]:
    """Return the layers with experts."""
    return [n for n, sparse in enumerate(config["moe_layer_freq"]) if sparse]


def windowed(config: Config) -> list[int]:
    """Return for each block whether it sees a sliding window; heads do."""
    return [*config["hybrid_layer_pattern"], *[1] * config.n_drafter_blocks]


def kv_heads(config: Config) -> list[int]:
    """Return each block's key and value heads."""
    counts = config["num_key_value_heads"], config["swa_num_key_value_heads"]
    return [counts[kind] for kind in windowed(config)]


def window(config: Config) -> int:
    """Return the places that a row sees, its own included, as files count them.

    ``sliding_window`` counts so too; ``sliding_window_size`` alone is so many places before the
    row, which is how transformers reads it.
    """
    if (with_own := config.get("sliding_window")) is not None:
        return int(with_own)
    return int(config["sliding_window_size"]) + 1


def rotated(config: Config) -> int:
    """Return how much of a head is turned."""
    return int(config["head_dim"] * config.get("partial_rotary_factor", default=1.0))


def parts(config: Config, n: int) -> tuple[int, ...]:
    """Return the rows of q, k and v in the fused matrix of block n."""
    n_kv = kv_heads(config)[n]
    width, v_width = config["head_dim"], config["v_head_dim"]
    return config["num_attention_heads"] * width, n_kv * width, n_kv * v_width


# The first number of ranks that the scales fit is taken; trunks are cut into 8 or 4.
FUSED = Shards(parts=parts, ranks=(8, 4))
FUSED_HEAD = Shards(parts=parts, ranks=(1, 4, 8))
SINKS = optional(True, block_renames({"self_attn.attention_sink_bias": "attn_sinks.weight"}))

TRUNK_CHECKPOINT = Checkpoint(
    architectures=PUBLISHED,
    tensors=(
        *TABLES,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
            }
        ),
        # Apart in V2-Flash, one matrix in V2.5; the graph needs one or the other.
        *optional(
            True,
            block_renames({f"self_attn.{x}_proj.weight": f"attn_{x}.weight" for x in "qkv"}),
            block_renames({"self_attn.qkv_proj.weight": "attn_qkv.weight"}, shards=FUSED),
        ),
        *SINKS,
        *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
        *on_layers(dense, SWIGLU),
        *on_layers(
            sparse,
            EXPERTS,
            block_renames({"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
        ),
    ),
    dropped=("visual.*", "audio_encoder.*", "speech_embeddings.*"),  # other parts of V2.5
    metadata=(
        *(
            (key, source)
            for key, source in DECODER
            if key
            not in (
                "{arch}.attention.head_count_kv",
                "{arch}.attention.value_length",
                "{arch}.attention.layer_norm_rms_epsilon",
            )
        ),
        *(
            (key, source)
            for key, source in EXPERT_KEYS
            if key not in ("{arch}.expert_weights_scale", "{arch}.expert_weights_norm")
        ),
        ("{arch}.expert_gating_func", lambda config: SIGMOID),
        ("{arch}.attention.head_count_kv", kv_heads),
        ("{arch}.attention.value_length", "v_head_dim"),
        ("{arch}.attention.value_scale", number("attention_value_scale")),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layernorm_epsilon", "rms_norm_eps")),
        ("{arch}.attention.sliding_window", window),
        ("{arch}.attention.sliding_window_pattern", windowed),
        ("{arch}.rope.dimension_count", rotated),
        ("{arch}.rope.freq_base", number("rope_theta")),
        ("{arch}.rope.freq_base_swa", number("swa_rope_theta")),
        ("{arch}.rope.scaling.type", scaling_type(())),
    ),
)

HEAD_CHECKPOINT = Checkpoint(
    architectures=PUBLISHED,
    heads=HEAD + "eh_proj.weight",
    counts=("num_nextn_predict_layers",),  # not every published configuration has it
    tensors=(
        Rename(HEAD + "eh_proj.weight", "blk.{n}.nextn.eh_proj.weight"),
        Rename(HEAD + "enorm.weight", "blk.{n}.nextn.enorm.weight"),
        Rename(HEAD + "hnorm.weight", "blk.{n}.nextn.hnorm.weight"),
        Rename(HEAD + "final_layernorm.weight", "blk.{n}.layer_output_norm.weight"),
        Rename(HEAD + "input_layernorm.weight", "blk.{n}.attn_norm.weight"),
        Rename(HEAD + "self_attn.qkv_proj.weight", "blk.{n}.attn_qkv.weight", shards=FUSED_HEAD),
        Rename(HEAD + "self_attn.o_proj.weight", "blk.{n}.attn_output.weight"),
        Rename(HEAD + "pre_mlp_layernorm.weight", "blk.{n}.ffn_norm.weight"),
        *in_heads(HEAD, SINKS, SWIGLU),
    ),
)
