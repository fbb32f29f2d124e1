"""A small Qwen3-TTS in two files, as llama.cpp's converter writes them.

Names, keys and what is folded are restated from ``conversion/qwen3tts.py`` of llama.cpp (in
llama-cpp-python 0.3.36). Its files say nothing of the code predictor's rotation: it takes a base
of 1e6 for granted, as published models have; the small model has another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import qwen_tts
from mtpcore.gguf import write_model_file

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERWISE = {"attn_norm": "ln1", "attn_output": "attn_out", "ffn_norm": "ln2"}
"""What the file of the multimodal library calls tensors otherwise."""
BASE = "clip.gen.audio.rope.freq_base"
CODEC = {"a.gen.wav.pre_conv.weight": (4, 3, 2), "a.blk.1.conv_pw1.weight": (3, 3, 1)}
"""Some of the further tensors: of the codec, and of the encoder of voices."""


def tokens() -> list[str]:
    """Return the texts of tokens: of text, then first codes, some by their names."""
    text = [f"t{i}" for i in range(qwen_tts.N_TEXT)]
    text[qwen_tts.TTS_PAD] = "<tts_pad>"
    codes = [f"<|codec_{i}|>" for i in range(qwen_tts.N_FIRST)]
    for name, i in qwen_tts.MARKS.items():
        codes[i] = f"<|{name.removesuffix('_id')}|>"
    for name, i in qwen_tts.LANGUAGES.items():
        codes[i] = f"<|codec_language_{name}|>"
    for name, i in qwen_tts.SPEAKERS.items():
        codes[i] = f"<|spk_{name}|>"
    return [*text, *codes]


def talker(w: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and tensors of the language model."""
    w = {name.removeprefix("talker."): values for name, values in w.items()}
    up, down = (w[f"text_projection.linear_fc{i}.weight"].astype(np.float64) for i in (1, 2))
    rows = w["model.text_embedding.weight"] @ up.T + w["text_projection.linear_fc1.bias"]
    rows = rows / (1 + np.exp(-rows)) @ down.T + w["text_projection.linear_fc2.bias"]
    table = np.concatenate([rows, w["model.codec_embedding.weight"]]).astype(np.float32)
    tensors = {
        "token_embd.weight": table,
        "output_norm.weight": w["model.norm.weight"],
        "output.weight": w["codec_head.weight"],
    }
    for n in range(qwen_tts.N_LAYERS):
        for name, published in LAYER.items():
            tensors[f"blk.{n}.{name}.weight"] = w[f"model.layers.{n}.{published}.weight"]
    texts, end = tokens(), qwen_tts.N_TEXT + qwen_tts.MARKS["codec_eos_token_id"]
    return {
        "qwen3tts.block_count": qwen_tts.N_LAYERS,
        "qwen3tts.context_length": qwen_tts.N_CTX,
        "qwen3tts.embedding_length": qwen_tts.WIDTH,
        "qwen3tts.feed_forward_length": qwen_tts.N_FF,
        "qwen3tts.attention.head_count": qwen_tts.N_HEADS,
        "qwen3tts.attention.head_count_kv": qwen_tts.N_KV_HEADS,
        "qwen3tts.attention.key_length": qwen_tts.HEAD,
        "qwen3tts.attention.value_length": qwen_tts.HEAD,
        "qwen3tts.attention.layer_norm_rms_epsilon": qwen_tts.EPS,
        "qwen3tts.rope.freq_base": 1000.0,
        "qwen3tts.rope.dimension_sections": [4, 2, 2, 0],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.ones(len(texts), np.int32),
        "tokenizer.ggml.merges": ["t 0"],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.suppress_tokens": [
            i for i in range(len(texts) - 1024, len(texts)) if i != end
        ],
    }, tensors


def companion(w: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and tensors of the file of the multimodal library."""
    at, others = "talker.code_predictor.", range(qwen_tts.N_CODEBOOKS - 1)
    embeddings = [w[f"{at}model.codec_embedding.{i}.weight"] for i in others]
    tensors = {
        "a.gen.code.out_embd.weight": w["talker.model.codec_embedding.weight"],
        "a.gen.code.embd.weight": np.stack(embeddings),
        "a.gen.code.head.weight": np.stack([w[f"{at}lm_head.{i}.weight"] for i in others]),
        "a.gen.code.output_norm.weight": w[f"{at}model.norm.weight"],
    }
    for kind in ("weight", "bias"):
        if (projection := w.get(f"{at}small_to_mtp_projection.{kind}")) is not None:
            tensors[f"a.gen.code.proj_in.{kind}"] = projection
    for n in range(qwen_tts.N_DEPTH_LAYERS):
        for name, published in LAYER.items():
            values = w[f"{at}model.layers.{n}.{published}.weight"]
            tensors[f"a.gen.code.blk.{n}.{OTHERWISE.get(name, name)}.weight"] = values
    rng = np.random.default_rng(3)
    further = {name: rng.normal(size=shape).astype("f4") for name, shape in CODEC.items()}
    return {
        "general.type": "mmproj",
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type": "qwen3tts_spkenc",
        "clip.audio.block_count": 3,
        "clip.has_gen_audio_encoder": True,
        "clip.gen.audio.projector_type": "qwen3tts_gen",
        "clip.gen.audio.projection_dim": qwen_tts.WIDTH,
        "clip.gen.audio.embedding_length": len(tensors["a.gen.code.output_norm.weight"]),
        "clip.gen.audio.feed_forward_length": qwen_tts.N_DEPTH_FF,
        "clip.gen.audio.block_count": qwen_tts.N_DEPTH_LAYERS,
        "clip.gen.audio.attention.head_count": qwen_tts.N_DEPTH_HEADS,
        "clip.gen.audio.attention.head_count_kv": 1,
        "clip.gen.audio.attention.layer_norm_epsilon": qwen_tts.EPS,
        BASE: 500.0,
    }, tensors | further


def write_files(folder: Path, w: dict[str, np.ndarray], name: str = "model") -> tuple[Path, Path]:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"
    write_model_file(paths[0], "qwen3tts", *talker(w))
    write_model_file(paths[1], "clip", *companion(w))
    return paths
