"""Published checkpoints of Qwen3-TTS, as ``Qwen3TTSForConditionalGeneration`` lays them out."""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import (
    ATTENTION,
    CONSTANTS,
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
    head_width,
    in_depth,
    in_heads,
    switched_window,
)
from mtpcore_qwen_tts import sound
from mtpcore_qwen_tts.companion import (
    COMPANION,
    END,
    LANGUAGE,
    MARKS,
    OF_FIRST,
    OF_OTHERS,
    OUTPUTS,
    SIZES,
    SPEAKER,
    texts_of_codes,
    there,
)

F32 = NDArray[np.float32]

LAYER = (
    *ATTENTION,
    *HEAD_NORMS,
    *SWIGLU,
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
)
DEPTH = "code_predictor_config"
PREDICTOR = "talker.code_predictor."
PIECE = 1 << 12
"""Rows of the table of texts that are projected at once."""


def n_predicted(config: Config) -> int:
    """Return how many codes of a frame the code predictor chooses."""
    return int(config.require("num_code_groups", Count)) - 1


def tables(config: Config) -> Iterator[str]:
    """Yield the tables of the codes that the code predictor chooses."""
    for i in range(n_predicted(config)):
        yield f"{PREDICTOR}model.codec_embedding.{i}.weight"


def outputs(config: Config) -> Iterator[str]:
    """Yield the code predictor's matrices of the output."""
    for i in range(n_predicted(config)):
        yield f"{PREDICTOR}lm_head.{i}.weight"


def fold(
    texts: F32,
    config: Config,
    up: F32,
    up_bias: F32,
    down: F32,
    down_bias: F32,
    codes: F32,
) -> F32:
    """Return a table of tokens: texts as the talker reads them, projected, and first codes."""
    activation = config.get("hidden_act", default="silu")
    if activation != "silu":
        raise ValueError(f"the text's projection has the activation {activation!r}, not 'silu'")

    def project(rows: F32) -> F32:
        rows = rows @ up.T + up_bias
        rows /= 1 + np.exp(-rows)
        projected: F32 = rows @ down.T + down_bias
        return projected

    shape = (len(texts) + len(codes), *project(texts[:1]).shape[1:])
    if not texts.strides[0]:  # zeros that take no memory: only the shape is asked for
        return np.broadcast_to(np.float32(0), shape)
    table = np.empty(shape, np.float32)
    for begin in range(0, len(texts), PIECE):
        rows = texts[begin : begin + PIECE]
        table[begin : begin + len(rows)] = project(rows)
    table[len(texts) :] = codes
    return table


def named(path: str) -> Callable[[Config], dict[str, int]]:
    """Return a source of names with the ids of their marks."""

    def of(config: Config) -> dict[str, int]:
        found: dict[str, int] = config.get(path, default={}, type=dict[str, Count])
        return found

    return of


LANGUAGES, SPEAKERS = named("codec_language_id"), named("spk_id")


def code_tokens(config: Config) -> list[str]:
    """Return first codes as tokens."""
    marks = {f"<|codec_{name}|>": config.require(f"codec_{name}_id", Count) for name in MARKS}
    marks |= {LANGUAGE.format(name): i for name, i in LANGUAGES(config).items()}
    marks |= {SPEAKER.format(name): i for name, i in SPEAKERS(config).items()}
    marks[END] = config.require("codec_eos_token_id", Count)
    return texts_of_codes(config.require("vocab_size", Count), marks)


def end_token(config: Config) -> int:
    """Return the mark of the end as a token."""
    n_texts, end = (config.require(p, Count) for p in ("text_vocab_size", "codec_eos_token_id"))
    return int(n_texts + end)


def marks(config: Config) -> np.ndarray:
    """Return the tokens that are never chosen: all marks but that of the end."""
    n_texts, n_codes = (config.require(p, Count) for p in ("text_vocab_size", "vocab_size"))
    n_sounds = depth_config(config, DEPTH).require("vocab_size", Count)
    suppressed = np.arange(n_texts + n_sounds, n_texts + n_codes, dtype=np.int32)
    unchosen: np.ndarray = suppressed[suppressed != end_token(config)]
    return unchosen


def sections(config: Config) -> list[int]:
    """Return how many pairs of a head each axis of a position rotates, in turns.

    The axes agree, so any will do. With those of the configuration llama.cpp would leave the last
    pairs to a fourth axis, on which every row is at 0.
    """
    n_pairs = head_width(config) // 2
    return [(n_pairs + 2) // 3, (n_pairs + 1) // 3, n_pairs // 3, 0]


def windows(config: Config) -> None:
    """Refuse windows of either decoder."""
    switched_window(config)
    switched_window(depth_config(config, DEPTH))


def is_as_wide(config: Config) -> bool:
    """Say whether the code predictor is as wide as the talker, and projects nothing."""
    width = depth_config(config, DEPTH).require("hidden_size", Count)
    return bool(width == config.require("hidden_size", Count))


def beside(rename: Rename) -> Rename:
    """Return a rename to what the companion calls the tensor."""
    called = dict(COMPANION.tensors)
    return msgspec.structs.replace(rename, tensor=called[rename.tensor][0])


BESIDE = Checkpoint(
    architectures=frozenset(),
    tensors=(
        Rename("talker.model.codec_embedding.weight", OF_FIRST),
        Rename("", OF_OTHERS, sources=tables),
        beside(
            Rename(
                f"{PREDICTOR}small_to_mtp_projection.weight",
                "depth.input.weight",
                optional=is_as_wide,
            )
        ),
        beside(
            Rename(
                f"{PREDICTOR}small_to_mtp_projection.bias", "depth.input.bias", optional=is_as_wide
            )
        ),
        *map(beside, in_depth(DEPTH, f"{PREDICTOR}model.layers.{{n}}.", LAYER)),
        beside(Rename(f"{PREDICTOR}model.norm.weight", "depth.output_norm.weight")),
        Rename("", OUTPUTS, sources=outputs),
    ),
    metadata=(
        ("clip.has_gen_audio_encoder", lambda config: True),
        (f"{SIZES}projector_type", lambda config: "qwen3tts_gen"),
        (f"{SIZES}projection_dim", "hidden_size"),
        *((there(key), source) for key, source in depth_keys(DEPTH, DECODER, ROPE_KEYS)),
    ),
)
CHECKPOINT = Checkpoint(
    architectures=frozenset({"Qwen3TTSForConditionalGeneration"}),
    nested=("talker_config",),
    tensors=(
        Rename(
            "talker.model.text_embedding.weight",
            "token_embd.weight",
            fold,
            also=(
                "talker.text_projection.linear_fc1.weight",
                "talker.text_projection.linear_fc1.bias",
                "talker.text_projection.linear_fc2.weight",
                "talker.text_projection.linear_fc2.bias",
                "talker.model.codec_embedding.weight",
            ),
        ),
        Rename("talker.model.norm.weight", "output_norm.weight"),
        Rename("talker.codec_head.weight", "output.weight"),
        *in_heads("talker.model.layers.{n}.", LAYER),
    ),
    companion=BESIDE,
    more_tokens=code_tokens,
    constants=(*CONSTANTS, *((f"{DEPTH}.{path}", taken) for path, taken in CONSTANTS)),
    harmless=(
        ("speaker_encoder_config", "of the encoder of voices"),
        ("tokenizer_type tts_model_size tts_model_type", "what the release is called"),
        ("interleaved mrope_section", "the axes of a position agree"),
        ("position_id_per_seconds text_hidden_size num_code_groups", "the tensors say it"),
        (
            "im_start_token_id im_end_token_id tts_bos_token_id tts_eos_token_id "
            "assistant_token_id spk_is_dialect",
            "of prompts, which the caller writes",
        ),
    ),
    folders=(sound.FOLDER,),
    dropped=(f"{sound.VOICE}*", f"{sound.FOLDER}/*"),
    note=f"without an encoder of voices ({sound.VOICE}*) and a codec of 16 codebooks "
    f"({sound.FOLDER}/) llama.cpp does not load the companion: it runs the talker alone",
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.attention.sliding_window", windows),
        ("{arch}.rope.dimension_sections", sections),
        ("{arch}.text_padding_token_id", lambda config: config.require("tts_pad_token_id", int)),
        ("tokenizer.ggml.eos_token_id", end_token),
        ("tokenizer.ggml.suppress_tokens", marks),
    ),
)
WHOLE = msgspec.structs.replace(
    CHECKPOINT,
    has=sound.PARTS,
    companion=msgspec.structs.replace(
        BESIDE,
        tensors=(*BESIDE.tensors, *sound.SOUND),
        metadata=(*BESIDE.metadata, *sound.METADATA),
    ),
    note="",
)
"""With what llama.cpp wants besides."""
