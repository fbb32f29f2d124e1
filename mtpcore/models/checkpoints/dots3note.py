"""dots.note 3: latent attention of two kinds, one with a window, one with an indexer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import (
    Change,
    Checkpoint,
    Config,
    Rename,
    TensorValues,
)
from mtpcore.models.checkpoints.dense import FFN_NORM
from mtpcore.models.checkpoints.layers import (
    LayerTypes,
    first_layers,
    later_layers,
    leading_dense,
)
from mtpcore.models.published import (
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    NEXTN,
    SHARED_EXPERT,
    SWIGLU,
    TABLES,
    block_renames,
    on_layers,
)
from mtpcore.models.rope_conversion import layered_rope_keys

__all__ = ["DOTS3_NOTE", "DOTS3_NOTE_NEXTN"]

_SIGMOID = 2
_EMBEDDINGS = "model.mtp.embed_tokens.weight"


def _windows(config: Config) -> list[bool]:
    """Return which layers of the trunk have a window.

    Raises
    ------
    ValueError
        There are fewer kinds than layers.
    """
    kinds = config.require("layer_types", LayerTypes)[: config.n_layers]
    if len(kinds) < config.n_layers:
        raise ValueError(f"layer_types has {len(kinds)} entries, not {config.n_layers}")
    return [kind == "sliding_attention" for kind in kinds]


def _near(config: Config) -> list[int]:
    """Return the layers with a window."""
    return [n for n, is_near in enumerate(_windows(config)) if is_near]


def _full(config: Config) -> list[int]:
    """Return the others, each with an indexer."""
    return [n for n, is_near in enumerate(_windows(config)) if not is_near]


def _size(name: str, prefix: str = "") -> Callable[[Config], int]:
    """Return a source: a size; those of layers with a window have a prefix."""
    return lambda config: int(config.require(prefix + name, Count))


def _total(*names: str, prefix: str = "") -> Callable[[Config], int]:
    """Return a source: the sum of some sizes."""
    return lambda config: sum(_size(name, prefix)(config) for name in names)


def _rescaled(rank: str) -> Change:
    """Return a change: weights of the norm of a compressed row, which its width may raise."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        if not config.get("apply_mla_qkv_lora_rescale", default=False, type=bool):
            return values
        scale = math.sqrt(_size("hidden_size")(config) / _size(rank)(config))
        return np.multiply(values, np.float32(scale))

    return change


def _part(of_values: bool, prefix: str) -> Change:
    """Return a change: of ``kv_b_proj`` the half of keys, by inputs, or that of values."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        heads = values.reshape(_size("num_attention_heads", prefix)(config), -1, values.shape[-1])
        n_plain = _size("qk_nope_head_dim", prefix)(config)
        return heads[:, n_plain:] if of_values else heads[:, :n_plain].swapaxes(1, 2)

    return change


def _attention(prefix: str) -> tuple[Rename, ...]:
    """Return the renames of attention of one kind."""
    return (
        *block_renames(
            {
                "self_attn.q_a_proj.weight": "attn_q_a.weight",
                "self_attn.q_b_proj.weight": "attn_q_b.weight",
                "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
                "self_attn.k_rope_only_layernorm.weight": "attn_k_norm.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
                "self_attn.g_proj.weight": "attn_gate.weight",
            }
        ),
        *block_renames(
            {"self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight"},
            change=_rescaled("q_lora_rank"),
        ),
        *block_renames(
            {"self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight"},
            change=_rescaled(f"{prefix}kv_lora_rank"),
        ),
        *block_renames(
            {"self_attn.kv_b_proj.weight": "attn_k_b.weight"}, change=_part(False, prefix)
        ),
        *block_renames(
            {"self_attn.kv_b_proj.weight": "attn_v_b.weight"}, change=_part(True, prefix)
        ),
    )


_INDEXER = block_renames(
    {
        "self_attn.indexer.k_norm.weight": "indexer.k_norm.weight",
        "self_attn.indexer.k_norm.bias": "indexer.k_norm.bias",
        "self_attn.indexer.weights_proj.weight": "indexer.proj.weight",
        "self_attn.indexer.wk.weight": "indexer.attn_k.weight",
        "self_attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    }
)
_NORMS = (*block_renames({"input_layernorm.weight": "attn_norm.weight"}), *FFN_NORM)


def _heads(config: Config) -> list[int]:
    """Return how many heads each block has, those of heads as layers with a window."""
    prefixes = ["swa_" if is_near else "" for is_near in _windows(config)]
    prefixes += ["swa_"] * (config.n_blocks - config.n_layers)
    return [_size("num_attention_heads", prefix)(config) for prefix in prefixes]


def _check_sizes(config: Config) -> None:
    """Refuse layers of two kinds, or experts, that differ in what a file holds once.

    Raises
    ------
    ValueError
        They differ.
    """
    for name in ("q_lora_rank", "qk_rope_head_dim"):
        near, full = _size(name, "swa_")(config), _size(name)(config)
        if near != full:
            raise ValueError(f"swa_{name} is {near}, and {name} {full}")
    width = _total("qk_nope_head_dim", "qk_rope_head_dim", prefix="swa_")(config)
    if config.get("swa_head_dim", default=width) != width:
        raise ValueError(f"swa_head_dim is not {width}, as its parts are")
    width = _size("moe_intermediate_size")(config)
    if config.get("moe_shared_expert_intermediate_size", default=width) != width:
        raise ValueError(f"moe_shared_expert_intermediate_size is not {width}, as other experts")


_dense = leading_dense("first_k_dense_replace")
DOTS3_NOTE = Checkpoint(
    architectures=frozenset(
        {
            "Dots3NoteForCausalLM",
            "Dots3NoteForConditionalGeneration",
            "Dots3NoteTextForCausalLM",
        }
    ),
    nested=("text_config",),
    prefixes=(("model.language_model.", "model."), ("language_model.", "")),
    defaults=(
        ("intermediate_size", None),
        ("first_k_dense_replace", None),
        ("routed_scaling_factor", None),
        ("norm_topk_prob", None),
        ("rms_norm_eps", 1e-6),
    ),
    tensors=(
        *TABLES,
        *_NORMS,
        *on_layers(_near, _attention("swa_")),
        *on_layers(_full, _attention(""), _INDEXER),
        *on_layers(first_layers(_dense), SWIGLU),
        *on_layers(
            later_layers(_dense),
            EXPERTS,
            SHARED_EXPERT,
            block_renames({"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
        ),
    ),
    dropped=("vision_encoder.*", "audio_encoder.*"),
    constants=(
        *CONSTANTS,
        ("use_dsa", (True,)),
        ("normalization", ("RMSNorm",)),
        ("final_norm", ("RMSNorm",)),
        ("k_rope_only_layernorm", (True,)),
        ("topk_method", ("noaux_tc",)),
        ("scoring_func", ("sigmoid",)),
        ("n_group", (1,)),
        ("topk_group", (1,)),
        ("use_dynamic_rsf", (False,)),
        ("moe_gating_fp32", (False,)),
        ("attention_gate_type", ("headwise",)),
        ("swa_attention_gate_type", ("headwise",)),
        ("moe_layer_freq", (1,)),
    ),
    harmless=(
        ("head_dim qk_head_dim swa_qk_head_dim", "sums of other sizes"),
        ("num_key_value_heads swa_num_key_value_heads", "all heads share one compressed row"),
    ),
    metadata=(
        *(
            pair
            for pair in DECODER
            if not pair[0].endswith(("head_count", "head_count_kv", "key_length", "value_length"))
        ),
        *layered_rope_keys(),
        *EXPERT_KEYS,
        ("{arch}.attention.head_count", _heads),
        ("{arch}.attention.head_count_kv", lambda config: 1),
        ("{arch}.attention.q_lora_rank", "q_lora_rank"),
        ("{arch}.attention.kv_lora_rank", "kv_lora_rank"),
        ("{arch}.attention.key_length", _total("kv_lora_rank", "qk_rope_head_dim")),
        ("{arch}.attention.value_length", "kv_lora_rank"),
        ("{arch}.attention.key_length_mla", _total("qk_nope_head_dim", "qk_rope_head_dim")),
        ("{arch}.attention.value_length_mla", "v_head_dim"),
        ("{arch}.attention.kv_lora_rank_swa", "swa_kv_lora_rank"),
        (
            "{arch}.attention.key_length_swa",
            _total("kv_lora_rank", "qk_rope_head_dim", prefix="swa_"),
        ),
        ("{arch}.attention.value_length_swa", "swa_kv_lora_rank"),
        (
            "{arch}.attention.key_length_mla_swa",
            _total("qk_nope_head_dim", "qk_rope_head_dim", prefix="swa_"),
        ),
        ("{arch}.attention.value_length_mla_swa", "swa_v_head_dim"),
        ("{arch}.attention.sliding_window", "sliding_window_size"),
        ("{arch}.attention.sliding_window_pattern", _windows),
        ("{arch}.attention.indexer.head_count", "index_n_heads"),
        ("{arch}.attention.indexer.key_length", "index_head_dim"),
        ("{arch}.attention.indexer.top_k", "index_topk"),
        (
            "{arch}.attention.indexer.types",
            lambda config: [not is_near for is_near in _windows(config)],
        ),
        ("{arch}.rope.dimension_count", "qk_rope_head_dim"),
        ("{arch}.rope.dimension_count_swa", _check_sizes),
        ("{arch}.expert_gating_func", lambda config: _SIGMOID),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)
DOTS3_NOTE_NEXTN = Checkpoint(
    architectures=DOTS3_NOTE.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    tensors=(
        *(one for one in NEXTN if "embed_tokens" not in one.tensor),
        Rename(_EMBEDDINGS, "blk.{n}.nextn.embed_tokens.weight"),
        *_NORMS,
        *_attention("swa_"),
        *SWIGLU,
    ),
)
