"""Texts become the tokens that llama.cpp makes of them with a vocabulary like PLaMo's."""

import json

import numpy as np
import pytest
from harness.fixtures import DATA

from mtpcore.conversion import tokenizer as conversion
from mtpcore.errors import ModelFileError
from mtpcore.gguf.tokenizer import Tokenizer
from mtpcore.gguf.vocabulary import read_vocabulary

PEER = json.loads((DATA / "llama_cpp" / "plamo.json").read_text("utf-8"))
SETTINGS = {
    "bos_token": "<|plamo:bos|>",
    "eos_token": "<|plamo:eos|>",
    "unk_token": "<|plamo:unk|>",
    "pad_token": "<|plamo:pad|>",
}


def metadata_of(folder, lines=PEER["lines"], n_vocab=None, **settings):
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "tokenizer.jsonl").write_text(text, "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))
    return conversion.tokenizer_metadata(folder, n_vocab, [("eot", "<|plamo:op|>")])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    metadata = metadata_of(tmp_path_factory.mktemp("plamo"))
    return Tokenizer(read_vocabulary(metadata))


def test_tokens_are_those_of_llama_cpp(tokenizer):
    found = [tokenizer.encode(text, add_special=False) for text, _ in PEER["texts"]]
    assert found == [ids for _, ids in PEER["texts"]]


def test_texts_come_back(tokenizer):
    """But for a mark of byte order before a text; signs that spell spaces elsewhere stay."""
    for text, ids in PEER["texts"]:
        assert tokenizer.decode(ids) == text.removeprefix("\ufeff")


def test_no_text_gets_a_control_token(tokenizer):
    text = "the<|plamo:eos|>"
    end = tokenizer.vocabulary.eos
    assert end not in tokenizer.encode(text, add_special=False)
    assert tokenizer.encode(text, add_special=False, parse_special=True)[-1] == end


def test_metadata_is_that_of_the_peer(tmp_path):
    """As llama.cpp's converter writes it: kinds, scores, unused ids, special tokens."""
    n = len(PEER["lines"])
    found = metadata_of(tmp_path / "hf", n_vocab=n + 2)
    key = "tokenizer.ggml."
    assert (found[f"{key}model"], found[f"{key}pre"]) == ("plamo2", "default")
    assert found[f"{key}tokens"][-2:] == ["[PAD1]", "[PAD2]"]
    assert found[f"{key}tokens"][:n] == [text for text, _, _ in PEER["lines"]]
    assert found[f"{key}token_type"].tolist() == [2, 3, 3, 3, 3, *[6] * 256, *[1] * (n - 261), 5, 5]
    assert found[f"{key}scores"].tolist()[-2:] == [-1000.0, -1000.0]
    assert found[f"{key}scores"].dtype == np.float32
    ids = ("bos", "eos", "unknown", "padding", "eot")
    assert [found[f"{key}{name}_token_id"] for name in ids] == [1, 2, 0, 3, 4]
    assert found[f"{key}add_space_prefix"] is False


@pytest.mark.parametrize(
    ("lines", "n_vocab", "said"),
    [
        (["no list"], None, "line 1"),
        ([["a", "b", "NORMAL"]], None, "line 1"),
        ([["a", -1.0]], None, "line 1"),
        ([], None, "not as many tokens"),
        ([["a", -1.0, "NORMAL"]] * 3, 2, "not as many tokens"),
        ([["a", -1.0, "USER_DEFINED"]], None, "line 1 has a token of a kind that nobody knows"),
    ],
)
def test_what_is_no_vocabulary(tmp_path, lines, n_vocab, said):
    with pytest.raises(ModelFileError, match=said):
        metadata_of(tmp_path / "hf", lines, n_vocab)
