"""Model files as large as real ones with nothing in them: their tensors are a hole in the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Type
from shapes import SHAPES, Shape

from mtpcore.gguf.writer import add_value

__all__ = ["MODELS", "write_hollow"]

MODELS: dict[str, Shape] = {
    "1 B": SHAPES["mimo-1b"],
    "8 B": msgspec.structs.replace(
        SHAPES["mimo-1b"],
        n_layers=32,
        width=4096,
        n_kv_heads=8,
        head_width=128,
        ff_width=14336,
        n_vocab=128256,
    ),
}
"""Of the shapes of TinyLlama and Llama 3 8B, with a drafting block."""


def write_hollow(path: Path, shape: Shape, kind: str) -> None:
    """Write a model file with a header and no values; ``kind`` is a weight type, or Q4_K_M."""
    writer, kind_of = GGUFWriter(path, shape.architecture), _types(shape, kind)
    for key, value in shape.metadata().items():
        add_value(writer, key, value)
    total = 0
    for name, size in shape.tensors():
        chosen = Type.F32 if len(size) == 1 else kind_of(name)
        n_columns, n_bytes = GGML_QUANT_SIZES[chosen]
        size_in_bytes = int(np.prod(size)) // n_columns * n_bytes
        writer.add_tensor_info(name, size, np.dtype(np.float32), size_in_bytes, chosen)
        total += -(-size_in_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + total)


def _types(shape: Shape, kind: str) -> Callable[[str], Type]:
    """Return what says a matrix's type; the mixture Q4_K_M as llama.cpp chooses it."""
    if kind != "Q4_K_M":
        return lambda name: Type[kind]
    eighth = shape.n_layers // 8

    def mixed(name: str) -> Type:
        if name == "output.weight":
            return Type.Q6_K
        if "attn_v" in name or "ffn_down" in name:
            n = int(name.split(".")[1])
            if n < eighth or n >= 7 * eighth or (n - eighth) % 3 == 2:
                return Type.Q6_K
        return Type.Q4_K

    return mixed
