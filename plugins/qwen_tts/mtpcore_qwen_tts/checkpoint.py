"""Published checkpoints of Qwen3-TTS, as ``Qwen3TTSForConditionalGeneration`` lays them out."""

from collections.abc import Callable, Iterator

from mtpcore.plugin import (
    ATTENTION,
    DECODER,
    HEAD_NORMS,
    ROPE_KEYS,
    SWIGLU,
    Checkpoint,
    Config,
    Count,
    Rename,
    block_renames,
    depth_config,
    depth_keys,
    in_depth,
    in_heads,
)

LAYER = (
    *ATTENTION,
    *HEAD_NORMS,
    *SWIGLU,
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
)
DEPTH = "code_predictor_config"
PREDICTOR = "talker.code_predictor."


def n_predicted(config: Config) -> int:
    """Return how many codes of a frame the code predictor chooses."""
    return int(config.require("num_code_groups", Count)) - 1


def tables(config: Config) -> Iterator[str]:
    """Yield the tables of all codebooks: the talker's of first codes, and the others."""
    yield "talker.model.codec_embedding.weight"
    for i in range(n_predicted(config)):
        yield f"{PREDICTOR}model.codec_embedding.{i}.weight"


def outputs(config: Config) -> Iterator[str]:
    """Yield the code predictor's matrices of the output."""
    for i in range(n_predicted(config)):
        yield f"{PREDICTOR}lm_head.{i}.weight"


MARKS = ("pad", "bos", "think", "nothink", "think_bos", "think_eos")
"""First codes that stand in prompts."""


def mark(name: str) -> Callable[[Config], int]:
    """Return a source of a mark's id."""
    return lambda config: int(config.require(f"codec_{name}_id", Count))


def named(path: str) -> tuple[Callable[[Config], list[str] | None], Callable[..., object]]:
    """Return sources of names and of their marks' ids; None where there are none."""

    def of(config: Config) -> dict[str, int]:
        found: dict[str, int] = config.get(path, default={}, type=dict[str, Count])
        return found

    return lambda config: [*of(config)] or None, lambda config: [*of(config).values()] or None


SPEAKERS, SPEAKER_IDS = named("spk_id")
LANGUAGES, LANGUAGE_IDS = named("codec_language_id")


def is_as_wide(config: Config) -> bool:
    """Say whether the code predictor is as wide as the talker, and projects nothing."""
    width = depth_config(config, DEPTH).require("hidden_size", Count)
    return bool(width == config.require("hidden_size", Count))


CHECKPOINT = Checkpoint(
    architectures=frozenset({"Qwen3TTSForConditionalGeneration"}),
    nested=("talker_config",),
    tensors=(
        Rename("talker.model.text_embedding.weight", "token_embd.weight"),
        Rename("talker.text_projection.linear_fc1.weight", "text_proj.up.weight"),
        Rename("talker.text_projection.linear_fc1.bias", "text_proj.up.bias"),
        Rename("talker.text_projection.linear_fc2.weight", "text_proj.down.weight"),
        Rename("talker.text_projection.linear_fc2.bias", "text_proj.down.bias"),
        Rename("", "audio_embd.weight", sources=tables, joined=True),
        Rename("talker.model.norm.weight", "output_norm.weight"),
        Rename("talker.codec_head.weight", "output.weight"),
        *in_heads("talker.model.layers.{n}.", LAYER),
        Rename(
            f"{PREDICTOR}small_to_mtp_projection.weight", "depth.input.weight", optional=is_as_wide
        ),
        Rename(f"{PREDICTOR}small_to_mtp_projection.bias", "depth.input.bias", optional=is_as_wide),
        *in_depth(DEPTH, f"{PREDICTOR}model.layers.{{n}}.", LAYER),
        Rename(f"{PREDICTOR}model.norm.weight", "depth.output_norm.weight"),
        Rename("", "depth.output.weight", sources=outputs),
    ),
    dropped=("speaker_encoder.*",),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.text_embedding_length", lambda config: config.require("text_hidden_size", Count)),
        ("{arch}.text_padding_token_id", lambda config: config.require("tts_pad_token_id", int)),
        ("{arch}.codebook_count", lambda config: config.require("num_code_groups", Count)),
        (
            "{arch}.codebook_size",
            lambda config: depth_config(config, DEPTH).require("vocab_size", Count),
        ),
        ("{arch}.codebook_first_size", lambda config: config.require("vocab_size", Count)),
        ("{arch}.codebook_end", lambda config: config.require("codec_eos_token_id", int)),
        *((f"{{arch}}.codec.{name}_id", mark(name)) for name in MARKS),
        ("{arch}.speaker.names", SPEAKERS),
        ("{arch}.speaker.ids", SPEAKER_IDS),
        ("{arch}.language.names", LANGUAGES),
        ("{arch}.language.ids", LANGUAGE_IDS),
        *depth_keys(DEPTH, DECODER, ROPE_KEYS),
    ),
)
