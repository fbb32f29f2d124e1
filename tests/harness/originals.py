"""Valid model files of all families, taken apart so that they can be changed and written again."""

import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from harness import qwen
from harness.generated_heads import EAGLE3, write_drafter, write_family
from harness.published import tokenizer, write_checkpoint
from mtpcore.conversion import convert
from mtpcore.discovery.loading import find_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.types import BLOCKS

ORIGINALS = (
    ("demo", None), ("demo:deepseek", None), ("demo:mimo", None), ("demo:mimo2", None),
    ("demo:eagle3", "demo:eagle3-draft"), ("demo", None), ("demo:deepseek", None),
    ("qwen3moe Q8_0", None), ("llama Q4_K", None), ("qwen2 F16", None), ("qwen3 Q6_K", None),
    ("llama BF16", "eagle3 Q8_0"), ("demo:eagle3", "demo:eagle3-draft"), ("mimo2 IQ4_XS", None),
    ("deepseek2 F32", None), ("qwen3moe Q5_1", None),
)  # fmt: skip
"""A model, and the file of its drafter where that is another one; those with more in them twice."""


HYBRIDS = {
    "hybrid": "one K head, flat",
    "hybrid with experts": "experts in one piece",
    "grouped hybrid": "grouped",
}
"""Shapes of ``harness.qwen``."""


@dataclass
class Parts:
    """What a file holds: ``tensors`` are uint8[..., row_bytes], ``types`` ids of ggml.

    ``added`` are names of tensors that the original does not have.
    """

    architecture: str
    metadata: dict
    tensors: dict
    types: dict
    added: list = field(default_factory=list)

    def shape(self, name):
        """Return a tensor's shape, counted in values."""
        *outer, n_bytes = self.tensors[name].shape
        per_block, bytes_per_block = BLOCKS[self.types[name]]
        return (*outer, n_bytes // bytes_per_block * per_block)

    def write(self, path):
        write_model_file(path, self.architecture, self.metadata, self.tensors, self.types)
        return path


def take_apart(name):
    """Return the parts of an original; their containers are the caller's."""
    parts = _parts(name)
    return Parts(parts.architecture, dict(parts.metadata), dict(parts.tensors), dict(parts.types))


@cache
def _parts(name):
    family, _, kind = name.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        path = find_model(name)
        if name in HYBRIDS:
            path = _write_hybrid(Path(folder), qwen.SHAPES[HYBRIDS[name]])
        elif kind:
            path = Path(folder) / "model.gguf"
            if family == EAGLE3:
                write_drafter(path, family, kind)
            else:
                write_family(path, family, kind)
        file = open_model_file(path)
        tensors = {name: np.array(tensor.raw()) for name, tensor in file.tensors.items()}
        types = {name: tensor.type for name, tensor in file.tensors.items()}
        return Parts(file.architecture, file.metadata, tensors, types)


def _write_hybrid(folder, shape):
    tensors = qwen.published(shape, qwen.weights(shape))
    write_checkpoint(folder / "hf", qwen.configuration(shape), tensors, tokenizer(qwen.N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"
