"""MiniCPM and MiniCPM3, whose rotations have factors of their own for long contexts."""

from __future__ import annotations

import math

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.declarations.checkpoint import Checkpoint, Config, number
from mtpcore.models.checkpoints.dense import FFN_NORM, PHI3, long_magnitude, original_context
from mtpcore.models.published import (
    CONSTANTS,
    DECODER,
    INTERLEAVED_ATTENTION,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
)
from mtpcore.models.rope_conversion import rope_keys

__all__ = ["MINICPM", "MINICPM3"]


def _of_long_contexts(config: Config) -> int | None:
    """Return for which context the rotation was made, where it has factors."""
    return None if long_magnitude(config) is None else original_context(config)


def _value_width(config: Config) -> int | None:
    """Return how wide a head's values are, where heads do not divide a row."""
    meant = config.require("hidden_size", Count) // config.require("num_attention_heads", Count)
    said: int | None = config.get("v_head_dim", type=Count)
    return None if said == meant else said


def _residual_scale(config: Config) -> float:
    return float(config.require("scale_depth", float)) / math.sqrt(
        config.require("num_hidden_layers", Depth)
    )


def _logit_scale(config: Config) -> float:
    return float(config.require("hidden_size", Count) / config.require("dim_model_base", Count))


_ROTATION = (
    *rope_keys("longrope", "su"),
    ("{arch}.rope.scaling.original_context_length", _of_long_contexts),
    ("{arch}.rope.scaling.attn_factor", long_magnitude),
)
MINICPM = Checkpoint(
    architectures=frozenset({"MiniCPMForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-6),
        ("tie_word_embeddings", True),
        *((name, None) for name in ("scale_emb", "scale_depth", "dim_model_base")),
    ),
    tensors=(*TABLES, *INTERLEAVED_ATTENTION, *FFN_NORM, *SWIGLU),
    made=PHI3.made,
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *_ROTATION,
        ("{arch}.embedding_scale", number("scale_emb")),
        ("{arch}.residual_scale", _residual_scale),
        ("{arch}.logit_scale", _logit_scale),
    ),
)
MINICPM3 = Checkpoint(
    architectures=frozenset({"MiniCPM3ForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("tie_word_embeddings", True),
        ("kv_lora_rank", 256),
        ("q_lora_rank", 768),
        ("qk_nope_head_dim", 64),
        ("qk_rope_head_dim", 32),
        ("scale_emb", 12),
        ("scale_depth", 1.4),
        ("dim_model_base", 256),
    ),
    tensors=(
        *TABLES,
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "self_attn.q_a_proj.weight": "attn_q_a.weight",
                "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
                "self_attn.q_b_proj.weight": "attn_q_b.weight",
                "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
                "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
                "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
            }
        ),
        *SWIGLU,
    ),
    made=PHI3.made,
    constants=(
        *CONSTANTS,
        ("scale_emb", (12,)),
        ("scale_depth", (1.4,)),
        ("dim_model_base", (256,)),
    ),
    harmless=(("head_dim qk_head_dim", "they follow from other sizes"),),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith(("key_length", "value_length"))),
        *_ROTATION,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.q_lora_rank", "q_lora_rank"),
        ("{arch}.attention.kv_lora_rank", "kv_lora_rank"),
        (
            "{arch}.attention.key_length",
            lambda config: (
                config.require("qk_nope_head_dim", Count)
                + config.require("qk_rope_head_dim", Count)
            ),
        ),
        ("{arch}.attention.value_length", _value_width),
        ("{arch}.rope.dimension_count", "qk_rope_head_dim"),
    ),
)
"""Files hold none of the three numbers that multiply: they are those of the one model."""
