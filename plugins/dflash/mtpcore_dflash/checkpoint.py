"""How DFlash and its relatives are published, and what their model files call it.

There are two layouts of the configuration: z-lab's, with ``dflash_config`` and layers counted by
their outputs, and speculators', with ``transformer_layer_config`` and layers counted by inputs.
XPress' tensors have names of their own in each.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    DRAFT_VOCABULARY,
    FACTORED_ROPE_KEYS,
    HEAD_NORMS,
    SWIGLU,
    Checkpoint,
    Config,
    Key,
    Rename,
    block_renames,
    long_context_factors,
    switched_window,
)


def target_layers(config: Config) -> list[int]:
    """Return the layers of the target whose input is read; an output is the next layer's input."""
    outputs = config.get("target_layer_ids", type=list[int])
    if outputs is not None:
        return [layer + 1 for layer in outputs]
    inputs: list[int] | None = config.get("aux_hidden_state_layer_ids", type=list[int])
    if inputs is None:
        raise ValueError(
            "the configuration does not name the target's layers (target_layer_ids or "
            "aux_hidden_state_layer_ids), and implementations differ on a default"
        )
    return inputs


def is_speculators(config: Config) -> bool:
    """Say whether the layout is speculators'."""
    return any(
        config.get(name) is not None
        for name in ("transformer_layer_config", "aux_hidden_state_layer_ids")
    )


def dspark_drafts_from_anchor(config: Config) -> bool:
    """Return whether row i drafts token i + 1; in speculators' layout it drafts its own."""
    stated = config.get("sample_from_anchor", type=bool)
    return not is_speculators(config) if stated is None else bool(stated)


def windowed(config: Config) -> list[bool] | None:
    """Return which layers have a sliding window; None where none has."""
    kinds = config.get("layer_types", type=list[str])
    if kinds is None:
        switched_window(config)
        return None
    if config.get("use_sliding_window", type=bool) is False:
        return None
    flags = [kind == "sliding_attention" for kind in kinds]
    return flags if any(flags) else None


def is_causal(config: Config) -> bool:
    """Return whether rows of a block see no later ones; releases have two words for it."""
    return bool(config.get("is_causal", "causal", default=False, type=bool))


def window(config: Config) -> int | None:
    """Return the length of the window; None where no layer has one."""
    return int(config["sliding_window"]) if windowed(config) else None


def window_causal(config: Config) -> bool | None:
    """Return whether rows of a block see no later ones in layers with a window."""
    if not windowed(config):
        return None
    both_ways = config.get("sliding_window_non_causal", default=False, type=bool)
    return is_speculators(config) and not both_ways


def passes(config: Config) -> int:
    """Return how often XPress refines a block; the authors' default is 6."""
    count: int = config.get("num_jacobi_passes", "xpress_num_passes", default=6, type=int)
    return count


def channels_last(mixer: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    """Put the weights of a row for another side by side: [channels, rows, rows] before."""
    return np.ascontiguousarray(mixer.transpose(1, 2, 0))


DFLASH_CHECKPOINT = Checkpoint(
    architectures=frozenset({"DFlashDraftModel", "DFlashSpeculator"}),
    requires=("block_size",),
    nested=("transformer_layer_config", "dflash_config"),
    prefixes=(("layers.", "model.layers."),),
    tensors=(
        Rename("fc.weight", "fc.weight"),
        Rename("hidden_norm.weight", "enc.output_norm.weight"),
        *ATTENTION,
        *HEAD_NORMS,
        *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
        *SWIGLU,
        Rename("norm.weight", "output_norm.weight"),
        Rename("lm_head.weight", "output.weight", optional=True),
        Rename("embed_tokens.weight", "token_embd.weight", optional=True),
        *DRAFT_VOCABULARY,
    ),
    dropped=("t2d",),  # says the same as d2t
    made=(("rope_freqs.weight", long_context_factors),),
    constants=(*CONSTANTS, ("use_swa", (False,)), ("markov_head_type", ("vanilla",))),
    harmless=(
        ("num_target_layers", "the target says it"),
        ("markov_rank xpress_rank xpress_block_size", "the tensors and block_size say it"),
        ("max_window_layers sliding_window swa_window_size", "layer_types says it, or use_swa"),
        ("num_anchors max_anchors", "of training"),
        ("enable_confidence_head confidence_head_with_markov", "drafts end by p_min"),
    ),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.target_layers", target_layers),
        ("{arch}.target_hidden_size", Key("target_hidden_size")),
        ("{arch}.block_size", "block_size"),
        ("{arch}.attention.causal", is_causal),
        ("{arch}.attention.sliding_window", window),
        ("{arch}.attention.sliding_window_pattern", windowed),
        ("{arch}.attention.sliding_window_causal", window_causal),
        ("tokenizer.ggml.mask_token_id", "mask_token_id"),
    ),
)

_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_SCORES = "candidate_selector."
DFLASH2_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset({"DFlash2DraftModel"}),
    requires=("block_size|dflash_config.block_size",),
    tensors=(
        *DFLASH_CHECKPOINT.tensors,
        *block_renames(
            {
                "attention_conv.base_kernel": "attn_conv_base",
                "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
                "mlp_conv.base_kernel": "ffn_conv_base",
                "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
            }
        ),
        Rename(f"{_SCORES}predecessor_codebook", "selector_predecessor.weight"),
        Rename(f"{_SCORES}successor_codebook", "selector_successor.weight"),
        Rename(f"{_SCORES}hidden_projection.weight", "selector_hidden.weight"),
    ),
    constants=(
        *DFLASH_CHECKPOINT.constants,
        ("sample_from_anchor", (False,)),
        ("input_embedding_scale", (1,)),
        ("output_multiplier", (1,)),
        ("final_logit_softcapping", (0,)),
    ),
    defaults=(("sliding_window_non_causal", True),),
    metadata=(*DFLASH_CHECKPOINT.metadata, *((f"{{arch}}.{name}", name) for name in _SIZES)),
)

DSPARK_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset({"DSparkDraftModel", "Qwen3DSparkModel", "DSparkSpeculator"}),
    nested=("transformer_layer_config", "dflash_config", "dspark_config"),
    tensors=(
        *DFLASH_CHECKPOINT.tensors,
        Rename("markov_head.markov_w1.weight", "markov_w1.weight"),
        Rename("markov_head.markov_w2.weight", "markov_w2.weight"),
    ),
    # Drafts end by p_min, the probability of the draft itself.
    dropped=(*DFLASH_CHECKPOINT.dropped, "confidence_head.proj.*"),
    metadata=(
        *DFLASH_CHECKPOINT.metadata,
        ("{arch}.sample_from_anchor", dspark_drafts_from_anchor),
    ),
)

_HEAD = "refiner_head"
XPRESS_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset(
        {"Qwen3XPressModel", "Qwen3XPressForCausalLM", "XPressDraftModel", "XPressSpeculator"}
    ),
    prefixes=(
        *DFLASH_CHECKPOINT.prefixes,
        ("xpress_head.", f"{_HEAD}."),
        ("xpress_head.w1.", f"{_HEAD}.token_embed."),
        ("xpress_head.w2.", f"{_HEAD}.readout."),
        ("xpress_head.mix.L", f"{_HEAD}.mix_l"),
        ("xpress_head.mlp.gate_proj.", f"{_HEAD}.mlp_gate."),
        ("xpress_head.mlp.up_proj.", f"{_HEAD}.mlp_up."),
        ("xpress_head.mlp.down_proj.", f"{_HEAD}.mlp_down."),
    ),
    tensors=(
        *DFLASH_CHECKPOINT.tensors,
        Rename(f"{_HEAD}.down_h.weight", "refiner.row.weight"),
        Rename(f"{_HEAD}.down_g.weight", "refiner.block.weight"),
        Rename(f"{_HEAD}.token_embed.weight", "refiner.token_embd.weight"),
        Rename(f"{_HEAD}.in_proj.weight", "refiner.join.weight"),
        Rename(f"{_HEAD}.mix_l", "refiner.mix.weight", channels_last),
        Rename(f"{_HEAD}.mlp_gate.weight", "refiner.ffn_gate.weight"),
        Rename(f"{_HEAD}.mlp_up.weight", "refiner.ffn_up.weight"),
        Rename(f"{_HEAD}.mlp_down.weight", "refiner.ffn_down.weight"),
        Rename(f"{_HEAD}.readout.weight", "refiner.output.weight"),
    ),
    metadata=(
        *DFLASH_CHECKPOINT.metadata,
        ("{arch}.sample_from_anchor", Key("sample_from_anchor", False)),
        ("{arch}.refiner_passes", passes),
    ),
)
