"""A tiny model of each architecture of llama.cpp, and the logits that llama.cpp computes of it.

``tests/data/llama_cpp/architectures.npz`` holds the headers of what llama.cpp's own generator
writes, and logits (``tools/llama_cpp_architectures.py``). The weights are made here, of a seed and
the tensors' names, by the same rule for llama.cpp and for mtpcore.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from harness.peer_headers import parsed, tensors_of, write_filled

__all__ = [
    "N_ROWS",
    "NAMES",
    "architecture_of",
    "header",
    "logits",
    "size_of_vocabulary",
    "tokens",
    "write_model",
]

DATA = Path(__file__).parents[1] / "data" / "llama_cpp" / "architectures.npz"
N_TOKENS, N_ROWS = 24, 4
"""Tokens of the prompt; of its last rows, and of as many written after it, logits are kept."""
_TYPES = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@cache
def _data() -> dict[str, np.ndarray]:
    with np.load(DATA) as file:
        return dict(file)


def _names() -> list[str]:
    """Return the files' names; none before they were made."""
    if not DATA.exists():
        return []
    return sorted(key.removeprefix("header/") for key in _data() if key.startswith("header/"))


NAMES = _names()
"""Files, as the generator calls them: ``gemma3-dense``."""


def header(name: str) -> bytes:
    """Return the header of a file."""
    return _data()[f"header/{name}"].tobytes()


def logits(name: str) -> np.ndarray:
    """Return llama.cpp's logits of these rows, float32[2 * N_ROWS, n_vocab]."""
    return _data()[f"logits/{name}"]


def architecture_of(head: bytes) -> str:
    """Return ``general.architecture``."""
    return str(parsed(head).metadata["general.architecture"])


def size_of_vocabulary(head: bytes) -> int:
    """Return how many tokens a model has."""
    return next(entry.shape[0] for entry in tensors_of(head) if entry.name == "token_embd.weight")


def tokens(n_vocab: int) -> list[int]:
    """Return the prompt."""
    return np.random.default_rng(7).integers(0, n_vocab, N_TOKENS).tolist()


def write_model(head: bytes, path: Path, seed: int = 0) -> Path:
    """Write the file of a header, with weights of a seed."""
    blocks = {entry.name: _weights(entry, seed) for entry in tensors_of(head)}
    return write_filled(head, blocks, path)


def _weights(entry, seed: int) -> np.ndarray:
    """Return the weights of a tensor: factors around 1, decays below 0, all others around 0."""
    rng = np.random.default_rng([seed, zlib.crc32(entry.name.encode())])
    values = 0.1 * rng.standard_normal(int(np.prod(entry.shape)), np.float32)
    if "ssm_a" in entry.name:
        values = -np.abs(values)
    elif entry.name.endswith(("norm.weight", ".scale")) or "rope_f" in entry.name:
        values += 1
    return values.astype(_TYPES[GGMLQuantizationType(entry.type)])
