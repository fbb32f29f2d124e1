"""The language models of families that see images, whose encoders are left out."""

from __future__ import annotations

from msgspec.structs import replace

from mtpcore.declarations.checkpoint import Checkpoint, Config
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
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

__all__ = ["QWEN2_VL", "QWEN3_VL"]


def _sections(config: Config) -> list[int] | None:
    """Return how many pairs turn with each of four axes of a position."""
    names = ("rope_parameters.mrope_section", "rope_scaling.mrope_section")
    found = config.get(*names, type=list[int])
    return None if found is None else [*found, 0, 0, 0, 0][:4]


_FFN_NORM = block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"})

QWEN2_VL = Checkpoint(
    architectures=frozenset(
        {"Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"}
    ),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("max_window_layers", 80), ("rope_theta", 1e6)),
    nested=("text_config",),
    prefixes=(("model.language_model.", "model."),),
    tensors=(*TABLES, *ATTENTION, *BIASES, *SWIGLU, *_FFN_NORM),
    dropped=("visual.*", "model.visual.*"),
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.rope.dimension_sections", _sections),
        ("{arch}.attention.sliding_window", switched_window),
    ),
)


def _n_deepstack_layers(config: Config) -> int:
    found = config.get("vision_config.deepstack_visual_indexes", type=list[int])
    return len(found or ())


QWEN3_VL = replace(
    QWEN2_VL,
    architectures=frozenset({"Qwen3VLForConditionalGeneration"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("head_dim", 128), ("rope_theta", 5e5)),
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *SWIGLU, *_FFN_NORM),
    constants=(*CONSTANTS, ("rope_scaling.mrope_interleaved", (True,))),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.rope.dimension_sections", _sections),
        ("{arch}.n_deepstack_layers", _n_deepstack_layers),
    ),
)
