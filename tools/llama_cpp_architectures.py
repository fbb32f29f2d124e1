"""Keep what llama.cpp computes of a tiny model of each of its architectures.

    python tools/llama_cpp_architectures.py GENERATE LOGITS tests/data/llama_cpp [NAME ...]

``GENERATE`` is llama.cpp's ``test-llama-archs``, which writes the models, ``LOGITS`` is
``llama_cpp_logits.cpp``, built as its first lines say. Of each model the header is kept, weights
are made anew by ``tests/harness/architectures.py``, and the logits are kept that llama.cpp computes
of that: of the last tokens of a prompt, and of those that it writes greedily after it. Where its
generator leaves out an architecture, the header is that of a converted checkpoint
(``tests/harness/published_families.py``). With names, as ``apertus-dense``, all other files stay.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.architectures import DATA, N_ROWS, size_of_vocabulary, tokens, write_model
from harness.peer_headers import header_of
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, tensors

from mtpcore.conversion import convert

Shapes = dict[str, list[int]]


def apertus() -> tuple[dict[str, Any], Shapes]:
    """Return a checkpoint's configuration, and the shapes of its tensors."""
    family = known()["ApertusForCausalLM"]
    return family["config"], family["shapes"]


def gemma3n() -> tuple[dict[str, Any], Shapes]:
    """Return the same, as llama.cpp takes it.

    Whatever a file says, layers share keys and values from the twentieth on and have matrices for
    their own, too, the softcap is 30, and the first ten layers keep the twentieth part of a normal
    distribution. Deviations are those of a sample: what cuts as much here is a little more.
    """
    family, n, width = known()["Gemma3nForCausalLM"], 25, 1024
    normal = NormalDist()
    share = normal.cdf(normal.inv_cdf(0.95) * math.sqrt(width / (width - 1)))
    config = family["config"] | {
        "num_hidden_layers": n,
        "num_kv_shared_layers": 5,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 5,
        "activation_sparsity_pattern": [share] * 10 + [0.0] * (n - 10),
        "intermediate_size": [width] * n,
        "final_logit_softcapping": 30.0,
    }
    by_layer = n * config["hidden_size_per_layer_input"]  # and that is always 256
    shapes: Shapes = {}
    for name, shape in family["shapes"].items():
        if "mlp" in name:
            shape = [width if size == config["hidden_size"] * 3 // 2 else size for size in shape]
        if "per_layer.weight" in name:
            shape = [shape[0], by_layer]
        if "per_layer_model_projection" in name:
            shape = [by_layer, shape[1]]
        if ".layers.0." in name:
            shapes |= {name.replace(".0.", f".{i}."): shape for i in range(n)}
        elif not re.search(r"\.layers\.", name):
            shapes[name] = shape
    return config, shapes


LEFT_OUT = {"apertus-dense": apertus, "gemma3n-dense": gemma3n}
"""Architectures that llama.cpp's generator leaves out."""


CHANGED = {
    "kimi-k3-moe": {
        "kimi-k3.attn_res.block_size": np.uint32(1),
        "kimi-k3.activation.situ_beta": np.float32(0.5),
        "kimi-k3.activation.situ_linear_beta": np.float32(0.25),
    }
}
"""Files of two layers with small values, which show more with other numbers in the metadata."""


def change(path: Path, numbers: dict[str, Any]) -> None:
    """Change four bytes each of a file's metadata."""
    data = path.read_bytes()
    for key, value in numbers.items():
        at = data.index(key.encode()) + len(key) + 4  # after the number of its type
        data = data[:at] + value.tobytes() + data[at + 4 :]
    path.write_bytes(data)


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generate", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    kept: dict[str, Any] = {}
    if args.names:
        with np.load(DATA) as file:
            kept.update(file)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run([args.generate, "-o", folder], capture_output=True, check=True)
        for name, checkpoint in LEFT_OUT.items():
            config, shapes = checkpoint()
            write_checkpoint(folder / "hf", config, tensors(shapes), tokenizer(N_VOCAB))
            convert(folder / "hf", folder / f"{name}.gguf", outtype="f32")
        for path in sorted(folder.glob("*.gguf")):
            if path.stem in CHANGED:
                change(path, CHANGED[path.stem])
            if not args.names or path.stem in args.names:
                kept |= of_file(path, args.logits)
            path.unlink()
    args.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.folder / "architectures.npz", **kept)


def of_file(path: Path, program: Path) -> dict[str, NDArray[Any]]:
    """Write a file's weights anew; return its header, and llama.cpp's logits."""
    head = header_of(path)
    write_model(head, path)
    text = tokens(size_of_vocabulary(head))
    for _ in range(N_ROWS):
        text.append(int(logits_of(program, path, text)[-1].argmax()))
    return {
        f"header/{path.stem}": np.frombuffer(head, np.uint8),
        f"logits/{path.stem}": logits_of(program, path, text)[-2 * N_ROWS :],
    }


def logits_of(program: Path, path: Path, text: list[int]) -> NDArray[np.float32]:
    """Return llama.cpp's logits of a text, float32[n, n_vocab]."""
    asked = " ".join(map(str, [len(text), *text])).encode()
    done = subprocess.run([program, path], input=asked, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(len(text), -1)


if __name__ == "__main__":
    main()
