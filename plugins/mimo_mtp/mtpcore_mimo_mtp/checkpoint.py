"""How MiMo-V2 is published, and what its model files call it."""

from collections.abc import Callable, Mapping

import msgspec

from mtpcore.plugin import (
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    STATED,
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

FLASH, OMNI = frozenset({"MiMoV2FlashForCausalLM"}), frozenset({"MiMoV2ForCausalLM"})
SIGMOID = 2
FULL, NEAR = "rope_parameters.full_attention", "rope_parameters.sliding_attention"
HEAD = "model.mtp.layers.{i}."
HEADS = "num_key_value_heads"


KINDS = (
    ("hybrid_layer_pattern", "layer_types", ("full_attention", "sliding_attention")),
    ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
)
"""Which layers have a window, and which experts: as published, and as transformers 5 names it."""


def completed(config: Config) -> Mapping[str, object]:
    """Return settings as published of a configuration as transformers 5 makes it.

    Its layers with a window have twice the key and value heads of others.

    Raises
    ------
    ValueError
        It names layers of a third kind.
    """
    found: dict[str, object] = {}
    for published, named, kinds in KINDS:
        config.require(f"{published}|{named}")
        names = config.get(named, type=list[str])
        if names is not None:
            if not {*names} <= {*kinds}:
                raise ValueError(f"{named} are not all {' or '.join(kinds)}")
            found[published] = [kinds.index(name) for name in names]
    if "hybrid_layer_pattern" in found and config.lacks(f"swa_{HEADS}"):
        found[f"swa_{HEADS}"] = 2 * config.require(HEADS, int)
    return found


def dense(config: Config) -> list[int]:
    """Return the layers without experts."""
    return [n for n, sparse in enumerate(config["moe_layer_freq"]) if not sparse]


def sparse(config: Config) -> list[int]:
    """Return the layers with experts."""
    return [n for n, sparse in enumerate(config["moe_layer_freq"]) if sparse]


def windowed(config: Config) -> list[int]:
    """Return for each block whether it sees a sliding window; heads do.

    Raises
    ------
    ValueError
        The kinds of layers, where they are named as well, are others.
    """
    for pattern, name, kinds in KINDS:
        named = config.get(name, type=list[str])
        if named not in (None, [kinds[bool(kind)] for kind in config[pattern]]):
            raise ValueError(f"{name} and {pattern} disagree")
    for name in ("num_attention_heads", "head_dim", "v_head_dim"):
        if config.get(f"swa_{name}", default=config[name]) != config[name]:
            raise ValueError(f"layers with a window have another {name}")
    return [*config["hybrid_layer_pattern"], *[1] * config.n_drafter_blocks]


def kv_heads(config: Config) -> list[int]:
    """Return each block's key and value heads."""
    counts = config[HEADS], config[f"swa_{HEADS}"]
    return [counts[kind] for kind in windowed(config)]


def window(config: Config) -> int:
    """Return the places that a row sees, its own included, as files count them.

    ``sliding_window`` counts so too; ``sliding_window_size`` alone is so many places before the
    row, which is how transformers reads it.
    """
    with_own, before = (config.get(f"sliding_window{end}", type=int) for end in ("", "_size"))
    if with_own is None:
        return int(config.require("sliding_window_size", int)) + 1
    if before not in (None, with_own, with_own - 1):
        raise ValueError(f"sliding_window is {with_own}, sliding_window_size {before}")
    return int(with_own)


def rotated(config: Config) -> int:
    """Return how much of a head is rotated."""
    name = "partial_rotary_factor"
    share, near = (config.require(f"{name}|{at}.{name}", float) for at in (FULL, NEAR))
    if share != near:
        raise ValueError(f"layers with a window have another {name}")
    return int(config["head_dim"] * share)


def base(name: str, at: str) -> Callable[[Config], float]:
    """Return a source of metadata: the base of a rotation, as published or as of transformers 5."""
    return lambda config: float(config.require(f"{name}|{at}.rope_theta", float))


def parts(config: Config, n: int) -> tuple[int, ...]:
    """Return the rows of q, k and v in the fused matrix of block n."""
    n_kv = kv_heads(config)[n]
    width, v_width = config["head_dim"], config["v_head_dim"]
    return config["num_attention_heads"] * width, n_kv * width, n_kv * v_width


# The first number of ranks that the scales fit is taken; trunks are cut into 8 or 4.
FUSED = Shards(parts=parts, ranks=(8, 4))
FUSED_HEAD = Shards(parts=parts, ranks=(1, 4, 8))
SINKS = optional(True, block_renames({"self_attn.attention_sink_bias": "attn_sinks.weight"}))

DEFAULTS = (*STATED, ("n_group", 1), ("topk_group", 1), ("rms_norm_eps", 1e-5))

TRUNK_CHECKPOINT = Checkpoint(
    architectures=OMNI,
    completed=completed,
    defaults=DEFAULTS,
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
    constants=(
        *CONSTANTS,
        ("routed_scaling_factor", (1, 1.0)),
        ("norm_topk_prob", (True,)),
        ("topk_method", ("noaux_tc",)),
        ("scoring_func", ("sigmoid",)),
    ),
    harmless=(
        (
            "add_full_attention_sink_bias add_swa_attention_sink_bias attention_projection_layout",
            "which tensors there are: they say it",
        ),
        ("attention_chunk_size hybrid_block_size", "sliding_window and the pattern say it"),
        ("processor_config image_processor_config speech_config", "of images and sound"),
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
        ("{arch}.rope.freq_base", base("rope_theta", FULL)),
        ("{arch}.rope.freq_base_swa", base("swa_rope_theta", NEAR)),
        ("{arch}.rope.scaling.type", scaling_type(())),
    ),
)

FLASH_CHECKPOINT = msgspec.structs.replace(
    TRUNK_CHECKPOINT,
    architectures=FLASH,
    # 0.707 to transformers, none to llama.cpp's converter.
    defaults=(*DEFAULTS, ("attention_value_scale", None)),
)

HEAD_CHECKPOINT = Checkpoint(
    architectures=FLASH | OMNI,
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
