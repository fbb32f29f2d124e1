"""Published checkpoints of CSM: transformers' layout, and torchtune's, as Sesame released it."""

from collections.abc import Mapping

import numpy as np

from mtpcore.plugin import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    FACTORED_ROPE_KEYS,
    STATED,
    SWIGLU,
    Checkpoint,
    Config,
    Count,
    Key,
    Rename,
    block_renames,
    depth_config,
    depth_keys,
    in_depth,
    in_heads,
    long_context_factors,
    separate,
)

LAYER = (
    *ATTENTION,
    *SWIGLU,
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
)
TORCHTUNE_LAYER = (
    *block_renames(
        {
            "sa_norm.scale": "attn_norm.weight",
            "attn.v_proj.weight": "attn_v.weight",
            "attn.output_proj.weight": "attn_output.weight",
        }
    ),
    *block_renames({"attn.q_proj.weight": "attn_q.weight"}, change=separate("num_attention_heads")),
    *block_renames({"attn.k_proj.weight": "attn_k.weight"}, change=separate("num_key_value_heads")),
    *block_renames(
        {
            "mlp.w1.weight": "ffn_gate.weight",
            "mlp.w3.weight": "ffn_up.weight",
            "mlp.w2.weight": "ffn_down.weight",
            "mlp_norm.scale": "ffn_norm.weight",
        }
    ),
)
"""A layer as torchtune names it; it rotates neighbours."""
DEPTH = "depth_decoder_config"
OF_DECODER = (*STATED, ("rms_norm_eps", 1e-5), ("rope_theta", 500000.0))
DEFAULTS = (
    *OF_DECODER,
    *((f"{DEPTH}.{name}", value) for name, value in OF_DECODER),
)
"""What either decoder means by a setting that is left out."""

TABLE = "model.embed_tokens.embed_audio_tokens.weight"
"""Embeddings of all codes; the depth decoder's are the same, and a checkpoint may have either."""


def transpose(values: np.ndarray, config: Config) -> np.ndarray:
    """Return a matrix as outputs by inputs: the checkpoint multiplies from the other side."""
    return np.ascontiguousarray(values.T)


CHECKPOINT = Checkpoint(
    architectures=frozenset({"CsmForConditionalGeneration"}),
    defaults=DEFAULTS,
    tensors=(
        Rename("embed_text_tokens.weight", "token_embd.weight"),
        Rename(TABLE, "audio_embd.weight", optional=True),
        Rename("model.norm.weight", "output_norm.weight"),
        Rename("lm_head.weight", "output.weight"),
        *LAYER,
        Rename(
            "depth_decoder.model.embed_tokens.weight",
            "depth.audio_embd.weight",
            optional=True,
            copy_of=TABLE,
        ),
        Rename("depth_decoder.model.inputs_embeds_projector.weight", "depth.input.weight"),
        *in_depth(DEPTH, "depth_decoder.model.layers.{n}.", LAYER),
        Rename("depth_decoder.model.norm.weight", "depth.output_norm.weight"),
        Rename(
            "depth_decoder.codebooks_head.weight",
            "depth.output.weight",
            transpose,
            is_stack=True,
        ),
    ),
    dropped=("codec_model.*",),
    made=(
        ("rope_freqs.weight", long_context_factors),
        (
            "depth.rope_freqs.weight",
            lambda config: long_context_factors(depth_config(config, DEPTH)),
        ),
    ),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.codebook_count", lambda config: config.require("num_codebooks", Count)),
        (
            "{arch}.codebook_size",
            lambda config: config.require("codebook_size|vocab_size", Count),
        ),
        ("{arch}.codebook_end", Key("codebook_eos_token_id", 0)),
        *depth_keys(DEPTH, DECODER, FACTORED_ROPE_KEYS),
    ),
    prefixes=(("backbone_model.", "model."),),
    constants=(*CONSTANTS, *((f"{DEPTH}.{path}", taken) for path, taken in CONSTANTS)),
    harmless=(
        ("audio_eos_token_id codebook_pad_token_id", "of prompts, which the caller writes"),
        ("tie_codebooks_embeddings", "a table that is another's copy: the tensors say it"),
        ("codec_config", "of the codec, which is left out"),
        (f"{DEPTH}.backbone_hidden_size {DEPTH}.num_codebooks", "the tensors say it"),
    ),
)


ROTATION = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rms_norm_eps": 1e-5,
}
FLAVORS: dict[str, dict[str, object]] = {
    "llama-1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        **ROTATION,
    },
    "llama-100M": {
        "hidden_size": 1024,
        "intermediate_size": 8192,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        **ROTATION,
    },
}
"""Sizes that the release calls by one word."""


def completed(config: Config) -> Mapping[str, object]:
    """Return the settings of the release's own configuration, which has five, as transformers'."""
    if config.get("hidden_size") is not None:
        return {}
    sizes = []
    for name in ("backbone_flavor", "decoder_flavor"):
        flavor = config.require(name, str)
        if flavor not in FLAVORS:
            raise ValueError(f"{name} is none of {', '.join(FLAVORS)}: {flavor!r}")
        sizes.append(FLAVORS[flavor])
    count = config.require("audio_num_codebooks", Count)
    codes = {"num_codebooks": count, "vocab_size": config.require("audio_vocab_size", Count)}
    backbone, depth = sizes
    return {
        **backbone,
        **codes,
        "max_position_embeddings": 2048,
        "depth_decoder_config": {**depth, "max_position_embeddings": count + 1},
    }


TORCHTUNE = Checkpoint(
    architectures=frozenset(),
    has="codebook0_head.weight",
    completed=completed,
    tensors=(
        Rename("text_embeddings.weight", "token_embd.weight"),
        Rename("audio_embeddings.weight", "audio_embd.weight"),
        Rename("backbone.norm.scale", "output_norm.weight"),
        Rename("codebook0_head.weight", "output.weight"),
        *in_heads("backbone.layers.{n}.", TORCHTUNE_LAYER),
        Rename("projection.weight", "depth.input.weight"),
        *in_depth(DEPTH, "decoder.layers.{n}.", TORCHTUNE_LAYER),
        Rename("decoder.norm.scale", "depth.output_norm.weight"),
        Rename("audio_head", "depth.output.weight", transpose, is_stack=True),
    ),
    made=CHECKPOINT.made,
    metadata=CHECKPOINT.metadata,
    constants=CHECKPOINT.constants,
    harmless=CHECKPOINT.harmless,
)
