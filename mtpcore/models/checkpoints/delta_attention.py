"""Hybrids of Kimi Delta Attention and latent attention: Kimi Linear and Ling 3.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import FFN_NORM
from mtpcore.models.checkpoints.experts import MIXTRAL_EXPERTS
from mtpcore.models.checkpoints.layers import first_layers, later_layers, leading_dense
from mtpcore.models.checkpoints.mamba import rates
from mtpcore.models.published import (
    CONSTANTS,
    DECODER,
    EXPERTS,
    NEXTN,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    on_layers,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["BAILING_MOE3", "BAILING_MOE3_NEXTN", "KIMI_LINEAR"]

_SIGMOID = 2


def _rates_of_heads(values: TensorValues, config: Config) -> TensorValues:
    """Return by what a step is multiplied to get a log decay, [heads, 1]."""
    return rates(values, config).reshape(-1, 1)


def _with_axis(values: TensorValues, config: Config) -> TensorValues:
    """Return a convolution's weights, [channels, 1, kernel], as files have these."""
    return values.reshape(len(values), 1, -1)


def _keys(values: TensorValues, config: Config) -> TensorValues:
    """Return the matrices that take a head's query to the compressed row."""
    return _halves(values, config)[0].swapaxes(1, 2)


def _values(values: TensorValues, config: Config) -> TensorValues:
    """Return the matrices that take a compressed row to a head's value."""
    return _halves(values, config)[1]


def _halves(values: TensorValues, config: Config) -> tuple[TensorValues, TensorValues]:
    n_heads = config.require("num_attention_heads", Count)
    heads = values.reshape(n_heads, -1, values.shape[-1])
    n_plain = config.require("qk_nope_head_dim", Count)
    return heads[:, :n_plain], heads[:, n_plain:]


_DELTA = (
    *block_renames(
        {
            "self_attn.q_proj.weight": "attn_q.weight",
            "self_attn.k_proj.weight": "attn_k.weight",
            "self_attn.v_proj.weight": "attn_v.weight",
            "self_attn.o_proj.weight": "attn_output.weight",
            "self_attn.b_proj.weight": "ssm_beta.weight",
            "self_attn.f_a_proj.weight": "ssm_f_a.weight",
            "self_attn.f_b_proj.weight": "ssm_f_b.weight",
            "self_attn.g_a_proj.weight": "ssm_g_a.weight",
            "self_attn.g_b_proj.weight": "ssm_g_b.weight",
            "self_attn.o_norm.weight": "ssm_norm.weight",
            "self_attn.dt_bias": "ssm_dt.bias",
        }
    ),
    *block_renames({"self_attn.A_log": "ssm_a"}, change=_rates_of_heads),
    *block_renames(
        {f"self_attn.{part}_conv1d.weight": f"ssm_conv1d_{part}.weight" for part in "qkv"},
        change=_with_axis,
    ),
)
_LATENT = (
    *block_renames(
        {
            "self_attn.q_proj.weight": "attn_q.weight",
            "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
            "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
            "self_attn.o_proj.weight": "attn_output.weight",
        }
    ),
    *block_renames({"self_attn.kv_b_proj.weight": "attn_k_b.weight"}, change=_keys),
    *block_renames({"self_attn.kv_b_proj.weight": "attn_v_b.weight"}, change=_values),
)
_NORM = block_renames({"input_layernorm.weight": "attn_norm.weight"})
_AttentionKinds = list[Literal["linear_attention", "full_attention"]]


def _latent_layers(config: Config) -> list[int]:
    """Return the layers of latent attention, as kinds or as numbers from 1 on say.

    Raises
    ------
    ValueError
        There are not as many kinds as layers, or both say other layers.
    """
    kinds = config.get("layer_types", type=_AttentionKinds)
    numbers = config.get("linear_attn_config.full_attn_layers", type=list[int])
    if numbers is None:
        kinds = config.require("layer_types|linear_attn_config.full_attn_layers", _AttentionKinds)
    told = [n - 1 for n in numbers or ()]
    if kinds is None:
        return told
    found = [n for n, kind in enumerate(kinds) if kind == "full_attention"]
    if len(kinds) != config.n_layers or (numbers is not None and found != told):
        raise ValueError(f"layer_types says other layers of latent attention than {told}")
    return found


def _delta_layers(config: Config) -> list[int]:
    """Return the others.

    Raises
    ------
    ValueError
        The configuration lists others.
    """
    latent = {*_latent_layers(config)}
    layers = [n for n in range(config.n_layers) if n not in latent]
    told = config.get("linear_attn_config.kda_layers", type=list[int])
    if told is not None and [n - 1 for n in told] != layers:
        raise ValueError(f"kda_layers says other layers than {layers}, counted from 0")
    return layers


def _key_heads(config: Config) -> list[int]:
    """Return how many key heads each layer has: one that all share, or none."""
    latent = _latent_layers(config)
    return [int(n in latent) for n in range(config.n_layers)]


def _total(*names: str) -> Callable[[Config], int]:
    """Return a source: the sum of some sizes."""
    return lambda config: sum(config.require(name, Count) for name in names)


def _check_heads(config: Config) -> None:
    """Refuse another number of heads of KDA than of latent attention.

    Raises
    ------
    ValueError
        They differ.
    """
    n_heads = config.require("num_attention_heads", Count)
    told = config.get("linear_num_heads", "linear_attn_config.num_heads", default=n_heads)
    if told != n_heads:
        raise ValueError(f"{told} heads of delta attention, where files mean {n_heads}")


def _moe(prefix: str, table: tuple[Rename, ...]) -> tuple[Rename, ...]:
    return tuple(replace(one, source=one.source.replace(".mlp.", f".{prefix}.")) for one in table)


_dense = leading_dense("first_k_dense_replace")
KIMI_LINEAR = Checkpoint(
    architectures=frozenset({"KimiLinearForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", None),
        ("linear_num_heads", None),
        ("rms_norm_eps", 1e-5),
        ("topk_group", 1),
        ("num_shared_experts", 1),
        ("routed_scaling_factor", 2.446),
    ),
    tensors=(
        *TABLES,
        *_NORM,
        *FFN_NORM,
        *on_layers(_latent_layers, _LATENT),
        *on_layers(_delta_layers, _DELTA),
        *on_layers(first_layers(_dense), SWIGLU),
        *on_layers(
            later_layers(_dense),
            block_renames(
                {
                    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
                }
            ),
            MIXTRAL_EXPERTS,
            _moe("block_sparse_moe", SHARED_EXPERT),
        ),
    ),
    constants=(
        *CONSTANTS,
        ("moe_renormalize", (True,)),
        ("moe_router_activation_func", ("sigmoid",)),
        ("moe_layer_freq", (1,)),
        ("mla_use_nope", (True,)),
        ("num_expert_group", (1,)),
        ("use_grouped_topk", (True,)),
        ("q_lora_rank", ()),
    ),
    harmless=(
        ("rope_parameters rope_theta rope_scaling", "of a rotation, which no layer has"),
        ("qk_head_dim linear_head_dim", "they follow from other sizes"),
    ),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith(("context_length", "key_length"))),
        ("{arch}.context_length", "model_max_length|max_position_embeddings"),
        ("{arch}.attention.head_count_kv", _key_heads),
        ("{arch}.attention.key_length", _total("kv_lora_rank", "qk_rope_head_dim")),
        ("{arch}.attention.key_length_mla", _total("qk_nope_head_dim", "qk_rope_head_dim")),
        ("{arch}.attention.value_length", Key("head_dim")),
        ("{arch}.attention.value_length_mla", "v_head_dim"),
        ("{arch}.attention.kv_lora_rank", "kv_lora_rank"),
        ("{arch}.rope.dimension_count", "qk_rope_head_dim"),
        (
            "{arch}.ssm.conv_kernel",
            "linear_conv_kernel_dim|linear_attn_config.short_conv_kernel_size",
        ),
        ("{arch}.kda.head_dim", "linear_head_dim|linear_attn_config.head_dim"),
        ("{arch}.ssm.group_count", _check_heads),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.expert_count", "num_experts"),
        ("{arch}.expert_used_count", "num_experts_per_token|num_experts_per_tok"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_group_used_count", Key("topk_group")),
        ("{arch}.expert_shared_count", "num_shared_experts"),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.expert_gating_func", lambda config: _SIGMOID),
        ("{arch}.leading_dense_block_count", _dense),
    ),
)


_OF_LING = {
    "self_attn.": "attention.",
    "attention.o_proj": "attention.dense",
    "f_a_proj": "f_proj",
    "g_a_proj": "g_proj",
}


def _as_ling(table: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of a table with Ling's names; its projections are one matrix each."""

    def spelled(source: str) -> str:
        for ours, theirs in _OF_LING.items():
            source = source.replace(ours, theirs)
        return source

    return tuple(
        replace(one, source=spelled(one.source))
        for one in table
        if not one.tensor.endswith(("ssm_f_b.weight", "ssm_g_b.weight"))
    )


def _positive_rates(values: TensorValues, config: Config) -> TensorValues:
    """Return exp(A_log), [heads, 1]."""
    return np.negative(_rates_of_heads(values, config))


def _last_of_group(config: Config) -> list[int]:
    """Return the layers of latent attention: the last of each group, and those after all groups."""
    size = config.require("layer_group_size", Count)
    end = config.n_layers // size * size
    found = [n for n in range(config.n_layers) if (n + 1) % size == 0 or n >= end]
    kinds = config.get("layer_types", type=_AttentionKinds)
    if kinds is not None and found != [n for n, k in enumerate(kinds) if k == "full_attention"]:
        raise ValueError(f"layer_types says other layers of latent attention than {found}")
    return found


def _others_of_group(config: Config) -> list[int]:
    return sorted({*range(config.n_layers)} - {*_last_of_group(config)})


def _key_heads_of_groups(config: Config) -> list[int]:
    """Return how many key heads each block has; heads attend."""
    latent = _last_of_group(config)
    return [int(n in latent or n >= config.n_layers) for n in range(config.n_blocks)]


def _limits(path: str) -> Callable[[Config], list[float] | None]:
    """Return a source: limits of each block's activations, 0 for none."""

    def read(config: Config) -> list[float] | None:
        said = config.get(path, type=list[float | None])
        if said is None:
            return None
        limits = [float(limit or 0) for limit in said[: config.n_blocks]]
        return limits + [0.0] * (config.n_blocks - len(limits))

    return read


def _shared_width(config: Config) -> int:
    said: int | None = config.get("moe_shared_expert_intermediate_size", type=Count)
    n_shared = config.get("num_shared_experts", default=1, type=Count)
    return said or n_shared * config.require("moe_intermediate_size", Count)


_LING_LATENT = (
    *_as_ling(_LATENT),
    *block_renames({"attention.g_proj.weight": "attn_gate.weight"}),
)
_LING_EXPERTS = (
    *EXPERTS,
    *SHARED_EXPERT,
    *block_renames({"mlp.gate.expert_bias": "exp_probs_b.bias"}),
)
BAILING_MOE3 = Checkpoint(
    architectures=frozenset({"BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 6e6),
        ("layer_group_size", None),
        ("kda_lower_bound", -5.0),
        ("routed_scaling_factor", 2.5),
        *((name, None) for name in ("linear_head_dim", "first_k_dense_replace", "topk_group")),
    ),
    tensors=(
        Rename("model.word_embeddings.weight", "token_embd.weight"),
        TABLES[1],
        replace(TABLES[2], copy_of="model.word_embeddings.weight"),
        *_NORM,
        *FFN_NORM,
        *on_layers(_last_of_group, _LING_LATENT),
        *on_layers(
            _others_of_group,
            tuple(
                replace(one, change=_positive_rates) if one.tensor.endswith("ssm_a") else one
                for one in _as_ling(_DELTA)
            ),
        ),
        *on_layers(first_layers(_dense), SWIGLU),
        *on_layers(later_layers(_dense), _LING_EXPERTS),
    ),
    constants=(
        *CONSTANTS,
        ("gated_attention_proj_granularity_type", ("head_wise",)),
        ("kda_safe_gate", (True,)),
        ("no_kda_lora", (True,)),
        ("moe_router_enable_expert_bias", (True,)),
        ("score_function", ("sigmoid",)),
        ("q_lora_rank", ()),
    ),
    harmless=(("qk_head_dim head_dim", "they follow from other sizes"),),
    metadata=(
        *(
            pair
            for pair in DECODER
            if not pair[0].endswith(("context_length", "key_length", "value_length"))
        ),
        *ROPE_KEYS,
        ("{arch}.context_length", "model_max_length|max_position_embeddings"),
        ("{arch}.attention.head_count_kv", _key_heads_of_groups),
        ("{arch}.attention.key_length", _total("kv_lora_rank", "qk_rope_head_dim")),
        ("{arch}.attention.value_length", "linear_head_dim|head_dim"),
        ("{arch}.attention.key_length_mla", _total("qk_nope_head_dim", "qk_rope_head_dim")),
        ("{arch}.attention.value_length_mla", "v_head_dim"),
        ("{arch}.attention.kv_lora_rank", "kv_lora_rank"),
        ("{arch}.rope.dimension_count", "qk_rope_head_dim"),
        ("{arch}.ssm.conv_kernel", "short_conv_kernel_size|linear_conv_kernel_dim"),
        ("{arch}.ssm.group_count", _check_heads),
        ("{arch}.kda.head_dim", "linear_head_dim|head_dim"),
        ("{arch}.kda.safe_gate", lambda config: True),
        ("{arch}.kda.gate_lower_bound", number("kda_lower_bound")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.expert_count", "num_experts|num_local_experts"),
        ("{arch}.expert_used_count", "num_experts_per_token|num_experts_per_tok"),
        ("{arch}.expert_group_count", "num_expert_group|n_group"),
        ("{arch}.expert_group_used_count", "topk_group"),
        ("{arch}.expert_gating_func", lambda config: _SIGMOID),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", _shared_width),
        ("{arch}.expert_shared_count", Key("num_shared_experts", 1)),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.expert_weights_norm", "moe_renormalize|norm_topk_prob"),
        ("{arch}.leading_dense_block_count", _dense),
        ("{arch}.swiglu_clamp_exp", _limits("expert_swiglu_limit_list")),
        ("{arch}.swiglu_clamp_shexp", _limits("share_expert_swiglu_limit_list")),
    ),
)
BAILING_MOE3_NEXTN = Checkpoint(
    architectures=BAILING_MOE3.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *NEXTN,
        *block_renames({"final_layernorm.weight": "layer_output_norm.weight"}, optional=True),
        *_NORM,
        *FFN_NORM,
        *_LING_LATENT,
        *_LING_EXPERTS,
    ),
)
