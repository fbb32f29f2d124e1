"""Small checkpoints of many families, as transformers writes them, with weights that a name gives.

``tests/data/published`` holds their configurations, the names and shapes of their tensors, and
what transformers and llama.cpp's converter make of them (``tools/published_families.py``). The
module needs NumPy only, for that tool's sake.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "data" / "published"
N_VOCAB, N_TOKENS = 64, 16

__all__ = ["FOLDER", "N_VOCAB", "adapter_tensors", "known", "logits", "tensors", "tokens"]


def known() -> dict[str, dict[str, Any]]:
    """Return what is known of each class: ``config``, ``shapes``, ``peer`` where it ran.

    And ``witness``, where the logits are not transformers'.
    """
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "families.json").read_text())
    return found


def logits(name: str) -> np.ndarray:
    """Return the logits of the text, float32[16, 64], transformers' or the named witness's."""
    with np.load(FOLDER / "logits.npz") as arrays:
        return np.asarray(arrays[name])


def tokens() -> np.ndarray:
    """Return the text."""
    return np.random.default_rng(1).integers(0, N_VOCAB, N_TOKENS).astype(np.int32)


def tensors(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Return random weights; those of norms lie around one."""
    return {name: _values(name, shape) for name, shape in shapes.items()}


def adapter_tensors(family: str, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Return random tensors of an adapter that PEFT saved, of a class.

    An output matrix that is tied to a table of embeddings is the same there.
    """
    values = tensors(shapes)
    table, output = (
        f"base_model.model.{name}.weight" for name in ("model.embed_tokens", "lm_head")
    )
    if table in values and output in values and "lm_head.weight" not in known()[family]["shapes"]:
        values[output] = values[table]
    return values


def _values(name: str, shape: list[int]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    middle = float("norm" in name and name.endswith("weight"))
    spread = 0.3 if len(shape) < 2 else 1.5 * shape[-1] ** -0.5
    return np.asarray(middle + rng.normal(0, spread, shape), np.float32)
