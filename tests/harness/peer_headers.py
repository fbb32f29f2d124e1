"""Files as llama.cpp writes them: their headers are kept, their weights are made anew.

``tests/data/llama_cpp/headers.npz`` holds the headers of what ``llama-quantize`` and llama.cpp's
saver made of small random models (``tools/llama_cpp_headers.py``). A file is a header, and after
it the values of the original in the types that the header says.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants

from harness.every_trunk import write_trunk
from harness.generated import random_matrix
from harness.generated_heads import write_family
from mtpcore.gguf import Fields, open_model_file, write_model_file
from mtpcore.gguf.header import parse_header
from mtpcore.models.hparams import count_layers
from mtpcore.runtime.fit import block_of

__all__ = [
    "CASES",
    "HEADERS",
    "blocks_of",
    "header_of",
    "parsed",
    "tensors_of",
    "write_filled",
    "write_original",
]

HEADERS = Path(__file__).parents[1] / "data" / "llama_cpp" / "headers.npz"
QUANTISED = (
    *("deepseek2", "gemma4", "glm4moe", "gpt_oss", "llama", "mimo2", "qwen2", "qwen3"),
    *("qwen3-tts", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "t5"),
)
"""Families that llama.cpp knows."""
SAVED = tuple(
    family
    for family in QUANTISED
    # The saver refuses T5, and leaves out what Gemma 4 has by layer. llama.cpp loads no talker of
    # this size, and no mixture with dense layers.
    if family not in ("t5", "gemma4", "qwen3-tts", "qwen3moe", "qwen3next")
)
WIDE = ("llama", "qwen2", "qwen3", "qwen3moe", "qwen35")
"""Families with models whose rows are whole blocks of 256 values."""
WAYS = {"Q8_0": QUANTISED, "Q8_0 split": QUANTISED, "Q4_K_M": WIDE, "saved": SAVED}
CASES = [(way, family) for way, families in WAYS.items() for family in families]
PER_PART = 9
"""Tensors of a part of a split file."""
_ROOM = 1 << 27
"""Bytes that no model here has."""


def write_original(folder: Path, way: str, family: str) -> Path:
    """Write the model that llama.cpp gets; return its file, the first of several."""
    if way == "Q4_K_M":
        return write_family(folder / "wide.gguf", family, "F32")
    path = write_trunk(folder, family)
    if way == "saved":
        return _write_plain_trunk(path, folder / "trunk.gguf")
    return _write_parts(path, folder / "parts.gguf") if way.endswith("split") else path


def _write_plain_trunk(source: Path, path: Path) -> Path:
    """Write a model without what llama.cpp's saver loses: heads, and settings of YaRN."""
    with open_model_file(source) as file:
        fields = Fields.of(file)
        n_blocks = fields.require("{arch}.block_count", int)
        n_layers, _ = count_layers(fields, file.tensors, n_blocks)
        lost = fields.key("{arch}.rope.scaling"), fields.key("{arch}.nextn_predict_layers")
        metadata = {k: v for k, v in file.metadata.items() if not k.startswith(lost)}
        for key, value in metadata.items():
            if isinstance(value, np.ndarray) and len(value) == n_blocks:
                metadata[key] = value[:n_layers]
        metadata[fields.key("{arch}.block_count")] = n_layers
        kept = {name: t for name, t in file.tensors.items() if (block_of(name) or 0) < n_layers}
        _write(path, file.architecture, metadata, kept)
    return path


def _write_parts(source: Path, path: Path) -> Path:
    with open_model_file(source) as file:
        _write(path, file.architecture, file.metadata, file.tensors, max_tensors=PER_PART)
    return min(path.parent.glob(f"{path.stem}-*.gguf"))


def _write(path, architecture, metadata, tensors, **options):
    arrays = {name: t.raw() for name, t in tensors.items()}
    types = {name: t.type for name, t in tensors.items()}
    write_model_file(path, architecture, metadata, arrays, types, **options)


def blocks_of(file, kinds: dict[str, int]) -> dict[str, np.ndarray]:
    """Return a model's tensors in these types; random ones in those that gguf does not write."""
    rng, made = np.random.default_rng(45), {}
    for name, kind in kinds.items():
        tensor, kind_ = file.tensors[name], GGMLQuantizationType(kind)
        try:
            made[name] = quants.quantize(tensor.array(), kind_).view(np.uint8)
        except NotImplementedError:
            made[name] = random_matrix(rng, kind_.name, *tensor.shape)
    return made


def write_filled(header: bytes, blocks: dict[str, np.ndarray], path: Path) -> Path:
    """Write a file of a header and the tensors that it describes."""
    entries = tensors_of(header)
    size = max(entry.begin + entry.n_bytes for entry in entries)
    whole = bytearray(header.ljust(size + -size % 32, b"\0"))
    for entry in entries:
        data = np.ascontiguousarray(blocks[entry.name]).tobytes()
        assert len(data) == entry.n_bytes
        whole[entry.begin : entry.begin + entry.n_bytes] = data
    path.write_bytes(whole)
    return path


def tensors_of(header: bytes):
    """Return the entries of a header that has no data after it."""
    return parsed(header).tensors


def parsed(header: bytes):
    """Return what a header says that has no data after it."""
    with mmap.mmap(-1, len(header) + _ROOM) as data:  # pages that nobody writes take no memory
        data.write(header)
        return parse_header(data, "header")


def header_of(path: Path) -> bytes:
    """Return a file's bytes before the first tensor."""
    data = path.read_bytes()
    return data[: min(entry.begin for entry in parse_header(data, str(path)).tensors)]
