"""How Qwen3.5, Qwen3.6 and Qwen3-Next are published, and what their model files call it."""

from collections.abc import Callable
from typing import Literal

import msgspec

from mtpcore.plugin import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    EXPERTS,
    HEAD_NORMS,
    ROPE_KEYS,
    STATED,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    Count,
    Key,
    Rename,
    block_renames,
    head_width,
    in_heads,
    on_layers,
    optional,
)
from mtpcore_qwen_mtp.values import (
    add_one,
    columns_in_tiles,
    first_half,
    gate_of_groups,
    kernel,
    kernel_in_tiles,
    qkv_of_groups,
    rate,
    rate_in_tiles,
    rows_in_tiles,
    second_half,
    values_in_tiles,
)

INTERVAL = 4
SECTIONS = (11, 11, 10)
"""What a configuration means that leaves them out."""

HEAD = "mtp.layers.{i}."


# Layers


def linear(config: Config) -> list[int]:
    """Return the layers of Gated DeltaNet."""
    kinds = config.get("layer_types", type=list[Literal["linear_attention", "full_attention"]])
    if kinds is None:
        interval = config.get("full_attention_interval", default=INTERVAL, type=Count)
        return [n for n in range(config.n_layers) if (n + 1) % interval]
    if len(kinds) != config.n_layers:
        raise ValueError(f"layer_types has {len(kinds)} entries, not {config.n_layers}")
    return [n for n, kind in enumerate(kinds) if kind == "linear_attention"]


def full(config: Config) -> list[int]:
    """Return the layers of attention."""
    return sorted({*range(config.n_layers)} - {*linear(config)})


def sparse(config: Config) -> list[int]:
    """Return the layers with experts, of those models that may have others."""
    step = config.get("decoder_sparse_step", default=1, type=Count)
    dense = config.get("mlp_only_layers", default=(), type=list[int])
    return [n for n in range(config.n_layers) if n not in dense and (n + 1) % step == 0]


def dense(config: Config) -> list[int]:
    """Return the other layers."""
    return sorted({*range(config.n_layers)} - {*sparse(config)})


# Tensors


def zero_centred(*tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables; norms, which are published minus one, get it back."""
    return tuple(
        msgspec.structs.replace(r, change=add_one) if r.tensor.endswith("norm.weight") else r
        for table in tables
        for r in table
    )


NORM = "input_layernorm.weight"
NORMS = zero_centred(
    block_renames(
        {NORM: "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight"}
    )
)
FULL = zero_centred(tuple(r for r in ATTENTION if not r.source.endswith(NORM)), HEAD_NORMS)

LINEAR_AS_PUBLISHED = block_renames(
    {"linear_attn.norm.weight": "ssm_norm.weight"}  # the one norm that is published as it is
)
GROUPED = (
    *LINEAR_AS_PUBLISHED,
    *block_renames(
        {
            "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
            "linear_attn.dt_bias": "ssm_dt.bias",
            "linear_attn.out_proj.weight": "ssm_out.weight",
        }
    ),
    *block_renames({"linear_attn.in_proj_qkvz.weight": "attn_qkv.weight"}, change=qkv_of_groups),
    *block_renames({"linear_attn.in_proj_qkvz.weight": "attn_gate.weight"}, change=gate_of_groups),
    *block_renames({"linear_attn.conv1d.weight": "ssm_conv1d.weight"}, change=kernel),
    *block_renames({"linear_attn.A_log": "ssm_a"}, change=rate),
)
"""Gated DeltaNet as Qwen3-Next publishes it; its files keep V heads by the K head they share."""

TILED = (
    *LINEAR_AS_PUBLISHED,
    *block_renames(
        {
            "linear_attn.in_proj_z.weight": "attn_gate.weight",
            "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
            "linear_attn.in_proj_b.weight": "ssm_beta.weight",
            "linear_attn.dt_bias": "ssm_dt.bias",
        },
        change=rows_in_tiles,
    ),
    *block_renames({"linear_attn.in_proj_qkv.weight": "attn_qkv.weight"}, change=values_in_tiles),
    *block_renames({"linear_attn.conv1d.weight": "ssm_conv1d.weight"}, change=kernel_in_tiles),
    *block_renames({"linear_attn.A_log": "ssm_a"}, change=rate_in_tiles),
    *block_renames({"linear_attn.out_proj.weight": "ssm_out.weight"}, change=columns_in_tiles),
)
"""The same as Qwen3.5 publishes it; its files have V heads in another order."""

GATE_UP = "mlp.experts.gate_up_proj"
STACKED = (
    *block_renames({GATE_UP: "ffn_gate_exps.weight"}, change=first_half, is_stack=True),
    *block_renames({GATE_UP: "ffn_up_exps.weight"}, change=second_half, is_stack=True),
    *block_renames({"mlp.experts.down_proj": "ffn_down_exps.weight"}, is_stack=True),
)
EXPERT_STACKS = (
    # In one piece or in as many as there are experts; the graph needs one or the other.
    *optional(True, STACKED, tuple(r for r in EXPERTS if "{e}" in r.source)),
)
MIXTURE = (
    *block_renames(
        {
            "mlp.gate.weight": "ffn_gate_inp.weight",
            "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
            "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
            "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
            "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
        }
    ),
)


# Metadata


def recurrent(config: Config) -> list[bool]:
    """Return for each block whether it is one of Gated DeltaNet; heads are none."""
    layers = {*linear(config)}
    return [n in layers for n in range(config.n_blocks)]


def rotated(config: Config) -> int:
    """Return how much of a head is rotated."""
    share = config.get(
        "rope_parameters.partial_rotary_factor",
        "rope_scaling.partial_rotary_factor",
        "partial_rotary_factor",
        default=0.25,
        type=float,
    )
    return int(head_width(config) * share)


def sections(config: Config) -> list[int]:
    """Return how many pairs each of the four axes of a position rotates."""
    given = config.get(
        "rope_parameters.mrope_section",
        "rope_scaling.mrope_section",
        default=SECTIONS,
        type=list[int],
    )
    return [*given, 0, 0, 0, 0][:4]


def inner(config: Config) -> int:
    """Return the width of all V heads together."""
    n_heads = config.require("linear_num_value_heads", Count)
    return int(n_heads * config.require("linear_value_head_dim", Count))


def n_experts(config: Config) -> int:
    """Return how many experts there are; transformers 5 may write another name."""
    return int(config["num_experts|num_local_experts"])


def has_experts(config: Config) -> bool:
    """Say whether heads have experts; a trunk's table knows it."""
    return config.get("num_experts", "num_local_experts") is not None


def is_dense(config: Config) -> bool:
    """Say whether heads have none."""
    return not has_experts(config)


def divides_shares(config: Config) -> bool | None:
    """Return False where experts' weights are not divided by their sum; files need not say else."""
    return None if config.get("norm_topk_prob", default=True) else False


HYBRID = (
    *DECODER,
    *ROPE_KEYS,
    ("{arch}.rope.dimension_count", rotated),
    ("{arch}.full_attention_interval", Key("full_attention_interval", INTERVAL)),
    ("{arch}.attention.recurrent_layers", recurrent),
    ("{arch}.ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("{arch}.ssm.state_size", "linear_key_head_dim"),
    ("{arch}.ssm.group_count", "linear_num_key_heads"),
    ("{arch}.ssm.time_step_rank", "linear_num_value_heads"),
    ("{arch}.ssm.inner_size", inner),
)
MIXTURE_KEYS = (
    ("{arch}.expert_count", n_experts),
    ("{arch}.expert_used_count", "num_experts_per_tok"),
    ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
    ("{arch}.expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
)


# Checkpoints


def trunk(
    *architectures: str,
    tensors: tuple[Rename, ...],
    metadata: tuple[tuple[str, str | Key | Callable[[Config], object]], ...] = (),
    stated: tuple[tuple[str, object], ...] = STATED,
) -> Checkpoint:
    """Return the table of a trunk: what all have in common, and ``tensors`` and ``metadata``."""
    return Checkpoint(
        architectures=frozenset(architectures),
        defaults=(*stated, ("head_dim", None), ("rms_norm_eps", 1e-6)),
        tensors=(*zero_centred(TABLES), *NORMS, *on_layers(full, FULL), *tensors),
        dropped=("model.visual.*", "visual.*"),
        metadata=(*HYBRID, *metadata),
        prefixes=(("model.language_model.", "model."), ("model.mtp.", "mtp.")),
        nested=("text_config",),
        constants=(
            *CONSTANTS,
            ("attn_output_gate", (True,)),
            ("use_sliding_window", (False,)),
            ("rope_parameters.mrope_interleaved", (True,)),
            ("rope_scaling.mrope_interleaved", (True,)),
            ("mtp_use_dedicated_embeddings", (False,)),
        ),
        harmless=(
            ("mamba_ssm_dtype", "states are F32 anyway"),
            ("max_window_layers sliding_window", "use_sliding_window says that there is none"),
        ),
    )


DENSE_CLASSES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
SPARSE_CLASSES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
NEXT_CLASSES = ("Qwen3NextForCausalLM",)
M_ROPE = ("{arch}.rope.dimension_sections", sections)

QWEN35_CHECKPOINT = trunk(
    *DENSE_CLASSES, tensors=(*on_layers(linear, TILED), *SWIGLU), metadata=(M_ROPE,)
)
QWEN35MOE_CHECKPOINT = trunk(
    *SPARSE_CLASSES,
    tensors=(*on_layers(linear, TILED), *MIXTURE, *EXPERT_STACKS),
    metadata=(M_ROPE, *MIXTURE_KEYS),
    stated=STATED[1:],  # no layer is dense
)
QWEN3NEXT_CHECKPOINT = trunk(
    *NEXT_CLASSES,
    tensors=(
        *on_layers(linear, GROUPED),
        *on_layers(sparse, MIXTURE, EXPERT_STACKS),
        *on_layers(dense, SWIGLU),
    ),
    metadata=(*MIXTURE_KEYS, ("{arch}.expert_weights_norm", divides_shares)),
)
SPECULATORS_CLASS = "MTPDraftModel"


def head_alone(of: Checkpoint, model_type: str) -> Checkpoint:
    """Return the table of a head that speculators trained: its configuration is the target's."""
    return msgspec.structs.replace(
        of,
        architectures=frozenset({SPECULATORS_CLASS}),
        requires=(f"transformer_layer_config.model_type={model_type}",),
        nested=("transformer_layer_config",),
        tensors=zero_centred(TABLES[:2], optional(True, TABLES[2:])),  # as the target has them
        is_beside_target=True,
        prefixes=(
            *of.prefixes,
            ("mtp_layers.", "mtp.layers."),
            ("mtp_layers.0.input_proj.", "mtp.fc."),
            ("mtp_layers.0.token_layernorm.", "mtp.pre_fc_norm_embedding."),
            ("mtp_layers.0.hidden_layernorm.", "mtp.pre_fc_norm_hidden."),
            ("mtp_layers.0.final_layernorm.", "mtp.norm."),
        ),
        harmless=(
            *of.harmless,
            ("decoder_sparse_step mlp_only_layers", "of the trunk's layers"),
            ("has_no_defaults_at_init", "of training"),
        ),
    )


HEAD_CHECKPOINT = Checkpoint(
    architectures=frozenset(
        (*DENSE_CLASSES, *SPARSE_CLASSES, *NEXT_CLASSES, SPECULATORS_CLASS),
    ),
    heads=HEAD + NORM,
    counts=("mtp_num_hidden_layers",),
    tensors=(
        Rename("mtp.fc.weight", "blk.{n}.nextn.eh_proj.weight"),
        *zero_centred(
            (
                Rename("mtp.pre_fc_norm_embedding.weight", "blk.{n}.nextn.enorm.weight"),
                Rename("mtp.pre_fc_norm_hidden.weight", "blk.{n}.nextn.hnorm.weight"),
                Rename("mtp.norm.weight", "blk.{n}.nextn.shared_head_norm.weight"),
            )
        ),
        *in_heads(HEAD, NORMS, FULL, optional(has_experts, SWIGLU), optional(is_dense, MIXTURE)),
        *in_heads(HEAD, EXPERT_STACKS),
    ),
    nested=("text_config",),
)
