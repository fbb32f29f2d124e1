"""Checkpoints as models are published, made of arrays."""

import json
import types
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from mtpcore.conversion.float8 import e4m3_values
from mtpcore.discovery.registry import Registry
from mtpcore.models import QWEN2
from mtpcore.plugin import hookimpl

QWEN_2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer(n_vocab: int = 8) -> dict[str, object]:
    """Return a byte-level ``tokenizer.json`` of some letters and an end-of-text token."""
    letters = {chr(ord("a") + i): i for i in range(n_vocab - 2)} | {"ab": n_vocab - 2}
    return {
        "added_tokens": [{"id": len(letters), "content": "<|end|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN_2_PATTERN}, "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "model": {"type": "BPE", "vocab": letters, "merges": [["a", "b"]]},
    }


class Raw(NamedTuple):
    """Values of a type that NumPy lacks: ``BF16`` as uint16, ``F8_E4M3`` as uint8."""

    kind: str
    bits: np.ndarray


def bf16(values: np.ndarray) -> Raw:
    """Return float32 values cut to bfloat16."""
    return Raw("BF16", (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16))


def save_tensors(path: Path, tensors: dict[str, np.ndarray | Raw]) -> None:
    """Write a ``.safetensors`` file: the length of a JSON header, the header, the bytes."""
    kinds = {
        "f4": "F32",
        "f2": "F16",
        "f8": "F64",
        "i8": "I64",
        "i4": "I32",
        "b1": "BOOL",
        "u1": "U8",
    }
    header, data = {}, b""
    for name, one in tensors.items():
        raw = one if isinstance(one, Raw) else Raw(kinds[one.dtype.str[1:]], one)
        begin, data = len(data), data + raw.bits.tobytes()
        offsets = [begin, len(data)]
        header[name] = {"dtype": raw.kind, "shape": raw.bits.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_checkpoint(
    folder: Path,
    config: dict[str, object],
    tensors: dict[str, np.ndarray | Raw],
    tokenizer_json: dict[str, object] | None = None,
    n_files: int = 1,
) -> Path:
    """Write a checkpoint, in several files with an index where ``n_files`` is larger than 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json or tokenizer()))
    names = list(tensors)
    if n_files == 1:
        save_tensors(folder / "model.safetensors", tensors)
        return folder
    placed = {}
    for i in range(n_files):
        file = f"model-{i + 1:05}-of-{n_files:05}.safetensors"
        mine = names[i::n_files]
        save_tensors(folder / file, {name: tensors[name] for name in mine})
        placed |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def small_config(**changed: object) -> dict[str, object]:
    """Return the configuration of a Qwen2 of two layers."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32,
    } | changed


def small_tensors(config: dict[str, object], seed: int = 0) -> dict[str, np.ndarray]:
    """Return random tensors that fit ``small_config``."""
    random = np.random.default_rng(seed)
    width, n_ff = config["hidden_size"], config["intermediate_size"]
    kv_width = width // config["num_attention_heads"] * config["num_key_value_heads"]
    n_vocab = config["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (n_vocab, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (n_vocab, width),
    }
    for n in range(config["num_hidden_layers"]):
        block = {
            "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (width, width),
            "self_attn.q_proj.bias": (width,),
            "self_attn.k_proj.weight": (kv_width, width),
            "self_attn.k_proj.bias": (kv_width,),
            "self_attn.v_proj.weight": (kv_width, width),
            "self_attn.v_proj.bias": (kv_width,),
            "self_attn.o_proj.weight": (width, width),
            "mlp.gate_proj.weight": (n_ff, width),
            "mlp.up_proj.weight": (n_ff, width),
            "mlp.down_proj.weight": (width, n_ff),
        }
        shapes |= {f"model.layers.{n}.{name}": shape for name, shape in block.items()}
    return {name: random.normal(0, 0.3, shape).astype("f4") for name, shape in shapes.items()}


def changed_qwen2(**changed):
    """Return Qwen2 with another table."""
    made = types.ModuleType("changed")
    table = msgspec.structs.replace(QWEN2.checkpoint, **changed)
    made.mtpcore_models = hookimpl(lambda: [msgspec.structs.replace(QWEN2, checkpoint=table)])
    return Registry.of(made)


def nearest_codes(values):
    """Return the codes whose values lie nearest."""
    known = e4m3_values(np.arange(127, dtype=np.uint8))
    at = np.abs(np.abs(values)[..., None] - known).argmin(-1).astype(np.uint8)
    return at | np.where(np.signbit(values), np.uint8(128), np.uint8(0))


def scaled(values, block, n_ranks=1):
    """Return codes and scales of a matrix in blocks of eight bits, rank by rank."""
    codes, scales = [], []
    for rank in np.split(values, n_ranks):
        starts = [range(0, n, block) for n in rank.shape]
        largest = [
            [np.abs(rank[i : i + block, j : j + block]).max() for j in starts[1]] for i in starts[0]
        ]
        scale = (np.array(largest) / 448).astype(np.float32)
        full = np.repeat(np.repeat(scale, block, 0), block, 1)[: len(rank), : rank.shape[1]]
        codes.append(nearest_codes(rank / full))
        scales.append(scale)
    return np.concatenate(codes), np.concatenate(scales)
