"""Qwen3 (dense): as Qwen2, with norms on the heads of q and k in place of biases."""

from __future__ import annotations

from mtpcore.declarations.checkpoint import Checkpoint
from mtpcore.declarations.spec import ATTENTION_SCALES, FEED_FORWARD_SCALES, ModelSpec
from mtpcore.models.blocks import OUTPUT_TIE
from mtpcore.models.decoder import dense_trunk, trunk_fit
from mtpcore.models.hparams import Hparams
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    switched_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["QWEN3"]

# The attention block norms q and k, and adds biases, where the file has them.
QWEN3 = ModelSpec(
    name="qwen3",
    fit=trunk_fit(
        "qwen3",
        also=(
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_k_norm.weight",
        ),
    ),
    hparams=Hparams.read,
    build=dense_trunk,
    ties=(OUTPUT_TIE,),
    scaled=(*ATTENTION_SCALES, *FEED_FORWARD_SCALES),
    unread=(("cls.output.weight", "a reranker's scores; no text comes from them"),),
    checkpoint=Checkpoint(
        architectures=frozenset({"Qwen3ForCausalLM"}),
        defaults=(
            *STATED,
            ("head_dim", None),
            ("rms_norm_eps", 1e-6),
            ("max_window_layers", 28),
        ),
        tensors=(
            *TABLES,
            *ATTENTION,
            *HEAD_NORMS,
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
