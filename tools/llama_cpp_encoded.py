"""Keep the blocks that ggml makes of rows of values, with weights for their columns and without.

    python tools/llama_cpp_encoded.py LIBRARY tests/data/llama_cpp

``LIBRARY`` is llama.cpp's ``libggml-base.so`` of an x86-64 build. ``encoded.npz`` gets ``values``
float32[rows, columns], ``importance`` float32[columns], and for each type ``plain/NAME`` and
``weighted/NAME`` uint8[rows, row bytes].
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from mtpcore._ext._encode import encodes
from mtpcore.gguf.types import BLOCKS, type_name

N_COLUMNS = 768  # three blocks of 256, of which two are encoded at a time; 24 of 32, sixteen


def rows(rng: np.random.Generator) -> np.ndarray:
    """Return rows as weights are, and as they hardly are."""
    shape = (3, N_COLUMNS)
    sparse = rng.standard_normal(shape)
    sparse[rng.random(shape) < 0.7] = 0
    scales = np.exp(rng.uniform(-30, 20, (3, N_COLUMNS // 32))).repeat(32, 1)
    kinds = (
        0.02 * rng.standard_normal(shape),
        0.05 * rng.standard_t(2, shape),
        sparse,
        1 + np.abs(rng.standard_normal(shape)),
        rng.integers(-4, 5, shape),
        scales * rng.standard_normal(shape),
        1e-16 * rng.standard_normal(shape),
        1e-38 * rng.standard_normal(shape),
        np.full((1, N_COLUMNS), -0.3),
        np.zeros((1, N_COLUMNS)),
    )
    return np.concatenate(kinds).astype(np.float32)


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    quantise = ctypes.CDLL(str(args.library)).ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    )
    rng = np.random.default_rng(8)
    values, importance = rows(rng), rng.gamma(0.3, 1, N_COLUMNS).astype(np.float32)
    kept = dict[str, Any](values=values, importance=importance)
    for kind, (n_values, n_bytes) in BLOCKS.items():
        if not encodes(kind):
            continue
        for how, weights in (("plain", None), ("weighted", importance.ctypes.data)):
            blocks = np.empty((len(values), N_COLUMNS // n_values * n_bytes), np.uint8)
            given = kind, values.ctypes.data, blocks.ctypes.data, 0, *values.shape, weights
            assert quantise(*given) == blocks.nbytes
            kept[f"{how}/{type_name(kind)}"] = blocks
    np.savez_compressed(args.folder / "encoded.npz", **kept)


if __name__ == "__main__":
    main()
