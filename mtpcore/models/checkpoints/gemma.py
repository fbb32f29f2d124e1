"""Gemma 1 to 3, whose norms are stored minus one."""

from __future__ import annotations

import math

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Rename, number
from mtpcore.models.checkpoints.layers import window_pattern
from mtpcore.models.published import (
    ATTENTION,
    DECODER,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    plus,
)
from mtpcore.models.rope_conversion import ROPE_KEYS, layered_rope_keys

__all__ = ["GEMMA", "GEMMA2", "GEMMA3", "GEMMA3_WITH_IMAGES"]


def _with_norms(*tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables; one is added to norms."""
    return tuple(
        replace(one, change=plus(1)) if "norm" in one.tensor else one
        for table in tables
        for one in table
    )


def _score_scale(config: Config) -> float | None:
    """Return the factor of scores, where it is not that which files mean without it."""
    is_27b = config.n_layers in (46, 62)
    width = config.require("hidden_size", Count) // config.require("num_attention_heads", Count)
    said = config.get("query_pre_attn_scalar", default=256, type=float)
    return None if said == (width if is_27b else head_width(config)) else 1 / math.sqrt(said)


_FOUR_NORMS = block_renames(
    {
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    }
)
_CAUSAL = ("use_bidirectional_attention", (False,))
_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")
"""Models of 2024 say ``gelu``, and their class computes the other one."""

GEMMA = Checkpoint(
    architectures=frozenset({"GemmaForCausalLM"}),
    defaults=(*STATED, ("head_dim", 256), ("rms_norm_eps", 1e-6), ("tie_word_embeddings", True)),
    tensors=_with_norms(
        TABLES,
        ATTENTION,
        SWIGLU,
        block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
    ),
    constants=(("hidden_act", _ACTIVATIONS), ("hidden_activation", _ACTIVATIONS[:1]), _CAUSAL),
    metadata=(*DECODER, *ROPE_KEYS),
)
GEMMA2 = replace(
    GEMMA,
    architectures=frozenset({"Gemma2ForCausalLM"}),
    defaults=(
        *GEMMA.defaults,
        ("sliding_window", 4096),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
    ),
    tensors=_with_norms(TABLES, ATTENTION, SWIGLU, _FOUR_NORMS),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", window_pattern(2)),
        ("{arch}.attention.scale", _score_scale),
        ("{arch}.attn_logit_softcapping", number("attn_logit_softcapping")),
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping")),
    ),
)
GEMMA3 = replace(
    GEMMA,
    architectures=frozenset({"Gemma3ForCausalLM"}),
    defaults=(*GEMMA.defaults, ("sliding_window", 4096), ("rope_theta", 1e6)),
    tensors=_with_norms(
        TABLES,
        ATTENTION,
        HEAD_NORMS,
        SWIGLU,
        _FOUR_NORMS,
    ),
    constants=(("hidden_activation", _ACTIVATIONS[:1]), _CAUSAL),
    metadata=(
        *DECODER,
        *layered_rope_keys(1e4),
        ("{arch}.attention.sliding_window", "sliding_window"),
        (
            "{arch}.attention.sliding_window_pattern",
            window_pattern(6, "sliding_window_pattern", "_sliding_window_pattern"),
        ),
        ("{arch}.attention.scale", _score_scale),
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping")),
    ),
)
GEMMA3_WITH_IMAGES = replace(
    GEMMA3,
    architectures=frozenset({"Gemma3ForConditionalGeneration"}),
    nested=("text_config",),
    prefixes=(("language_model.model.", "model."), ("model.language_model.", "model.")),
    dropped=("vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*"),
    harmless=(("boi_token_index eoi_token_index mm_tokens_per_image", "of images"),),
)
