"""Keep what ggml makes of random blocks of each quantised type.

    python tools/llama_cpp_values.py LIBRARY tests/data/llama_cpp

``LIBRARY`` is llama.cpp's ``libggml-base.so``. ``values.npz`` gets, for each type, ``blocks/NAME``
uint8[rows, row bytes] and ``values/NAME`` float32[rows, row values]. Bits are random throughout, so
that some scales are infinite or no number; scales of one byte are all that there are.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from mtpcore.gguf.types import BLOCKS, type_name

ONE_BYTE = {"MXFP4": 256, "NVFP4": 64}  # blocks that have all 256 scales


class Traits(ctypes.Structure):
    """The beginning of ``ggml_type_traits``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("n_values", ctypes.c_int64),
        ("n_values_interleaved", ctypes.c_int64),
        ("n_bytes", ctypes.c_size_t),
        ("is_quantised", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    of_type = ctypes.CDLL(str(args.library)).ggml_get_type_traits
    of_type.restype = ctypes.POINTER(Traits)
    rng, kept = np.random.default_rng(6), dict[str, Any]()
    for kind, (n_values, n_bytes) in BLOCKS.items():
        traits = of_type(kind).contents
        if not traits.is_quantised or not traits.to_float:
            continue
        name = type_name(kind)
        n_blocks = ONE_BYTE.get(name, max(8, 1024 // n_values))
        blocks = rng.integers(0, 256, (n_blocks, n_bytes), np.uint8)
        if name in ONE_BYTE:
            blocks[:, : 256 // n_blocks] = np.arange(256).reshape(n_blocks, -1)
        values = np.empty((2, n_blocks // 2 * n_values), np.float32)
        traits.to_float(blocks.ctypes.data, values.ctypes.data, values.size)
        kept |= {f"blocks/{name}": blocks.reshape(2, -1), f"values/{name}": values}
    np.savez_compressed(args.folder / "values.npz", **kept)


if __name__ == "__main__":
    main()
