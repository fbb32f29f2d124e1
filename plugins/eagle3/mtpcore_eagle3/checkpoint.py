"""How EAGLE-3 heads are published, and what their model files call it.

The layouts differ in their configuration and in the prefix of the layer: ``midlayer.`` (reference,
SpecForge, AngelSlim) or ``layers.0.`` (vLLM, speculators).
"""

from typing import Any

import numpy as np

from mtpcore.plugin import (
    DECODER,
    FACTORED_ROPE_KEYS,
    INTERLEAVED_ATTENTION,
    SWIGLU,
    Checkpoint,
    Config,
    Key,
    Rename,
    block_renames,
    long_context_factors,
)

LAYERS = "eagle_aux_hidden_state_layer_ids"


def target_layers(config: Config) -> list[int]:
    """Return the layers whose input the head reads: those it names, else the default three."""
    if config.get(LAYERS) is None and config.target is not None:
        n = config.target.n_layers
        return [2, n // 2, n - 3]
    return [int(layer) for layer in config[LAYERS]]


def target_width(config: Config) -> int:
    """Return the width of the target's rows."""
    of_target = config.target["hidden_size"] if config.target else None
    return int(config.get("target_hidden_size") or of_target or config["hidden_size"])


def norm_before_residual(config: Config) -> bool:
    """Return where the layer's residual stream starts; refuse a variant that recycles otherwise."""
    if config.get("norm_output"):
        raise ValueError("norm_output is set: no graph here recycles the normed state")
    return bool(config.get("norm_before_residual"))


def absolute(offsets: Any, config: Config) -> Any:
    """Return the target's id of each draft id; checkpoints store how far the two are apart."""
    return offsets.astype(np.int64) + np.arange(len(offsets), dtype=np.int64)


def whole_vocabulary(config: Config) -> bool:
    """Say whether the head drafts every token of the target."""
    return bool(config["draft_vocab_size"] == config["vocab_size"])


CHECKPOINT = Checkpoint(
    architectures=frozenset(
        {
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
            "LlamaForCausalLM",  # the reference's own
        }
    ),
    requires=("draft_vocab_size",),
    nested=("transformer_layer_config", "eagle_config"),
    prefixes=(("midlayer.", "model.layers.0."), ("layers.0.", "model.layers.0.")),
    tensors=(
        Rename("fc.weight", "fc.weight"),
        Rename("input_norm.weight", "enc.output_norm.weight", optional=True),
        *INTERLEAVED_ATTENTION,
        *block_renames(
            {
                "hidden_norm.weight": "attn_norm_2.weight",
                "post_attention_layernorm.weight": "ffn_norm.weight",
            }
        ),
        *SWIGLU,
        Rename("norm.weight", "output_norm.weight"),
        Rename("lm_head.weight", "output.weight", optional=True),
        Rename("embed_tokens.weight", "token_embd.weight", optional=True),
        Rename("d2t", "d2t", absolute, optional=whole_vocabulary),
    ),
    dropped=("t2d",),  # says the same as d2t
    made=(("rope_freqs.weight", long_context_factors),),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.target_layers", target_layers),
        ("{arch}.target_hidden_size", target_width),
        ("{arch}.norm_before_residual", norm_before_residual),
        ("{arch}.norm_before_fc", Key("norm_before_fc", False)),
    ),
)
