"""How DFlash and its relatives are published, and what their model files call it.

There are two layouts of the configuration: z-lab's, with ``dflash_config`` and layers counted by
their outputs, and speculators', with ``transformer_layer_config`` and layers counted by inputs.
XPress' tensors have names of their own in each.
"""

from typing import Any, TypeAlias

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
    head_width,
    long_context_factors,
    number,
    switched_window,
)

Values: TypeAlias = NDArray[np.float32]


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


def in_halves(values: Values, config: Config) -> Values:
    """Return rows of heads, or a norm of heads, with the halves of rotary pairs apart.

    Checkpoints of other rotations have the two of a pair side by side.
    """
    if config.get("rope_is_neox_style", default=True, type=bool):
        return values
    pairs = values.reshape(-1, head_width(config) // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


_ROTATED = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")


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
        *(
            msgspec.structs.replace(r, change=in_halves) if r.tensor.endswith(_ROTATED) else r
            for r in (*ATTENTION, *HEAD_NORMS)
        ),
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

_CONVOLUTIONS = {
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_SCORES = "candidate_selector."
DFLASH2_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset({"DFlash2DraftModel"}),
    requires=("block_size|dflash_config.block_size",),
    tensors=(
        *DFLASH_CHECKPOINT.tensors,
        *block_renames(_CONVOLUTIONS),
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

_PREFIX = "lilicorr."


def candidate_layers(config: Config) -> range:
    """Return the numbers of the layers over candidates."""
    return range(config["lilicorr_num_layers"])


def slot_mix(embedding: Values, config: Config) -> Values:
    """Return the mix of rows of ones that gives row i of a block the embedding of slot i - 1.

    The first row is no slot, and gets zeros.
    """
    slots = embedding.reshape(-1, embedding.shape[-1])
    mix = np.zeros((len(slots) + 1, len(slots) + 1, slots.shape[1]), np.float32)
    at = np.arange(len(slots))
    mix[at + 1, at + 1] = slots
    return mix


def anchor_mix(embedding: Values, config: Config) -> Values:
    """Return the mix that gives each row of a block the first one, from the slots' embedding."""
    mix = np.zeros_like(slot_mix(embedding, config))
    mix[:, 0] = 1
    return mix


def distances(biases: Values, config: Config, same_slot: Values) -> Values:
    """Return the bias of each head and distance, that of the same slot included."""
    made = biases.copy()
    made[:, biases.shape[1] // 2] += same_slot
    return made


def flat(values: Values, config: Config) -> Values:
    """Return the values in one row."""
    return values.reshape(-1)


def rank_features(config: Config) -> Values:
    """Return the features of each candidate that do not depend on it, zeros for the other three."""
    n = config["lilicorr_candidate_topk"]
    made = np.zeros((n, 5), np.float32)
    made[:, 3] = np.arange(n) / max(n - 1, 1)
    made[0, 4] = 1
    return made.reshape(-1)


def target_mask(config: Config) -> Values:
    """Return what mask tokens have in place of the target's row."""
    width = config.get("target_hidden_size", "hidden_size")
    return np.zeros(len(target_layers(config)) * width, np.float32)


def _linear(source: str, tensor: str, **further: Any) -> tuple[Rename, Rename]:
    """Return the renames of a matrix and its bias."""
    weight, bias = (
        Rename(f"{_PREFIX}{source}.{part}", f"{_PREFIX}{tensor}.{part}", **further)
        for part in ("weight", "bias")
    )
    return weight, bias


def _of_layer(source: str, tensor: str) -> Rename:
    """Return the rename of a tensor of each layer over candidates."""
    source, tensor = f"{_PREFIX}layers.{{n}}.{source}", f"{_PREFIX}{{n}}.{tensor}"
    return Rename(source, tensor, layers=candidate_layers)


LILICORR_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset({"LiLiCorrDraftModel"}),
    requires=("block_size|dflash_config.block_size",),
    tensors=(
        *DFLASH_CHECKPOINT.tensors,
        *block_renames(_CONVOLUTIONS, optional=True),
        *_linear("token_proj", "token", optional=True),
        *_linear("pass_hidden_proj", "row"),
        *_linear("context_proj", "context"),
        *_linear("feature_mlp.0", "feature_norm"),
        *_linear("feature_mlp.1", "feature_up"),
        *_linear("feature_mlp.3", "feature_down"),
        Rename(f"{_PREFIX}slot_embedding", f"{_PREFIX}slot_mix.weight", slot_mix),
        Rename(f"{_PREFIX}slot_embedding", f"{_PREFIX}anchor_mix.weight", anchor_mix),
        Rename(f"{_PREFIX}rank_embedding", f"{_PREFIX}rank.weight", flat),
        Rename(
            f"{_PREFIX}relative_slot_bias",
            f"{_PREFIX}distance.weight",
            distances,
            also=f"{_PREFIX}same_slot_bias",
        ),
        _of_layer("attn_norm.weight", "attn_norm.weight"),
        _of_layer("attn.in_proj_weight", "attn_qkv.weight"),
        _of_layer("attn.in_proj_bias", "attn_qkv.bias"),
        *(
            _of_layer(f"{source}.{part}", f"{tensor}.{part}")
            for source, tensor in (
                ("attn.out_proj", "attn_output"),
                ("mlp.0", "ffn_up"),
                ("mlp.2", "ffn_down"),
            )
            for part in ("weight", "bias")
        ),
        _of_layer("mlp_norm.weight", "ffn_norm.weight"),
        Rename(f"{_PREFIX}output_norm.weight", f"{_PREFIX}output_norm.weight"),
        Rename(f"{_PREFIX}anchor_norm.weight", f"{_PREFIX}anchor_norm.weight"),
        *_linear("factor_input_proj", "factor"),
        *_linear("out_head", "going"),
        *_linear("in_head", "coming"),
        *_linear("anchor_out_head", "start"),
    ),
    made=(
        *DFLASH_CHECKPOINT.made,
        (f"{_PREFIX}one.weight", lambda config: np.ones(1, np.float32)),
        (f"{_PREFIX}rank_features.weight", rank_features),
        (f"{_PREFIX}target_mask.weight", target_mask),
    ),
    constants=(
        *DFLASH_CHECKPOINT.constants,
        ("sample_from_anchor", (False,)),
        ("lilicorr_enabled", (True,)),
        ("projector_type", ("lilicorr",)),
    ),
    harmless=(
        *DFLASH_CHECKPOINT.harmless,
        (
            "lilicorr_hidden_size lilicorr_num_heads lilicorr_mlp_ratio lilicorr_factor_dim",
            "the tensors say it",
        ),
    ),
    metadata=(
        *DFLASH_CHECKPOINT.metadata,
        *((f"{{arch}}.{name}", Key(name)) for name in ("conv_kernel_size", "conv_group_size")),
        ("{arch}.selector_top_k", "lilicorr_candidate_topk"),
        ("{arch}.lilicorr.vector_eps", number("lilicorr_vector_eps")),
        ("{arch}.lilicorr.logit_scale", number("lilicorr_logit_scale")),
    ),
)

DSPARK_CHECKPOINT = msgspec.structs.replace(
    DFLASH_CHECKPOINT,
    architectures=frozenset(
        {"DSparkDraftModel", "Qwen3DSparkModel", "DSparkSpeculator", "Lfm2DSparkDraftModel"}
    ),
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
