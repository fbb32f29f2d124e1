"""Small models with tensors that files of their family may lack, and llama.cpp reads if not.

``tools/optional_references.py`` lets llama.cpp run them.
"""

from pathlib import Path

import numpy as np

from harness.every_trunk import write_trunk
from mtpcore.gguf import open_model_file, write_model_file

OPTIONAL: dict[str, tuple[str, ...]] = {
    "qwen2": ("output.bias",),
    "llama": ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"),
    "qwen3": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "glm4moe": ("attn_q_norm.weight", "attn_k_norm.weight"),
    "qwen35": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen35moe": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
}
"""By family; the name of a layer's tensor lacks its block."""

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], np.int32)


def write_optional(folder: Path, family: str, *, with_them: bool = True) -> Path:
    """Write a model with its optional tensors, or without any; return the file."""
    rng = np.random.default_rng(0)
    with open_model_file(write_trunk(folder, family)) as file:
        metadata = dict(file.metadata)
        tensors = {name: tensor.array() for name, tensor in file.tensors.items()}
        counts = (
            file.metadata[f"{file.architecture}.attention.head_count{x}"] for x in ("", "_kv")
        )
        heads = dict(zip(("attn_q", "attn_k"), counts, strict=True))
        for name in file.tensors:
            where, _, matrix = name.removesuffix(".weight").rpartition(".")
            for kind in OPTIONAL[family]:
                n = len(tensors[name])
                if kind == f"{matrix}_norm.weight":
                    n //= heads[matrix]
                elif kind != f"{matrix}.bias":
                    continue
                added = f"{where}.{kind}".removeprefix(".")
                tensors.pop(added, None)
                if with_them:
                    tensors[added] = rng.normal(kind.endswith("weight"), 0.5, n).astype(np.float32)
        path = folder / "optional.gguf"
        write_model_file(path, file.architecture, metadata, tensors)
    return path
