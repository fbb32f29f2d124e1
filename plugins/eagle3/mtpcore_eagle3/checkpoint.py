"""How EAGLE-3 heads are published, and what their model files call it."""

from mtpcore.plugin import FUSED_KEYS, FUSED_MADE, FUSED_TENSORS, Checkpoint

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
    prefixes=(
        ("midlayer.", "model.layers.0."),
        ("layers.0.", "model.layers.0."),
        ("model.fc_norm.", "fc_norm."),
    ),
    tensors=FUSED_TENSORS,
    dropped=("t2d",),  # says the same as d2t
    made=FUSED_MADE,
    metadata=FUSED_KEYS,
)
