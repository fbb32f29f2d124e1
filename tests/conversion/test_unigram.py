"""Unigram vocabularies: what is read back makes the tokens that SentencePiece makes."""

import base64
import json
import lzma

import numpy as np
import pytest
from harness.fixtures import DATA
from tokenizers import Tokenizer

from mtpcore.conversion.sentencepiece import read_sentencepiece
from mtpcore.conversion.tokenizer import tokenizer_metadata
from mtpcore.errors import ModelFileError
from mtpcore.gguf import read_tokenizer
from mtpcore.gguf.charsmap import fault_of

KEY = "tokenizer.ggml."
NAMES = ("t5", "bytes")
SPECIAL = (("pad", "<pad>"), ("eos", "</s>"), ("unknown", "<unk>"))
REFS = json.loads((DATA / "unigram" / "refs.json").read_text())


def write(folder, name, change=lambda data: data):
    data = lzma.decompress((DATA / "unigram" / f"{name}.model.xz").read_bytes())
    (folder / "spiece.model").write_bytes(change(data))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_those_of_sentencepiece(tmp_path, name):
    made = read_tokenizer(tokenizer_metadata(write(tmp_path, name), None, SPECIAL))
    assert (made.eos, made.bos, made.end_tokens) == (1, None, {1})
    for text, wanted in REFS[name]:
        assert made.encode(text, add_special=False) == wanted, text
        assert made.encode(text) == [*wanted, 1]
    text, tokens = REFS[name][0]
    assert made.decode(tokens) == text
    stream = made.stream(start=True)
    assert "".join([*map(stream.push, tokens), stream.flush()]) == text


def test_special_tokens_are_parsed_where_that_is_asked_for(tmp_path):
    made = read_tokenizer(tokenizer_metadata(write(tmp_path, "t5"), None, SPECIAL))
    assert made.encode("</s>", add_special=False, parse_special=True) == [1]
    assert 1 not in made.encode("</s> <pad>", add_special=False)
    assert made.encode("<extra_id_0>", add_special=False) == [3]


def test_a_byte_is_a_token_of_what_is_no_piece_alone(tmp_path):
    """Its spelling in a text is text, as it is to SentencePiece."""
    made = read_tokenizer(tokenizer_metadata(write(tmp_path, "bytes"), None, SPECIAL))
    assert made.decode(made.encode("a <0x41> é")) == "a <0x41> é"


def test_metadata(tmp_path):
    model = read_sentencepiece(write(tmp_path, "t5") / "spiece.model")
    n = len(model.pieces)
    made = tokenizer_metadata(tmp_path, n + 2, SPECIAL)
    assert made[KEY + "model"] == "t5"
    assert made[KEY + "tokens"][-2:] == [f"[PAD{n}]", f"[PAD{n + 1}]"]
    assert made[KEY + "token_type"].tolist()[:5] == [3, 3, 2, 4, 1]
    assert made[KEY + "token_type"].tolist()[-2:] == [5, 5]
    assert len(made[KEY + "scores"]) == n + 2
    ids = {name: made[f"{KEY}{name}_token_id"] for name in ("padding", "eos", "unknown")}
    assert ids == {"padding": 0, "eos": 1, "unknown": 2}
    assert made[KEY + "precompiled_charsmap"].tobytes() == model.charsmap
    flags = "add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"
    assert [made[KEY + flag] for flag in flags] == [False, True, True, True]
    with pytest.raises(ModelFileError, match="more tokens than the model has"):
        tokenizer_metadata(tmp_path, n - 1, SPECIAL)


def as_json(model, **changed):
    """Return ``tokenizer.json`` as transformers writes it."""
    special = {0: "<pad>", 1: "</s>", 2: "<unk>", 3: "<extra_id_0>"}
    n = len(model.pieces)
    added = {**special, n: "<extra_id_1>"}
    charsmap = base64.b64encode(model.charsmap).decode()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for token, text in added.items()
        ],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {
                    "type": "Metaspace",
                    "replacement": "\u2581",
                    "prepend_scheme": "always",
                    "split": True,
                },
            ],
        },
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": [[piece.text, piece.score] for piece in model.pieces],
            "byte_fallback": False,
        },
    } | changed


def test_tokenizer_json(tmp_path):
    """The same tokens as its own library makes."""
    source = as_json(read_sentencepiece(write(tmp_path, "t5") / "spiece.model"))
    (tmp_path / "spiece.model").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made = read_tokenizer(tokenizer_metadata(tmp_path, None, SPECIAL))
    for text, wanted in REFS["t5"]:
        if "<" not in text:
            assert made.encode(text, add_special=False) == wanted, text
            assert theirs.encode(text).ids == wanted
    assert made.encode("the <extra_id_1>", parse_special=True)[-2] == made.n_vocab - 1
    assert made.vocabulary.joins_spaces


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "step of its normalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "step of its pre-tokenizer"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "no map"),
        ({"added_tokens": [{"id": 900, "content": "x"}]}, "leave a gap"),
        ({"added_tokens": [{"id": 4, "content": "x"}]}, "two tokens have one id"),
        ({"model": {"type": "Unigram", "vocab": []}}, "no tokens"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1}}, "what is unknown"),
        ({"model": {"type": "Unigram", "vocab": [["a"]]}}, "malformed"),
        ({"model": {"type": "WordPiece"}}, "unigram"),
    ],
)
def test_what_model_files_cannot_hold(tmp_path, changed, message):
    model = read_sentencepiece(write(tmp_path, "t5") / "spiece.model")
    (tmp_path / "tokenizer.json").write_text(json.dumps(as_json(model, added_tokens=[], **{})))
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(as_json(model) | {"added_tokens": []} | changed)
    )
    with pytest.raises(ModelFileError, match=message):
        tokenizer_metadata(tmp_path, None)


def test_damaged_sentencepiece_models(tmp_path):
    """Cut short or with other bytes it is refused, or read as something else; never more."""
    whole = lzma.decompress((DATA / "unigram" / "bytes.model.xz").read_bytes())
    random = np.random.default_rng(0)
    refused = 0
    for i in range(300):
        data = bytearray(whole)
        if i % 2:
            del data[random.integers(len(data)) :]
        else:
            data[random.integers(len(data))] = random.integers(256)
        (tmp_path / "spiece.model").write_bytes(data)
        try:
            read_sentencepiece(tmp_path / "spiece.model")
        except ModelFileError:
            refused += 1
    assert 100 < refused < 300
    for data, message in (
        (b"", "no pieces"),
        (b"\x12\x02\x18\x02", "no unigram model"),
        (b"\x1a\x02\x28\x00", "not spelt"),
        (b"\xff" * 20, "malformed"),
    ):
        (tmp_path / "spiece.model").write_bytes(data)
        with pytest.raises(ModelFileError, match=message):
            read_sentencepiece(tmp_path / "spiece.model")


def test_maps_of_characters_are_followed_before_they_are_used(tmp_path):
    charsmap = read_sentencepiece(write(tmp_path, "t5") / "spiece.model").charsmap
    assert fault_of(charsmap) == ""
    n = int.from_bytes(charsmap[:4], "little")
    random, refused = np.random.default_rng(1), 0
    for _ in range(60):
        data = bytearray(charsmap)
        for at in random.integers(4, 4 + n, 20):
            data[at] ^= 1 << random.integers(8)
        refused += bool(fault_of(bytes(data)))
    assert refused > 30
    for wrong in (b"", charsmap[:3], charsmap[: n // 2], charsmap[: 4 + n], bytes(40)):
        assert fault_of(wrong)
    metadata = tokenizer_metadata(tmp_path, None, SPECIAL)
    metadata[KEY + "precompiled_charsmap"] = np.zeros(40, np.uint8)
    with pytest.raises(ModelFileError, match="no map of characters"):
        read_tokenizer(metadata)


@pytest.mark.parametrize(("offset", "is_fault"), [(0, False), (255, False), (256, True)])
def test_a_map_whose_unit_has_its_children_outside_is_refused(offset, is_fault):
    """The library panics where a text goes on after such a unit: ``a`` and a mark above it."""
    units = np.zeros(256, "<u4")
    units[0] = 1 << 10  # the root's children begin at 1
    units[1 ^ ord("a")] = offset << 10 | ord("a")
    charsmap = (4 * 256).to_bytes(4, "little") + units.tobytes() + b"x\0"
    assert fault_of(charsmap) == ("its array leads outside" if is_fault else "")
