"""Checkpoints as models are published, made of arrays."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

QWEN_2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer(n_vocab: int = 8) -> dict[str, object]:
    """Return a byte-level ``tokenizer.json`` of some letters and an end-of-text token."""
    letters = {chr(ord("a") + i): i for i in range(min(n_vocab - 1, 26))}
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
        "model": {"type": "BPE", "vocab": letters, "merges": []},
    }


def write_checkpoint(
    folder: Path,
    config: dict[str, object],
    tensors: dict[str, np.ndarray],
    tokenizer_json: dict[str, object] | None = None,
    n_files: int = 1,
) -> Path:
    """Write a checkpoint, in several files with an index where ``n_files`` is larger than 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json or tokenizer()))
    names = list(tensors)
    if n_files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    placed = {}
    for i in range(n_files):
        file = f"model-{i + 1:05}-of-{n_files:05}.safetensors"
        mine = names[i::n_files]
        save_file({name: tensors[name] for name in mine}, folder / file)
        placed |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
