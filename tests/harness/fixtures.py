"""The reference models of ``tests/data``, unpacked once a run.

Each lies there as ``model.xz`` (its tensors, see ``tools/pack_fixture.py``) beside the small files
of its checkpoint and of its references. The environment variable MTPCORE_FIXTURES may name a folder
that holds them whole; its checkpoints are then used instead, among them one that is not packed: the
target of ``eagle3-13``, of which ``tests/data`` has configuration and tokenizer only.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from mtpcore.conversion import convert

DATA = Path(__file__).parents[1] / "data"
CHECKPOINT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "held.json")
CHECKPOINT_FILES += ("tokenizer_config.json",)


def unpack(packed: bytes) -> bytes:
    """Return the ``.safetensors`` file that ``tools/pack_fixture.py`` packed."""
    plain = lzma.decompress(packed)
    begin = 8 + int.from_bytes(plain[:8], "little")
    planes = np.frombuffer(plain, np.uint8, offset=begin)
    n_pairs = len(planes) // 2
    values = planes.copy()
    values[0 : 2 * n_pairs : 2] = planes[:n_pairs]
    values[1 : 2 * n_pairs : 2] = planes[n_pairs : 2 * n_pairs]
    return plain[:begin] + values.tobytes()


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    """Make the folder that lasts as long as this process."""
    return tempfile.TemporaryDirectory(prefix="mtpcore-fixtures-")


@cache
def checkpoint(name: str) -> Path:
    """Return the folder of a checkpoint, as models are published.

    Parameters
    ----------
    name : str
        Of a folder in ``tests/data``; of ``eagle3-13`` the head, whose target is not packed.
    """
    inner = "eagle3" if name.startswith("eagle3") else "hf"
    if whole := os.environ.get("MTPCORE_FIXTURES"):
        return Path(whole) / name / inner
    folder = Path(_unpacked().name) / name / inner
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(unpack((DATA / name / "model.xz").read_bytes()))
    for file in CHECKPOINT_FILES:
        if (DATA / name / file).exists():
            shutil.copyfile(DATA / name / file, folder / file)
    return folder


def target_checkpoint(name: str) -> tuple[Path, bool]:
    """Return the folder of a standalone drafter's target, and whether its tensors are there."""
    whole = os.environ.get("MTPCORE_FIXTURES")
    return (Path(whole) / name / "target", True) if whole else (DATA / name / "target", False)


@cache
def model_file(name: str, outtype: str = "f16") -> Path:
    """Return a model file converted from a checkpoint, its head in the same type as its trunk."""
    path = Path(_unpacked().name) / f"{name}-{outtype}.gguf"
    convert(checkpoint(name), path, outtype=outtype, mtp_type=outtype)
    return path


def _folder(name: str) -> Path:
    """Return where a model's references are: in ``tests/data``, else among the whole fixtures."""
    whole = os.environ.get("MTPCORE_FIXTURES")
    is_packed = (DATA / name / "refs.npz").exists()
    return DATA / name if is_packed or not whole else Path(whole) / name


def references(name: str) -> dict[str, np.ndarray]:
    """Return what independent engines made of a model; keys and shapes in ``tests/data/README``."""
    with np.load(_folder(name) / "refs.npz") as file:
        return dict(file)


def counts(name: str) -> dict[str, dict[str, object]]:
    """Return drafts made and accepted in the greedy loop, by ``k=<length>``."""
    found: dict[str, dict[str, object]] = json.loads((_folder(name) / "counts.json").read_text())
    return found


if __name__ == "__main__":  # python tests/harness/fixtures.py NAME OUT.gguf
    shutil.copyfile(model_file(sys.argv[1]), sys.argv[2])
