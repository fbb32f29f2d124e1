"""Pack a reference model into ``tests/data``, as small as it goes without losing a bit.

    python tools/pack_fixture.py FIXTURE tests/data/NAME [--inner eagle3] [--peer FILE ...]

``FIXTURE`` is a folder with a checkpoint (in ``hf/``), ``refs.npz`` and ``counts.json``. Of the
tensors' bytes first all low ones are stored, then all high ones (those of float16 numbers resemble
each other), compressed by xz: about 0.84 of the file. ``refs.npz`` keeps texts, drafts and margins
of all prompts, and rows of numbers of the first prompt only. Of a drafter's target, in ``target/``,
``embeddings.npz`` keeps the rows that the first drafts read. ``peer.json`` gets what the files hold
that llama.cpp's converter made of the checkpoint, read by the ``gguf`` package: metadata (long
lists as digests) and each tensor's type, shape and digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import shutil
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

ROWS = ("logits", "hidden", "residual", "taps")
SMALL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def pack(file: bytes) -> bytes:
    """Return a ``.safetensors`` file packed; ``tests/harness/fixtures.py`` unpacks it."""
    begin = 8 + int.from_bytes(file[:8], "little")
    values = np.frombuffer(file, np.uint8, offset=begin)
    even = len(values) // 2 * 2
    planes = values[0:even:2].tobytes() + values[1:even:2].tobytes() + values[even:].tobytes()
    return lzma.compress(file[:begin] + planes, preset=9 | lzma.PRESET_EXTREME)


def reduce_references(source: Path, target: Path) -> None:
    """Write references with the rows of the first prompt only."""
    with np.load(source) as file:
        kept = {name: value[:1] if name in ROWS else value for name, value in file.items()}
    np.savez_compressed(target, **kept)


def keep_embeddings(fixture: Path, target: Path) -> None:
    """Write the rows of the target's embedding table that its head's first drafts read."""
    with np.load(fixture / "refs.npz") as file:
        ids = np.unique([*file["prompts"][0], file["greedy"][0, 0], *file["drafts"][0, 0]])
    table = load_file(fixture / "target" / "model.safetensors")["model.embed_tokens.weight"]
    np.savez_compressed(target / "embeddings.npz", ids=ids, rows=table[ids])


def describe(path: Path) -> dict[str, Mapping[str, object]]:
    """Return what a model file holds, short enough to be kept."""
    reader = gguf.GGUFReader(path)
    metadata = {
        key: shorten(field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        t.name: f"{t.tensor_type.name} {t.shape.tolist()[::-1]} {digest(t.data.tobytes())}"
        for t in reader.tensors
    }
    return {"metadata": metadata, "tensors": tensors}


def shorten(value: object) -> object:
    """Return a long list's digest, or what else it is."""
    is_long = isinstance(value, list) and len(value) > 64
    return digest(json.dumps(value).encode()) if is_long else value


def digest(data: bytes) -> str:
    """Return a digest of bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def main() -> None:
    """Pack one fixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fixture", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--inner", default="hf", help="folder of the checkpoint in the fixture")
    parser.add_argument("--peer", type=Path, nargs="*", default=[], help="files of llama.cpp's")
    given = parser.parse_args()
    folder = given.fixture / given.inner
    given.target.mkdir(parents=True, exist_ok=True)
    packed = pack((folder / "model.safetensors").read_bytes())
    (given.target / "model.xz").write_bytes(packed)
    for name in SMALL_FILES:
        if (folder / name).exists():
            shutil.copyfile(folder / name, given.target / name)
    reduce_references(given.fixture / "refs.npz", given.target / "refs.npz")
    shutil.copyfile(given.fixture / "counts.json", given.target / "counts.json")
    if (given.fixture / "target").exists():
        keep_embeddings(given.fixture, given.target / "target")
    if given.peer:
        peers = {path.stem.rpartition("-")[2]: describe(path) for path in given.peer}
        (given.target / "peer.json").write_text(json.dumps(peers, indent=1) + "\n")


if __name__ == "__main__":
    main()
