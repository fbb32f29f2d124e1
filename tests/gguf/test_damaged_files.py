"""Damaged files, whole: each ends in success or a refusal by name."""

import random

import gguf
import numpy as np
import pytest

from mtpcore.errors import MtpcoreError
from mtpcore.gguf import open_model_file, read_chat_template, read_tokenizer, write_model_file
from mtpcore.gguf.vocabulary import byte_alphabet

NATIVE = {gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small model file of every kind of content; returns its bytes."""
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    letters = list(byte_alphabet())
    metadata = {
        "toy.block_count": 1,
        "toy.eps": 1e-5,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*letters, "ab", "<s>"],
        "tokenizer.ggml.token_type": np.array([1] * 257 + [3], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.add_bos_token": True,
    }
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    tensors = {"norm": values[0], "q8": values, "q5": values, "f16": values}
    write_model_file(path, "toy", metadata, tensors, {"q8": "Q8_0", "q5": "Q5_0", "f16": "F16"})
    return path.read_bytes()


def use(path):
    """Do with a file what loading a model does with it."""
    with open_model_file(path) as model:
        tokenizer = read_tokenizer(model.metadata, str(path))
        if tokenizer:
            tokenizer.decode(tokenizer.encode("ab <s>", parse_special=True))
        template = read_chat_template(model.metadata, tokenizer)
        if template:
            template.render([{"role": "user", "content": "a"}])
        for tensor in model.tensors.values():
            kind, blocks = tensor.native(NATIVE)
            assert kind in NATIVE
            assert blocks.shape[:-1] == tensor.shape[:-1]


def damage(chance, file):
    """Change a few places of the header, or cut the file."""
    file, head = bytearray(file), len(file) - 1500
    for _ in range(chance.randint(1, 3)):
        at, what = chance.randrange(4, head), chance.random()
        if what < 0.1:
            del file[chance.randrange(len(file)) :]
            return bytes(file)
        if what < 0.3:
            del file[at : at + chance.randint(1, 16)]
        elif what < 0.5:
            file[at : at + 8] = chance.choice([0, 1, 1 << 31, 1 << 63]).to_bytes(8, "little")
        else:
            file[at] ^= 1 << chance.randrange(8)
    return bytes(file)


def test_an_undamaged_file_is_used(whole, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    use(path)


def test_damaged_files_end_in_success_or_refusal(whole, tmp_path):
    chance, path = random.Random(17), tmp_path / "m.gguf"
    n_used, refusals = 0, []
    for _ in range(400):
        path.write_bytes(damage(chance, whole))
        try:
            use(path)
            n_used += 1
        except MtpcoreError as error:
            refusals.append(error)
    assert n_used > 20
    assert len(refusals) > 100
    assert all(error.where for error in refusals)
