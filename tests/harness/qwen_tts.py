"""A small published checkpoint of Qwen3-TTS, with random weights that a seed determines.

``tools/qwen_tts_references.py`` computes with it what ``tests/data/qwen_tts`` holds. The module
needs NumPy only, for its sake.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_CODEBOOKS, N_CODES, N_TEXT = 5, 19, 24
N_FIRST = N_CODES + 1024  # the package never chooses the last 1024 but for the end
WIDTH, N_HEADS, N_KV_HEADS, HEAD, N_FF, N_LAYERS, TEXT_WIDTH = 32, 4, 2, 16, 48, 2, 40
DEPTH, N_DEPTH_HEADS, N_DEPTH_FF, N_DEPTH_LAYERS = 24, 3, 36, 2
N_CTX, EPS = 128, 1e-6
IM_START, IM_END, NEWLINE, ASSISTANT, TTS_PAD, TTS_BOS, TTS_EOS = 23, 22, 1, 2, 21, 20, 19
MARKS = {
    "codec_pad_id": 500,
    "codec_bos_id": 501,
    "codec_eos_token_id": 502,
    "codec_think_id": 503,
    "codec_nothink_id": 504,
    "codec_think_bos_id": 505,
    "codec_think_eos_id": 506,
}
LANGUAGES = {"english": 600, "chinese": 601}
SPEAKERS = {"vivian": 700, "ryan": 701}


def configuration(
    depth: int = DEPTH, n_codes: int = N_CODES, n_codebooks: int = N_CODEBOOKS
) -> dict[str, object]:
    """Return ``config.json``, with a code predictor of this width and so many codes."""
    predictor = {
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": n_codebooks,
        "vocab_size": n_codes,
        "hidden_size": depth,
        "intermediate_size": N_DEPTH_FF,
        "num_hidden_layers": N_DEPTH_LAYERS,
        "num_attention_heads": N_DEPTH_HEADS,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": EPS,
        "rope_theta": 500.0,
        "rope_scaling": None,
    }
    talker = {
        "model_type": "qwen3_tts_talker",
        "code_predictor_config": predictor,
        "num_code_groups": n_codebooks,
        "vocab_size": n_codes + N_FIRST - N_CODES,
        "text_vocab_size": N_TEXT,
        "text_hidden_size": TEXT_WIDTH,
        "hidden_size": WIDTH,
        "intermediate_size": N_FF,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": N_CTX,
        "rms_norm_eps": EPS,
        "rope_theta": 1000.0,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
            "type": "default",
        },
        "codec_language_id": LANGUAGES,
        "spk_id": SPEAKERS,
        "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
        **MARKS,
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "im_start_token_id": IM_START,
        "im_end_token_id": IM_END,
        "tts_pad_token_id": TTS_PAD,
        "tts_bos_token_id": TTS_BOS,
        "tts_eos_token_id": TTS_EOS,
        "talker_config": talker,
    }


def weights(
    seed: int = 12, depth: int = DEPTH, n_codes: int = N_CODES, n_codebooks: int = N_CODEBOOKS
) -> dict[str, np.ndarray]:
    """Return random weights by their names in the checkpoint."""
    n_first = n_codes + N_FIRST - N_CODES
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.25, around: float = 0.0) -> None:
        made["talker." + name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    def layer(at: str, width: int, n_heads: int, n_kv_heads: int, head: int, n_ff: int) -> None:
        random(at + "input_layernorm.weight", width, around=1.0)
        random(at + "post_attention_layernorm.weight", width, around=1.0)
        random(at + "self_attn.q_proj.weight", head * n_heads, width)
        random(at + "self_attn.k_proj.weight", head * n_kv_heads, width)
        random(at + "self_attn.v_proj.weight", head * n_kv_heads, width)
        random(at + "self_attn.o_proj.weight", width, head * n_heads)
        random(at + "self_attn.q_norm.weight", head, around=1.0)
        random(at + "self_attn.k_norm.weight", head, around=1.0)
        random(at + "mlp.gate_proj.weight", n_ff, width)
        random(at + "mlp.up_proj.weight", n_ff, width)
        random(at + "mlp.down_proj.weight", width, n_ff)

    random("model.text_embedding.weight", N_TEXT, TEXT_WIDTH, spread=1.0)
    random("model.codec_embedding.weight", n_first, WIDTH, spread=1.0)
    random("text_projection.linear_fc1.weight", TEXT_WIDTH, TEXT_WIDTH)
    random("text_projection.linear_fc1.bias", TEXT_WIDTH)
    random("text_projection.linear_fc2.weight", WIDTH, TEXT_WIDTH)
    random("text_projection.linear_fc2.bias", WIDTH)
    for n in range(N_LAYERS):
        layer(f"model.layers.{n}.", WIDTH, N_HEADS, N_KV_HEADS, HEAD, N_FF)
    random("model.norm.weight", WIDTH, around=1.0)
    random("codec_head.weight", n_first, WIDTH)
    if depth != WIDTH:
        random("code_predictor.small_to_mtp_projection.weight", depth, WIDTH)
        random("code_predictor.small_to_mtp_projection.bias", depth)
    for n in range(N_DEPTH_LAYERS):
        layer(f"code_predictor.model.layers.{n}.", depth, N_DEPTH_HEADS, 1, 8, N_DEPTH_FF)
    random("code_predictor.model.norm.weight", depth, around=1.0)
    for i in range(n_codebooks - 1):
        at = f"code_predictor.model.codec_embedding.{i}.weight"
        random(at, n_codes, WIDTH, spread=1.0)
        random(f"code_predictor.lm_head.{i}.weight", n_codes, depth)
    return made


class Speech(NamedTuple):
    """What is asked for: a text, and how it is to be spoken.

    ``speaker`` names a voice of the model, or is the row of another one; ``reference`` are the text
    and the frames of speech in that voice. With ``streams`` all but the text's beginning is read
    while it is spoken.
    """

    text: list[int]
    language: str = "auto"
    speaker: str | np.ndarray | None = None
    instruct: list[int] | None = None
    reference: tuple[list[int], np.ndarray] | None = None
    streams: bool = True


def _voice(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, WIDTH).astype(np.float32)


def _frames(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, N_CODES, (n, N_CODEBOOKS)).astype(np.int32)


SPEECHES = {
    "a voice of the model": Speech([3, 4, 5, 6, 7, 8], "english", "vivian"),
    "the whole text first": Speech([9, 4, 10, 11], "chinese", "ryan", streams=False),
    "a description": Speech([5, 6, 7], instruct=[12, 13, 14], streams=False),
    "a row of a voice": Speech([8, 3, 9, 10, 11], "english", _voice(5)),
    "speech of a voice": Speech(
        [4, 5, 6, 7], "english", _voice(6), reference=([8, 9, 10], _frames(4, 7))
    ),
    "more speech than text": Speech([4], speaker=_voice(8), reference=([5], _frames(6, 9))),
}
"""All ways in which the package asks for speech."""
