"""Tiny models with a NextN block, made of those of llama.cpp's generator, which have none."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from harness.architectures import header
from harness.peer_headers import parsed
from mtpcore.gguf import write_model_file

__all__ = ["HEADED", "write_headed"]

HEADED = {
    "cohere2moe": ("cohere2moe-moe", {"logit_scale": 0.25}),
    "hy_v3": ("hy_v3-moe", {"expert_weights_norm": True}),
    "step35": (
        "laguna-moe",
        {
            "expert_shared_feed_forward_length": 192,
            "swiglu_clamp_exp": np.array([0, 0.5, 0.3], np.float32),
            "swiglu_clamp_shexp": np.array([0.4, 0, 0.3], np.float32),
            "attention.sliding_window_pattern": np.array([False, True, True]),
        },
    ),
}
"""By architecture: the file whose header they have, and metadata of their own."""


def write_headed(architecture: str, path: Path) -> Path:
    """Write a model of two layers and a block with the tensors of the last one, and a head's."""
    source, own = HEADED[architecture]
    made = parsed(header(source))
    before, n = str(made.metadata["general.architecture"]), 2
    metadata = {
        key.replace(f"{before}.", f"{architecture}."): value
        for key, value in made.metadata.items()
        if not (isinstance(value, np.ndarray | list) and len(value) == n)
    }
    shapes = {e.name: e.shape for e in made.tensors if not e.name.endswith("scale")}
    last = f"blk.{n - 1}."
    shapes |= {
        name.replace(last, f"blk.{n}."): shape
        for name, shape in shapes.items()
        if name.startswith(last)
    }
    width = shapes["output_norm.weight"][0]
    shapes |= {
        f"blk.{n}.nextn.eh_proj.weight": (width, 2 * width),
        **{f"blk.{n}.nextn.{x}.weight": (width,) for x in ("enorm", "hnorm", "shared_head_norm")},
    }
    metadata |= {
        "general.architecture": architecture,
        f"{architecture}.block_count": n + 1,
        f"{architecture}.nextn_predict_layers": 1,
        f"{architecture}.attention.sliding_window_pattern": np.array([False, True]),
        **{f"{architecture}.{key}": value for key, value in own.items()},
    }
    write_model_file(path, architecture, metadata, {k: _weights(k, s) for k, s in shapes.items()})
    return path


def _weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = 0.1 * rng.standard_normal(shape, np.float32)
    return values + 1 if name.endswith("norm.weight") else values
