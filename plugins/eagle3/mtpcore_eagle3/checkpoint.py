"""How EAGLE-3 heads are published, and what their model files call it."""

import msgspec

from mtpcore.plugin import CONSTANTS, FUSED_KEYS, FUSED_MADE, FUSED_TENSORS, Checkpoint

CHECKPOINT = Checkpoint(
    architectures=frozenset(
        {
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
        }
    ),
    nested=("transformer_layer_config", "eagle_config"),
    prefixes=(
        ("midlayer.", "model.layers.0."),
        ("layers.0.", "model.layers.0."),
        ("model.fc_norm.", "fc_norm."),
    ),
    tensors=FUSED_TENSORS,
    dropped=("t2d",),  # says the same as d2t
    made=FUSED_MADE,
    constants=(
        *CONSTANTS,
        *((name, (True,)) for name in ("use_aux_hidden_state", "use_last_layernorm")),
        ("use_input_layernorm_in_first_layer", (True,)),
        ("parallel_draft_step", (1,)),
        ("parallel_drafting", (False,)),
    ),
    harmless=(
        ("has_lm_head embed_requires_grad has_no_defaults_at_init", "the tensors say it"),
        ("target_model_type target_hidden_act modal_type", "the target says it"),
    ),
    metadata=FUSED_KEYS,
)

REFERENCE = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"LlamaForCausalLM"}),
    has="fc.weight",
)
"""The reference's own, whose configurations name the class of a whole model."""
