"""A small published checkpoint of CSM, with random weights that a seed determines.

``tools/csm_references.py`` computes with it what ``tests/data/csm`` holds. The module needs NumPy
only, for its sake.
"""

from __future__ import annotations

import numpy as np

N_CODEBOOKS, N_CODES, N_TEXT = 5, 19, 24
WIDTH, N_HEADS, N_KV_HEADS, N_FF, N_LAYERS = 32, 4, 2, 40, 2
DEPTH, N_DEPTH_HEADS, N_DEPTH_FF, N_DEPTH_LAYERS = 24, 3, 36, 2
N_CTX, EPS = 128, 1e-5


def scaling(high: float, low: float, original: int) -> dict[str, object]:
    """Return the scaling of a rotation."""
    return {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "high_freq_factor": high,
        "low_freq_factor": low,
        "original_max_position_embeddings": original,
    }


def depth_config() -> dict[str, object]:
    """Return the depth decoder's configuration."""
    return {
        "model_type": "csm_depth_decoder_model",
        "num_codebooks": N_CODEBOOKS,
        "vocab_size": N_CODES,
        "backbone_hidden_size": WIDTH,
        "hidden_size": DEPTH,
        "intermediate_size": N_DEPTH_FF,
        "num_hidden_layers": N_DEPTH_LAYERS,
        "num_attention_heads": N_DEPTH_HEADS,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": N_CODEBOOKS + 1,
        "rms_norm_eps": EPS,
        "rope_parameters": scaling(1.0, 0.25, 4),
    }


def configuration() -> dict[str, object]:
    """Return ``config.json``."""
    return {
        "architectures": ["CsmForConditionalGeneration"],
        "model_type": "csm",
        "num_codebooks": N_CODEBOOKS,
        "vocab_size": N_CODES,
        "text_vocab_size": N_TEXT,
        "hidden_size": WIDTH,
        "intermediate_size": N_FF,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": 8,
        "max_position_embeddings": N_CTX,
        "rms_norm_eps": EPS,
        "rope_parameters": scaling(2.0, 0.5, 16),
        "codebook_eos_token_id": 0,
        "codebook_pad_token_id": N_CODES - 1,
        "depth_decoder_config": depth_config(),
    }


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their names in the checkpoint."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def random(name: str, *shape: int, spread: float = 0.25, around: float = 0.0) -> None:
        made[name] = (around + rng.normal(0, spread, shape)).astype(np.float32)

    def layer(at: str, width: int, n_heads: int, n_kv_heads: int, n_ff: int) -> None:
        random(at + "input_layernorm.weight", width, around=1.0)
        random(at + "post_attention_layernorm.weight", width, around=1.0)
        random(at + "self_attn.q_proj.weight", 8 * n_heads, width)
        random(at + "self_attn.k_proj.weight", 8 * n_kv_heads, width)
        random(at + "self_attn.v_proj.weight", 8 * n_kv_heads, width)
        random(at + "self_attn.o_proj.weight", width, 8 * n_heads)
        random(at + "mlp.gate_proj.weight", n_ff, width)
        random(at + "mlp.up_proj.weight", n_ff, width)
        random(at + "mlp.down_proj.weight", width, n_ff)

    random("embed_text_tokens.weight", N_TEXT, WIDTH, spread=1.0)
    random("depth_decoder.model.embed_tokens.weight", N_CODEBOOKS * N_CODES, WIDTH, spread=1.0)
    for n in range(N_LAYERS):
        layer(f"backbone_model.layers.{n}.", WIDTH, N_HEADS, N_KV_HEADS, N_FF)
    random("backbone_model.norm.weight", WIDTH, around=1.0)
    random("lm_head.weight", N_CODES, WIDTH)
    random("depth_decoder.model.inputs_embeds_projector.weight", DEPTH, WIDTH)
    for n in range(N_DEPTH_LAYERS):
        layer(f"depth_decoder.model.layers.{n}.", DEPTH, N_DEPTH_HEADS, 1, N_DEPTH_FF)
    random("depth_decoder.model.norm.weight", DEPTH, around=1.0)
    random("depth_decoder.codebooks_head.weight", N_CODEBOOKS - 1, DEPTH, N_CODES)
    return made


def torchtune(made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return these weights as Sesame's own release names and orders them.

    torchtune rotates the pair (2 i, 2 i + 1) of a head, transformers the pair (i, i + width / 2).
    """
    names = {
        "backbone_model.": "backbone.",
        "depth_decoder.model.embed_tokens.weight": "audio_embeddings.weight",
        "depth_decoder.model.inputs_embeds_projector.weight": "projection.weight",
        "depth_decoder.codebooks_head.weight": "audio_head",
        "depth_decoder.model.": "decoder.",
        "embed_text_tokens.weight": "text_embeddings.weight",
        "lm_head.weight": "codebook0_head.weight",
        "self_attn.o_proj": "attn.output_proj",
        "self_attn.": "attn.",
        "mlp.gate_proj": "mlp.w1",
        "mlp.down_proj": "mlp.w2",
        "mlp.up_proj": "mlp.w3",
        "input_layernorm.weight": "sa_norm.scale",
        "post_attention_layernorm.weight": "mlp_norm.scale",
        "norm.weight": "norm.scale",
    }
    renamed: dict[str, np.ndarray] = {}
    for name, values in made.items():
        if ".q_proj." in name or ".k_proj." in name:
            heads = values.reshape(-1, 8, values.shape[1])
            neighbours = np.stack([heads[:, :4], heads[:, 4:]], axis=2)
            values = np.ascontiguousarray(neighbours.reshape(values.shape))
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = values
    return renamed


def text(n: int = 9) -> np.ndarray:
    """Return the tokens of a prompt."""
    return np.random.default_rng(1).integers(0, N_TEXT, n).astype(np.int32)


def speech(n: int = 3) -> np.ndarray:
    """Return frames of codes that a prompt has after its text."""
    return np.random.default_rng(2).integers(0, N_CODES, (n, N_CODEBOOKS)).astype(np.int32)
