"""Texts are cut into words as llama.cpp cuts them, for every pre-tokenizer that it knows."""

import json
import logging
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from mtpcore.gguf import read_tokenizer
from mtpcore.gguf.pretokenizers import find_pretokenizer
from mtpcore.gguf.vocabulary import byte_alphabet

DATA = np.load(Path(__file__).parents[1] / "data" / "llama_cpp" / "words.npz")
TEXTS = DATA["texts"].tobytes().decode().split("\0")[:-1]
NAMES = json.loads(DATA["names"].tobytes())
PIECES = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}  # of these there are no words
REFUSED = {"whitespace"}

# What published expressions and llama.cpp's way with them have in common ends here: its library
# knows no classes of letters beyond ASCII, and its functions are not what they stand for. Texts are
# looked at with a letter for each character: A and a are cased letters of ASCII, B and b others,
# o letters without case, m marks, 1 and 2 digits of ASCII and others, _ spaces beyond ASCII, p of
# private use.
CAMEL = "m|[abo][AB]"
APART = {
    "kimi-k2": CAMEL,
    "youtu": CAMEL,
    "gpt-4o": "[Bbm]",
    "kanana2": "[Bbm]",
    "llama4": "[Bbm]",
    "minimax-m2": "[Bbm]",
    "talkie": "[Bbm]",
    "tekken": "[Bbm]",
    "granite-embed-multi-97m": "[Bb]",
    "tiny_aya": f"{CAMEL}|[ _][12]|[12][oABab12]",
    "cohere2moe": f"{CAMEL}|[ _][12]|[12][oABab12]",
    "afmoe": "[ _.][12]|p",  # what stands before digits is cut as if there were none
    "superbpe": "2",
    "deepseek-llm": "_|[12]{2}",  # the published one cuts digits one by one
    "deepseek-coder": "_",  # lies among the letters of East Asia
}
_LETTERS = {"Lu": "AB", "Lt": "AB", "Ll": "ab", "Lm": "o", "Lo": "o"}


def letter(character):
    kind, beyond = unicodedata.category(character), character > "\x7f"
    if kind in _LETTERS:
        return _LETTERS[kind][-1 if beyond else 0]
    if character.isspace():
        return "_" if beyond else " "
    return {"M": "m", "N": "12"[beyond], "C": "p" if kind == "Co" else "."}.get(kind[0], ".")


LETTERS = ["".join(map(letter, text)) for text in TEXTS]


def words_of_llama_cpp(row):
    begins, at = np.unpackbits(DATA["begins"][row]), 0
    for text in TEXTS:
        ends = [*np.flatnonzero(begins[at : at + len(text)])[1:].tolist(), len(text)]
        yield [text[i:j] for i, j in zip([0, *ends], ends, strict=False)]
        at += len(text)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - PIECES - REFUSED))
def test_texts_are_cut_as_llama_cpp_cuts_them(name):
    row, whole_words, add_bos = NAMES[name]
    known = find_pretokenizer(name)
    assert (known.whole_words, known.add_bos) == (whole_words, add_bos)
    cut, apart, n_alike = known.build().pre_tokenize_str, re.compile(APART.get(name, "$.")), 0
    differ = []
    for text, letters, theirs in zip(TEXTS, LETTERS, words_of_llama_cpp(row), strict=True):
        ours = [word for word, _ in cut(text)]
        if apart.search(letters):
            differ.append(ours != theirs)
        else:
            assert ours == theirs
            n_alike += 1
    assert n_alike > 40
    assert any(differ) is (name in APART)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - REFUSED - {"default"}))
def test_names_that_llama_cpp_knows_are_known(name, caplog):
    given = {"model": "gpt2", "pre": name, "tokens": list(byte_alphabet()), "merges": ["a b"]}
    with caplog.at_level(logging.WARNING, "mtpcore"):
        tokenizer = read_tokenizer({f"tokenizer.ggml.{key}": of for key, of in given.items()})
    assert not caplog.records
    assert tokenizer.vocabulary.kind == ("pieces" if name in PIECES else "bytes")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-bep", "(is it llama-bpe"),
        ("qwen4", "qwen"),
        ("\0" * 999, "known:"),
        ("whitespace", "known:"),
    ],
)
def test_an_unknown_name_is_one_short_line_with_names_like_it(name, near, caplog):
    find_pretokenizer(name)
    (said,) = caplog.records
    assert near in said.getMessage()
    assert len(said.getMessage().replace(repr(name[:80]), "")) < 120
