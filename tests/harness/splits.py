"""Models to split, by a rule that needs no file: those that llama.cpp's programs split, too.

``tests/data/llama_cpp/splits.json`` has digests of what they wrote (``tools/llama_cpp_splits.py``).
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from harness.quantised import HEADED, write_case
from mtpcore.gguf import open_model_file, write_model_file

DATA = Path(__file__).parents[1] / "data" / "llama_cpp" / "splits.json"

WAYS = {
    "all": ((), {}),
    "tensors": (("--split-max-tensors", "7"), {"max_tensors": 7}),
    "size": (("--split-max-size", "1M"), {"max_bytes": 10**6}),
    "empty": (
        ("--split-max-tensors", "20", "--no-tensor-first-split"),
        {"max_tensors": 20, "empty_first": True},
    ),
    "empty-size": (
        ("--split-max-size", "2M", "--no-tensor-first-split"),
        {"max_bytes": 2 * 10**6, "empty_first": True},
    ),
}
"""The options of gguf-split, and the arguments here."""

CASES = ("dense", "reversed", "experts", HEADED)
MIXES = ("q4_k_m", "q3_k_m", "iq4_xs")


def write(case, path):
    """Write a model and return the path; ``reversed`` has the last tensor first."""
    if case != "reversed":
        return write_case(case, path)
    write_case("dense", path)
    with open_model_file(path) as file:
        tensors = {name: np.array(one.raw()) for name, one in reversed(file.tensors.items())}
        types = {name: one.type for name, one in file.tensors.items()}
        metadata = {k: v for k, v in file.metadata.items() if k != "general.architecture"}
        write_model_file(path, "llama", metadata, tensors, types)
    return path


def digest(folder):
    """Return what stands for the names and bytes of a folder's files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def kept():
    """Return the digests, by what was done, case, and how."""
    return json.loads(DATA.read_text())
