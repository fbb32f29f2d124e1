"""Qwen2 and Qwen2.5: q, k and v have biases, rotation pairs lie half a head apart."""

from __future__ import annotations

from mtpcore.declarations.checkpoint import Checkpoint
from mtpcore.declarations.spec import ModelSpec
from mtpcore.models.blocks import OUTPUT_TIE
from mtpcore.models.decoder import dense_trunk, trunk_fit
from mtpcore.models.hparams import Hparams
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    switched_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["QWEN2"]


QWEN2 = ModelSpec(
    name="qwen2",
    fit=trunk_fit("qwen2"),
    hparams=Hparams.read,
    build=dense_trunk,
    ties=(OUTPUT_TIE,),
    checkpoint=Checkpoint(
        architectures=frozenset({"Qwen2ForCausalLM"}),
        defaults=(
            *STATED,
            ("rms_norm_eps", 1e-6),
            ("max_window_layers", 28),
        ),
        tensors=(
            *TABLES,
            *ATTENTION,
            *BIASES,
            *SWIGLU,
            *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
        ),
        constants=CONSTANTS,
        metadata=(
            *DECODER,
            *ROPE_KEYS,
            ("{arch}.attention.sliding_window", switched_window),
        ),
    ),
)
