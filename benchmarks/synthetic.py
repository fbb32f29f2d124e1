"""Write model files of realistic shapes with random weights: for speed only, the text is noise.

``python benchmarks/synthetic.py llama-1b OUT.gguf`` writes one; the same name and seed give the
same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mtpcore.gguf import write_model_file

SHAPES: dict[str, dict[str, Any]] = {
    # layers, width, heads, key heads, head width, feed-forward width, vocabulary
    "llama-1b": {"n": 22, "e": 2048, "h": 32, "g": 4, "d": 64, "f": 5632, "v": 32000},
    "llama-100m": {"n": 6, "e": 768, "h": 12, "g": 4, "d": 64, "f": 2048, "v": 32000},
}


def q8_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random Q8_0 rows uint8[rows, bytes], weights about 1 / sqrt(columns)."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 34), dtype=np.uint8)
    scale = np.float16(1.0 / (73.0 * np.sqrt(columns)))
    blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def write(name: str, path: Path, seed: int = 0) -> Path:
    """Write the model ``name`` unless ``path`` is there already; return ``path``."""
    if path.exists():
        return path
    rng, s = np.random.default_rng(seed), SHAPES[name]
    tokens = [f"<{i}>" for i in range(s["v"])]
    metadata: dict[str, Any] = {
        "general.name": f"synthetic {name}",
        "llama.block_count": s["n"],
        "llama.context_length": 4096,
        "llama.embedding_length": s["e"],
        "llama.feed_forward_length": s["f"],
        "llama.attention.head_count": s["h"],
        "llama.attention.head_count_kv": s["g"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": s["d"],
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": s["v"],
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(s["v"], np.float32),
        "tokenizer.ggml.token_type": np.ones(s["v"], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    shapes = {"token_embd": (s["v"], s["e"]), "output": (s["v"], s["e"])}
    norms = {"output_norm": s["e"]}
    for i in range(s["n"]):
        wide, narrow = s["h"] * s["d"], s["g"] * s["d"]
        shapes |= {
            f"blk.{i}.attn_q": (wide, s["e"]),
            f"blk.{i}.attn_k": (narrow, s["e"]),
            f"blk.{i}.attn_v": (narrow, s["e"]),
            f"blk.{i}.attn_output": (s["e"], wide),
            f"blk.{i}.ffn_gate": (s["f"], s["e"]),
            f"blk.{i}.ffn_up": (s["f"], s["e"]),
            f"blk.{i}.ffn_down": (s["e"], s["f"]),
        }
        norms |= {f"blk.{i}.attn_norm": s["e"], f"blk.{i}.ffn_norm": s["e"]}
    tensors: dict[str, np.ndarray] = {
        f"{key}.weight": np.ones(width, np.float32) for key, width in norms.items()
    }
    tensors |= {f"{key}.weight": q8_0(rng, *shape) for key, shape in shapes.items()}
    types = {f"{key}.weight": "Q8_0" for key in shapes}
    write_model_file(path, "llama", metadata, tensors, types)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(arguments.name, arguments.path)
