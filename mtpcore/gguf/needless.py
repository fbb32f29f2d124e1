"""What a model file may hold that nobody reads: keys that change no number, encoders of images.

The keys are those that llama.cpp knows, nearly all of which its saver writes into every file, and a
few that other converters write. Names lack the architecture in front.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpcore.declarations.patterns import pattern
from mtpcore.gguf.header import Metadata

__all__ = ["NEEDLESS_TENSORS", "is_needless"]

NEEDLESS_TENSORS: tuple[tuple[str, str], ...] = (
    ("v.*", "an encoder of images, whose rows come from outside"),
    ("a.*", "an encoder of sound, whose rows come from outside"),
    ("mm.*", "what joins such an encoder to a model"),
    ("*.input_scale", "the range of activations in four bits, which no engine reads"),
)
"""Patterns of tensors, and why no graph of a model reads them."""

_NEEDLESS: tuple[tuple[str, str], ...] = (
    ("block_count", "the blocks are there, and all that they hold is read"),
    ("embedding_length", "the embedding table is so wide"),
    ("vocab_size", "the embedding table has so many rows"),
    ("context_length", "a context's size is the caller's choice"),
    ("*feed_forward_length", "the matrices are so wide"),
    ("attention.value_length*", "the matrices are so wide"),
    ("attention.q_lora_rank", "the matrices are so wide"),
    ("ssm.inner_size", "the matrices are so wide"),
    ("leading_dense_block_count", "a block with a router has experts"),
    ("interleave_moe_layer_step", "a block with a router has experts"),
    ("moe_every_n_layers", "a block with a router has experts"),
    ("expert_shared_count", "the shared expert's matrices are so wide"),
    ("attention.layer_norm_epsilon", "of norms that a graph has or has not"),
    ("attention.group_norm_*", "of norms that a graph has or has not"),
    ("rope.scaling.finetuned", "tells how the model was made"),
    ("tensor_data_layout", "tells how the file was made"),
    ("split.*", "tells how the file was cut"),
    ("pooling_type", "what embeddings of texts are made by"),
    ("classifier.*", "what scores of texts are made by"),
    ("vision.*", "an encoder of images, whose rows come from outside"),
    ("audio.*", "an encoder of sound, whose rows come from outside"),
    ("image_token_id", "where rows of images go is the caller's choice"),
    ("vision_*_token_id", "where rows of images go is the caller's choice"),
    ("mrope_sections", "another name for rope.dimension_sections"),
    ("rope.mrope_section", "another name for rope.dimension_sections"),
    ("rope.mrope_interleaved", "the order of axes is the family's"),
)
"""Keys of which any value is as good, and why."""

_NEUTRAL: dict[str, tuple[float | str, ...]] = {
    "activation.situ_beta": (0, 1),
    "activation.situ_linear_beta": (0,),
    "adapters.count": (0,),
    "attention.causal": (1,),
    "attention.clamp_kqv": (0,),
    "attention.compress_ratios": (0,),
    "attention.decay_lora_rank": (0,),
    "attention.gate_lora_rank": (0,),
    "attention.iclr_lora_rank": (0,),
    "attention.indexer.head_count": (0,),
    "attention.key_length_mla": (0,),
    "attention.key_length_mla_swa": (0,),
    "attention.kv_lora_rank": (0,),
    "attention.kv_lora_rank_swa": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_group_count": (0,),
    "attention.output_lora_rank": (0,),
    "attention.output_scale": (0, 1),
    "attention.recurrent_layers": (0,),
    "attention.relative_buckets_count": (0,),
    "attention.rope_pattern": (1,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_residual_mix_lora_rank": (0,),
    "attention.value_scale": (0, 1),
    # llama.cpp saves 50 and 30 for families without a softcap.
    "attn_logit_softcapping": (0, 50),
    "final_logit_softcapping": (0, 30),
    "router_logit_softcapping": (0, 30),
    "attn_res.block_size": (0,),
    "conv_kernel_size": (0,),
    "convnext.block_count": (0,),
    "decoder_block_count": (0,),
    "deepstack_mapping": (-1,),
    "dense_2_feat_in": (0,),
    "dense_2_feat_out": (0,),
    "dense_3_feat_in": (0,),
    "dense_3_feat_out": (0,),
    "embedding_length_out": (0,),
    "embedding_length_per_layer_input": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_group_scale": (0, 0.05),
    "expert_latent_length": (0,),
    "experts_per_group": (0,),
    "features_length": (0,),
    "full_attention_interval": (0, 1),
    "hash_layer_count": (0,),
    "hrm.layers_per_stack": (0,),
    "hyper_connection.count": (0,),
    "kda.gate_lower_bound": (0, float("-inf")),
    "kda.head_dim": (0,),
    "kda.safe_gate": (0,),
    "logit_scale": (0, 1),
    "moe_latent_size": (0,),
    "n_deepstack_layers": (0,),
    "nextn_predict_layers": (0,),
    "num_loops": (0, 1),
    "ple.layers": (),
    "posnet.block_count": (0,),
    "rescale_every_n_layers": (0,),
    "residual_scale": (0, 1),
    "rope.dimension_sections": (0,),
    "rope.scale_linear": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.yarn_log_multiplier": (0,),
    "selector_rank": (0,),
    "shortconv.l_cache": (0,),
    "ssm.conv_kernel": (0,),
    "ssm.dt_b_c_rms": (0,),
    "ssm.group_count": (0,),
    "ssm.state_size": (0,),
    "ssm.time_step_rank": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "swin_norm": (0,),
    "time_decay_extra_dim": (0,),
    "time_mix_extra_dim": (0,),
    "token_shift_count": (0, 2),
    "use_parallel_residual": (0,),
    "wkv.head_size": (0,),
}
"""Keys at the values that ask for nothing; of a list at each."""

_PARTS: tuple[tuple[str, str], ...] = (
    ("adapters.*", "adapters.count"),
    ("attention.compress_rope_freq_base", "attention.compress_ratios"),
    ("attention.indexer.*", "attention.indexer.head_count"),
    ("attention.sliding_window_pattern", "attention.sliding_window"),
    ("attention.temperature_length", "attention.temperature_scale"),
    ("attention.*_swa", "attention.sliding_window"),
    ("conv_group_size", "conv_kernel_size"),
    ("convnext.*", "convnext.block_count"),
    ("decoder_start_token_id", "decoder_block_count"),
    ("expert_*", "expert_count"),
    ("norm_top_k_prob", "expert_count"),
    ("hrm.*", "hrm.layers_per_stack"),
    ("hyper_connection.*", "hyper_connection.count"),
    ("kda.*", "kda.head_dim"),
    ("ple.*", "ple.layers"),
    ("posnet.*", "posnet.block_count"),
    ("rope.*_swa", "attention.sliding_window"),
    ("rope.scaling.original_context_length", "rope.scaling.type"),
    ("rope.scaling.yarn_*", "rope.scaling.type"),
    ("selector_top_k", "selector_rank"),
    ("skip_loop_final_norm", "num_loops"),
    ("ssm.*", "ssm.conv_kernel"),
)
"""Keys that mean nothing where another one is missing, or asks for nothing."""

_SAME: dict[str, str] = {
    "attention.head_dim": "attention.key_length",
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_mla": "attention.value_length",
    "embedding_length_out": "embedding_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
}
"""Keys that ask for nothing where they say what another one says."""


def is_needless(name: str, architecture: str, metadata: Metadata) -> bool:
    """Say whether a key of a model, without the architecture in front, changes no number."""

    def value(of: str) -> Any:
        return metadata.get(f"{architecture}.{of}")

    if any(pattern(one).fullmatch(name) for one, _ in _NEEDLESS):
        return True
    if name in _NEUTRAL and _are_all(value(name), _NEUTRAL[name]):
        return True
    if name in _SAME and np.array_equal(value(name), value(_SAME[name])):
        return True
    wholes = [whole for part, whole in _PARTS if pattern(part).fullmatch(name) and whole != name]
    return any(value(whole) is None or _are_all(value(whole), _NEUTRAL[whole]) for whole in wholes)


def _are_all(value: Any, neutral: tuple[float | str, ...]) -> bool:
    """Say whether a value, or each of a list, is one of some."""
    values = value if isinstance(value, list | np.ndarray) else [value]
    return all(
        not isinstance(one, list | np.ndarray)
        and any(
            one == wanted if isinstance(wanted, str) else _is_close(one, wanted)
            for wanted in neutral
        )
        for one in values
    )


def _is_close(value: Any, wanted: float) -> bool:
    """Say whether a number is this one, as stored in float32."""
    is_number = not isinstance(value, str)
    return is_number and bool(np.float32(value) == np.float32(wanted))
