"""Converted files hold what llama.cpp's converter makes of the same checkpoint, bit for bit."""

import hashlib
import json

import numpy as np
import pytest
from harness.fixtures import DATA, model_file

from mtpcore.gguf import open_model_file

NAMES = ["ds-12", "glm-11", "mimo2-15", "qwen35-16"]
FILES = [
    *((name, outtype) for name in NAMES for outtype in ("f16", "q8_0")),
    ("qwen35moe-17", "f16"),
]


def peer(name, outtype):
    return json.loads((DATA / name / "peer.json").read_text())[outtype]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def shorten(value):
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    is_long = isinstance(plain, list) and len(plain) > 64
    return digest(json.dumps(plain).encode()) if is_long else plain


@pytest.mark.parametrize(("name", "outtype"), FILES)
def test_every_tensor_is_the_same(name, outtype):
    with open_model_file(model_file(name, outtype)) as file:
        found = {
            tensor.name: f"{tensor.type_name} {list(tensor.shape)} {digest(tensor.raw().tobytes())}"
            for tensor in file.tensors.values()
        }
    # llama.cpp's converter writes axes of 1, which llama.cpp itself and mtpcore leave out.
    wanted = peer(name, outtype)["tensors"].items()
    assert found == {key: said.replace("[1, ", "[") for key, said in wanted}


@pytest.mark.parametrize(("name", "outtype"), FILES)
def test_metadata_is_the_same(name, outtype):
    with open_model_file(model_file(name, outtype)) as file:
        found = {key: shorten(value) for key, value in file.metadata.items()}
    assert found == peer(name, outtype)["metadata"]
