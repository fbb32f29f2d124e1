"""How P-EAGLE heads and PARD models are published, and what their model files call it."""

from mtpcore.plugin import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    FACTORED_ROPE_KEYS,
    FUSED_CONSTANTS,
    FUSED_HARMLESS,
    FUSED_KEYS,
    FUSED_MADE,
    FUSED_PREFIXES,
    FUSED_TENSORS,
    HEAD_NORMS,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    Key,
    Rename,
    block_renames,
    long_context_factors,
    optional,
    switched_window,
)

_MASKS = ("ptd_token_id", "pard_token", "mask_token_id")


def mask_token(config: Config) -> int:
    """Return the token of rows that know none."""
    return int(config.get(*_MASKS, type=int))


_BLOCK = (
    ("{arch}.block_size", Key("block_size")),
    ("tokenizer.ggml.mask_token_id", mask_token),
)

PEAGLE_CHECKPOINT = Checkpoint(
    architectures=frozenset(
        {
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
            "PEagleSpeculator",
            "PEagleDraftModel",
        }
    ),
    requires=("|".join(_MASKS),),
    nested=("transformer_layer_config",),
    prefixes=FUSED_PREFIXES,
    tensors=(
        *FUSED_TENSORS,
        # Published with axes of one for batch and position.
        Rename("mask_hidden", "mask_hidden.weight", lambda row, config: row.reshape(-1)),
    ),
    dropped=("t2d",),  # says the same as d2t
    made=FUSED_MADE,
    constants=FUSED_CONSTANTS,
    harmless=(*FUSED_HARMLESS, ("parallel_drafting", "the token of masks says it")),
    metadata=(*FUSED_KEYS, *_BLOCK),
)

PARD_CHECKPOINT = Checkpoint(
    architectures=frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}),
    requires=("pard_token",),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(True, BIASES, HEAD_NORMS),
        *SWIGLU,
        *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
    ),
    made=(("rope_freqs.weight", long_context_factors),),
    constants=CONSTANTS,
    harmless=(("spd_type", "the token of masks says it"),),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.attention.sliding_window", switched_window),
        *_BLOCK,
    ),
)
