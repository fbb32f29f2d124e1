"""Model files that somebody has tampered with: metadata, tensors, weights, bytes."""

import random
import struct
from functools import cache

import numpy as np
from gguf import GGMLQuantizationType

from harness.generated import FULL, TINY, make_metadata, make_tensors, types_of
from mtpcore.gguf import write_model_file
from mtpcore.gguf.vocabulary import byte_alphabet

ORIGINALS = (("glm4moe", "F32", TINY), ("llama", "Q8_0", TINY), ("qwen3", "F16", TINY),
             ("qwen2", "Q4_K", FULL))  # fmt: skip

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 33, 255, 512, 65_535, 1 << 16, 1 << 20, 1 << 24),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1),
    *(-1, -7, -(1 << 31), -(1 << 63)),
    *(0.0, -1.0, 0.5, 1e-38, 1e-30, 1e30, 3e38, float("nan"), float("inf"), float("-inf")),
)
OTHERS = ("", "x", "none", "yarn", "linear", True, False, [1], [1, 2], [0] * 9, [1 << 31] * 3,
          [0.5, float("nan")], [-1, 4], ["a"], list(range(1 << 12)))  # fmt: skip
# What the originals leave out.
OPTIONAL = (
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.dimension_sections",
    "expert_count", "expert_used_count", "expert_gating_func", "expert_weights_norm",
    "expert_weights_scale", "expert_group_count", "expert_group_used_count",
    "nextn_predict_layers", "attention.sliding_window",
)  # fmt: skip
MORE_TENSORS = (
    "blk.2.nextn.embed_tokens.weight", "blk.2.nextn.shared_head_head.weight",
    "blk.2.nextn.shared_head_norm.weight", "blk.2.exp_probs_b.bias", "rope_freqs.weight",
    "blk.0.attn_q_norm.weight", "blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias",
    "blk.1.ffn_gate_up_exps.weight", "blk.0.ffn_gate.bias", "blk.0.ffn_gate_inp.weight",
    "blk.3.nextn.eh_proj.weight", "blk.1.nextn.eh_proj.weight", "blk.999999.nextn.eh_proj.weight",
)  # fmt: skip
WEIGHTS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0)


def write_damaged(path, seed):
    """Write a file that is damaged in one to three ways; the same seed gives the same bytes."""
    chance = random.Random(seed)
    family, kind, sizes = ORIGINALS[seed % len(ORIGINALS)]
    metadata = make_metadata(family, sizes) | _tokenizer(sizes.n_vocab)
    tensors = dict(_tensors(family, kind, sizes))
    types = types_of(tensors, kind)
    late = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        act = chance.choice((_change_key, _change_key, _change_tensor, _change_weights, None))
        if act is None:
            late.append(chance.choice((_flip, _cut, _patch, _patch)))
        else:
            act(chance, family, metadata, tensors, types)
    for name, kind_ in types.items():
        if name in tensors and isinstance(kind_, int):
            tensors[name] = _whole_blocks(tensors[name], kind_)
    write_model_file(path, family, metadata, tensors, types)
    for act in late:
        act(chance, path, list(tensors))


def _tokenizer(n_vocab):
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*list(byte_alphabet())[: n_vocab - 1], "<s>"],
        "tokenizer.ggml.token_type": np.array([1] * (n_vocab - 1) + [3], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": n_vocab - 1,
    }


def _change_key(chance, family, metadata, tensors, types):
    name = chance.choice([*metadata, *(f"{family}.{key}" for key in OPTIONAL)])
    if chance.random() < 0.1:
        metadata.pop(name, None)
        return
    old = metadata.get(name)
    if isinstance(old, int) and not isinstance(old, bool) and chance.random() < 0.3:
        metadata[name] = max(old + chance.choice((-2, -1, 1, 2, old)), 0)
        return
    metadata[name] = chance.choice(NUMBERS if chance.random() < 0.7 else OTHERS)


def _change_tensor(chance, family, metadata, tensors, types):
    name, other = chance.choice(list(tensors)), chance.choice(list(tensors))
    values = tensors[name]
    act = chance.randrange(8)
    if act == 0:
        del tensors[name]
    elif act == 1:
        tensors[name + "x"] = tensors.pop(name)
        types[name + "x"] = types.get(name, "F32")
    elif act == 2:
        tensors[name], types[name] = tensors[other], types.get(other, "F32")
    elif act == 3:
        rows = values.reshape(-1, values.shape[-1])
        tensors[name] = chance.choice((rows[:1], rows[: len(rows) // 2 + 1], rows[0], rows[None]))
    elif act >= 6:
        added = chance.choice(MORE_TENSORS)
        n_rows = chance.choice((1, 3, len(values), 64))
        shape = chance.choice(((n_rows, *values.shape[1:]), values.shape))
        tensors[added], types[added] = np.resize(values, shape), types.get(name, "F32")
    elif act == 4 and values.ndim > 1:
        tensors[name] = values.swapaxes(0, 1).reshape(values.shape[1], *values.shape[:1], -1)
    else:
        types[name] = int(chance.choice(list(GGMLQuantizationType)))


def _whole_blocks(values, kind):
    """Return bytes that are rows of the type: the values', repeated."""
    from mtpcore.gguf.types import BLOCKS

    n_values, n_bytes = BLOCKS[kind]
    raw = np.ascontiguousarray(values).view(np.uint8)
    n_blocks = max(1, raw.shape[-1] // (4 * n_values))
    return np.resize(raw, (*raw.shape[:-1], n_blocks * n_bytes))


def _change_weights(chance, family, metadata, tensors, types):
    name = chance.choice(list(tensors))
    values = tensors[name] = tensors[name].copy()
    flat = values.reshape(-1)
    noise = np.random.default_rng(chance.randrange(1 << 30))
    some = noise.random(flat.size) < chance.choice((0.001, 0.1, 1))
    if values.dtype == np.uint8:
        flat[some] = noise.integers(0, 256, int(some.sum()))
    else:
        flat[some] = chance.choice(WEIGHTS)


def _flip(chance, path, names):
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(data), 6000))
        data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def write_sound(path):
    """Write the first of the files that others are made of."""
    family, kind, sizes = ORIGINALS[0]
    tensors, metadata = _tensors(family, kind, sizes), make_metadata(family, sizes)
    write_model_file(path, family, metadata | _tokenizer(sizes.n_vocab), tensors)


_tensors = cache(make_tensors)  # nothing writes into the arrays


def _cut(chance, path, names):
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def _patch(chance, path, names):
    """Change axes, type or place of a tensor in the header alone."""
    data = bytearray(path.read_bytes())
    name = chance.choice(names).encode()
    at = data.find(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    if at < 12 + len(name) or at + 4 > len(data):
        return
    (n_axes,) = struct.unpack_from("<I", data, at)
    field = chance.randrange(n_axes + 3) if n_axes <= 4 else 0
    if field == 0:
        struct.pack_into("<I", data, at, chance.choice((0, 1, 2, 3, 4, 5, 1 << 31)))
    elif field <= n_axes:
        size = chance.choice((0, 1, 2, 16, 31, 33, 64, 256, 1 << 20, 1 << 32, 1 << 62, 1 << 63))
        struct.pack_into("<Q", data, at + 4 + 8 * (field - 1), size)
    elif field == n_axes + 1:
        struct.pack_into("<I", data, at + 4 + 8 * n_axes, chance.randrange(42))
    else:
        place = chance.choice((0, 1, 32, 64, 4096, 1 << 40, (1 << 64) - 32))
        struct.pack_into("<Q", data, at + 8 + 8 * n_axes, place)
    path.write_bytes(data)
