"""Models to quantise, by a rule that needs no file: those whose files llama-quantize made, too.

``tests/data/llama_cpp/quantised.json`` has digests of what it wrote
(``tools/llama_cpp_quantised.py``).
"""

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np

from harness.fixtures import model_file
from mtpcore.gguf import open_model_file, write_model_file

DATA = Path(__file__).parents[1] / "data" / "llama_cpp" / "quantised.json"

CASES = {
    "dense": {},
    "experts": {"n_blocks": 3, "n_experts": 4},
    "eight-experts": {"n_blocks": 2, "n_experts": 8},
    "tied": {"n_blocks": 4, "width": 160, "n_heads": 5, "n_kv_heads": 1, "is_tied": True},
}
"""Rows of 256 values, or of 160, which are no whole blocks of most types; nine blocks, of which the
first is the first eighth."""

MODEL, IMPORTANCE = "model.gguf", "importance.gguf"
"""Their files; the second name is in the files that are made."""

HEADED = "glm-11"
"""A trained model with a head."""


def write_case(name, path):
    """Write a model in F32 (the trained one in F16) and return the path."""
    if name == HEADED:
        path.write_bytes(model_file(HEADED).read_bytes())
    else:
        _write_llama(path, **CASES[name])
    return path


def _write_llama(path, n_blocks=9, width=256, n_heads=4, n_kv_heads=2, n_experts=0, is_tied=False):
    head, n_vocab = width // n_heads, 64
    stack = (n_experts,) if n_experts else ()
    kind = "_exps" if n_experts else ""
    shapes = {"token_embd": (n_vocab, width), "output_norm": (width,)}
    shapes |= {} if is_tied else {"output": (n_vocab, width)}
    for i in range(n_blocks):
        block = {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (head * n_kv_heads, width),
            "attn_v": (head * n_kv_heads, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            f"ffn_gate{kind}": (*stack, width, width),
            f"ffn_up{kind}": (*stack, width, width),
            f"ffn_down{kind}": (*stack, width, width),
        }
        block |= {"ffn_gate_inp": (n_experts, width)} if n_experts else {}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    metadata = {
        "general.name": "rows to quantise",
        "llama.block_count": n_blocks,
        "llama.context_length": 128,
        "llama.embedding_length": width,
        "llama.feed_forward_length": width,
        "llama.attention.head_count": n_heads,
        "llama.attention.head_count_kv": n_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": n_vocab,
        "general.file_type": 0,
        "tokenizer.ggml.model": "no_vocab",
        "general.of_8_bits": np.uint8(3),  # as it is stored, it stays
        "general.below_0": np.int64(-4),
    }
    if n_experts:
        metadata |= {"llama.expert_count": n_experts, "llama.expert_used_count": 2}
    tensors = {f"{name}.weight": _values(name, shape) for name, shape in shapes.items()}
    write_model_file(path, "llama", metadata, tensors)


def _values(name, shape):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return 0.03 * rng.standard_normal(shape, np.float32)


def write_importance(model, path, of_all):
    """Write an importance matrix, of all but one matrix or of all; of a stack one saw no rows."""
    made, left_out = {}, () if of_all else ("token_embd.weight", "blk.1.attn_q.weight")
    with open_model_file(model) as file:
        for name, tensor in file.tensors.items():
            if len(tensor.shape) < 2 or name in left_out:
                continue
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            n_matrices = tensor.shape[0] if len(tensor.shape) > 2 else 1
            counts = np.full((n_matrices, 1), 37, np.float32)
            counts[1:2] = 0
            shape = n_matrices, tensor.shape[-1]
            sums = rng.random(shape, np.float32)
            for _ in range(3):  # a power has other last bits on processors with AVX-512
                sums = sums * sums
            made[f"{name}.in_sum2"] = 50 * sums
            made[f"{name}.counts"] = counts
    said = {"imatrix.datasets": ["a text"], "imatrix.chunk_count": 7, "imatrix.chunk_size": 512}
    write_model_file(path, "", {"general.type": "imatrix"} | said, made)
    return path


def kept():
    """Return the digests: by case, mix and how; and of types, by architecture and mix."""
    return json.loads(DATA.read_text()) if DATA.exists() else {"files": {}, "types": {}}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def digest_of_types(types):
    """Return what stands for the types of tensors, given by name, whatever their order."""
    return digest("".join(f"{name} {kind}\n" for name, kind in sorted(types.items())).encode())
