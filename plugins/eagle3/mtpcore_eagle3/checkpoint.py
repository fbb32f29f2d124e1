"""How EAGLE-3 heads are published, and what their model files call it."""

import msgspec

from mtpcore.plugin import (
    FUSED_CONSTANTS,
    FUSED_HARMLESS,
    FUSED_KEYS,
    FUSED_MADE,
    FUSED_PREFIXES,
    FUSED_TENSORS,
    Checkpoint,
)

CHECKPOINT = Checkpoint(
    architectures=frozenset(
        {
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
        }
    ),
    nested=("transformer_layer_config",),
    prefixes=FUSED_PREFIXES,
    tensors=FUSED_TENSORS,
    dropped=("t2d",),  # says the same as d2t
    made=FUSED_MADE,
    constants=(*FUSED_CONSTANTS, ("parallel_drafting", (False,))),
    harmless=FUSED_HARMLESS,
    metadata=FUSED_KEYS,
)

REFERENCE = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"LlamaForCausalLM"}),
    has="fc.weight",
)
"""The reference's own, whose configurations name the class of a whole model."""

_TARGET_S = (
    "layer_types sliding_window use_sliding_window max_window_layers num_local_experts "
    "num_experts_per_tok experts_per_token swiglu_limit initial_context_length"
)
NEMO = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"LlamaEagle3DraftModel"}),
    heads="model.layers.{i}.hidden_norm.weight",
    counts=("num_hidden_layers",),
    harmless=(*FUSED_HARMLESS, (_TARGET_S, "of the target, whose whole configuration it is")),
    metadata=tuple(pair for pair in FUSED_KEYS if "sliding_window" not in pair[0]),
)
"""NeMo's: the target's configuration, with its number of layers, and a layer that sees all."""
