"""Published checkpoints of CSM, as ``CsmForConditionalGeneration`` lays them out."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mtpcore.plugin import (
    ATTENTION,
    DECODER,
    FACTORED_ROPE_KEYS,
    SWIGLU,
    Checkpoint,
    Config,
    Count,
    Key,
    Rename,
    block_renames,
    in_heads,
    long_context_factors,
    on_layers,
)

LAYER = (
    *ATTENTION,
    *SWIGLU,
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
)
TABLE = "model.embed_tokens.embed_audio_tokens.weight"
"""Embeddings of all codes; the depth decoder's are the same, and a checkpoint may have either."""


def inner(config: Config) -> Config:
    """Return the depth decoder's configuration."""
    file = f"{config.file}: depth_decoder_config"
    return Config(config.require("depth_decoder_config", dict), file)


def depth_layers(config: Config) -> range:
    """Return the numbers of the depth decoder's blocks."""
    return range(inner(config).n_layers)


def transpose(values: np.ndarray, config: Config) -> np.ndarray:
    """Return a matrix as outputs by inputs: the checkpoint multiplies from the other side."""
    return np.ascontiguousarray(values.T)


def of_depth(source: str | Key | Callable[[Config], object]) -> Callable[[Config], object]:
    """Return a source of metadata that reads the depth decoder's configuration."""

    def read(config: Config) -> Any:
        own = inner(config)
        if isinstance(source, str):
            return own[source]
        return (
            own.get(source.name, default=source.default) if isinstance(source, Key) else source(own)
        )

    return read


def n_layers(config: Config) -> int:
    """Return how many layers there are."""
    return config.n_layers


CHECKPOINT = Checkpoint(
    architectures=frozenset({"CsmForConditionalGeneration"}),
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
        *(
            msgspec.structs.replace(rename, tensor=f"depth.{rename.tensor}")
            for rename in on_layers(
                depth_layers, in_heads("depth_decoder.model.layers.{n}.", LAYER)
            )
        ),
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
        ("depth.rope_freqs.weight", lambda config: long_context_factors(inner(config))),
    ),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.codebook_count", lambda config: config.require("num_codebooks", Count)),
        (
            "{arch}.codebook_size",
            lambda config: config.get("codebook_size", "vocab_size", type=Count),
        ),
        ("{arch}.codebook_end", Key("codebook_eos_token_id", 0)),
        ("{arch}.depth.block_count", of_depth(n_layers)),
        *(
            (key.replace("{arch}", "{arch}.depth"), of_depth(source))
            for key, source in (*DECODER, *FACTORED_ROPE_KEYS)
        ),
    ),
    prefixes=(("backbone_model.", "model."),),
)
