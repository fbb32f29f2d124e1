"""Tokenizers: equal to their sources, exact to the byte, safe on bad metadata."""

import copy
import itertools
import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from harness.fixtures import model_file
from harness.search import searching
from hypothesis import example, given
from hypothesis import strategies as st

from mtpcore.errors import ModelFileError, MtpcoreError
from mtpcore.gguf import open_model_file, read_tokenizer
from mtpcore.gguf.pretokenizers import find_pretokenizer
from mtpcore.gguf.vocabulary import byte_alphabet

DATA = Path(__file__).parents[1] / "data" / "glm-11"
bounded = searching(150)
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def fixture():
    with open_model_file(model_file("glm-11")) as model:
        return read_tokenizer(model.metadata, str(model.path))


OURS = fixture()
THEIRS = tokenizers.Tokenizer.from_file(str(DATA / "tokenizer.json"))
HELD = json.loads((DATA / "held.json").read_text())["held_ids"]
# Letters of every length in UTF-8, space, digits, signs, and what looks like special tokens.
TEXT = st.text(st.sampled_from("aé漢🙂 \n\t\r'sT1\uff12.,_=<|>▁́")) | st.text() | st.just("[gMASK]x")


def metadata(vocabulary, types=None, **more):
    found = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": vocabulary}
    found |= {"tokenizer.ggml.merges": [], "tokenizer.ggml.pre": "gpt-2"}
    if types is not None:
        found["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    found |= {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return {key: value for key, value in found.items() if value is not None}


ALPHABET = list(byte_alphabet())


def test_the_fixture_is_read():
    assert OURS.n_vocab == 2048
    assert (OURS.bos, OURS.eos) == (1, 0)
    assert OURS.end_tokens == {0, 2, 4}
    text = OURS.decode(HELD, special=True)
    assert text == THEIRS.decode(HELD, skip_special_tokens=False)
    assert OURS.encode(text, parse_special=True) == HELD


@bounded
@given(TEXT)
def test_tokens_equal_those_of_the_source(text):
    assert OURS.encode(text, parse_special=True) == THEIRS.encode(text).ids
    assert OURS.decode_bytes(OURS.encode(text)) == text.encode()
    assert all(OURS.vocabulary.types[token] != CONTROL for token in OURS.encode(text))


@bounded
@given(st.lists(st.integers(0, 2047)))
def test_streaming_gives_the_text_of_the_whole(tokens):
    stream = OURS.stream()
    parts = [stream.push(token) for token in tokens]
    assert "".join(parts) + stream.flush() == OURS.decode(tokens)
    assert OURS.decode_bytes(tokens, special=True) == b"".join(map(OURS.token_bytes, tokens))


def test_a_character_is_held_back_until_it_is_whole():
    tokens = OURS.encode("🙂!")
    assert len(tokens) == 5
    stream = OURS.stream()
    assert [stream.push(token) for token in tokens] == ["", "", "", "🙂", "!"]
    assert stream.push(tokens[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(tokens[4]) == "!"


def test_special_tokens_are_shown_and_parsed_on_request():
    assert OURS.encode("<|user|>", parse_special=True) == [2]
    assert len(OURS.encode("<|user|>")) > 1
    assert OURS.decode([2, *OURS.encode("hi")]) == "hi"
    assert OURS.decode([2, *OURS.encode("hi")], special=True) == "<|user|>hi"


@pytest.mark.parametrize("token", [-1, 2048, 1 << 40, 1.5, "a", None])
def test_ids_out_of_range(token):
    calls = [OURS.token_bytes, lambda t: OURS.decode([t])]
    if not isinstance(token, int) or token < 0:  # a stream passes over what lies beyond
        calls.append(OURS.stream().push)
    for call in calls:
        with pytest.raises(MtpcoreError, match="no such token"):
            call(token)


def test_a_stream_passes_over_ids_beyond_the_vocabulary(caplog):
    """Models may have more rows than their tokenizer has entries; it is said once."""
    tokenizer, text = copy.copy(OURS), "añ€"
    stream, found = tokenizer.stream(), ""
    for token in tokenizer.encode(text):
        found += stream.push(token) + stream.push(2048) + stream.push(1 << 40)
    assert found + stream.flush() == text
    assert ["token 2048 is no text" in one.getMessage() for one in caplog.records] == [True]


def test_a_copy_of_a_stream_goes_on_from_the_same_place():
    ids = OURS.encode("€uro", add_special=False)
    for at in range(len(ids) + 1):
        one = OURS.stream()
        begun = "".join(map(one.push, ids[:at]))
        other = copy.copy(one)
        for stream in (other, one):
            assert begun + "".join(map(stream.push, ids[at:])) + stream.flush() == "€uro"


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(MtpcoreError, match="not valid Unicode"):
        OURS.encode("a\ud800")


def test_numpy_ids_are_ids():
    tokens = np.array(OURS.encode("numbers"), np.int32)
    assert OURS.decode(tokens) == "numbers"


REST = [" x", "\n\n", " y", " ", " ++=", "é"]
SPLITS = {
    "falcon": ["I", "'", "ll", " don", "'", "T", " ", "123", "45", *REST[:3], "  ", "++=", "é"],
    "command-r": ["I", "'ll", " don", "'", "T", " ", *"12345", *REST],
    "gpt-2": ["I", "'ll", " don", "'", "T", " 12345", *REST],
    "llama-bpe": ["I", "'ll", " don", "'T", " ", "123", "45", *REST],
    "glm4": ["I", "'ll", " don", "'T", " ", "123", "45", *REST],
    "qwen2": ["I", "'ll", " don", "'T", " ", *"12345", *REST],
    "deepseek-v3": ["I", "'ll", " don", "'T", " ", "123", "45", *REST],
    "gpt-4o": ["I'll", " don'T", " ", "123", "45", *REST],
    "tekken": ["I", "'ll", " don", "'T", " ", *"12345", *REST],
    "smollm": ["I", "'ll", " don", "'", "T", " ", *"12345", *REST],
    "deepseek-llm": ["I", "'", "ll", " don", "'", "T", " ", *"12345", " x", "\n", "\n", *REST[2:]],
    "deepseek-coder": [
        *("I", "'", "ll", " don", "'", "T", " ", *"12345", " x", "\n", "\n", " y", "  ++=", "é")
    ],
    "kimi-k2": ["I'll", " don'T", " ", "123", "45", *REST],
    "seed-coder": ["I", "'ll", " don", "'T", " ", *"12345", *REST],
    "solar-open": ["I", "'ll", " don", "'T", " ", *"12345", *REST],
    "youtu": ["I'll", " don'T", " ", *"12345", *REST],
}


def cut(name, text):
    return [word for word, _ in find_pretokenizer(name).build().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", SPLITS)
def test_pretokenizers_cut_as_published(name):
    assert cut(name, "I'll don'T 12345 x\n\n y  ++=é") == SPLITS[name]


def test_pretokenizers_differ_where_published_ones_do():
    assert cut("deepseek-v3", "漢字かな(abc") == ["漢字かな", "(abc"]
    assert cut("qwen2", "漢字かな(abc") == ["漢字かな", "(abc"]
    assert cut("deepseek-v3", "1漢字a#!\n\nx") == ["1", "漢字", "a", "#!\n\n", "x"]
    assert cut("qwen2", "1漢字a#!\n\nx") == ["1", "漢字a", "#!\n\n", "x"]
    assert cut("qwen2", "ខ្មែរ") == ["ខ", "្ម", "ែរ"]
    assert cut("qwen35", "ខ្មែរ") == ["ខ្មែរ"]
    assert cut("gpt-4o", "aPath/\n/x ABCd") == ["a", "Path", "/\n/", "x", " ABCd"]
    assert cut("gpt-2", "1漢字a#!\n\nx") == ["1", "漢字a", "#!", "\n", "\n", "x"]
    assert cut("kimi-k2", "1漢字aかPath/\n#!\n") == ["1", "漢字", "aか", "Path", "/\n", "#!\n"]
    assert cut("seed-coder", "漢字a#!\n\nx") == ["漢字a", "#!", "\n\n", "x"]
    assert cut("youtu", "漢字、한aPath/\n#!\n") == ["漢字", "、", "한", "a", "Path", "/\n", "#!\n"]


@pytest.mark.parametrize("name", ["martian", "default", None])
def test_an_unknown_pretokenizer_is_warned_of(caplog, name):
    """And one that a file does not name: such files cut texts wrongly in llama.cpp as well."""
    with caplog.at_level(logging.WARNING, "mtpcore"):
        read_tokenizer(metadata(ALPHABET, pre=name)).encode("a b")
    assert repr(name) in caplog.text if name == "martian" else "not name its" in caplog.text


@pytest.mark.parametrize("name", ["llama-bpe", "glm4", "tekken", "chatglm-bpe", "qwen2"])
def test_whole_words_are_taken_where_the_pretokenizer_says_so(name):
    """Some of GLM's Chinese words, for one, cannot be reached by its merges."""
    tokenizer = read_tokenizer(metadata([*ALPHABET, "ab", "abc"], pre=name, merges=["a b"]))
    whole = name in ("llama-bpe", "glm4", "tekken")
    found = [tokenizer.token_bytes(token) for token in tokenizer.encode("abc")]
    assert found == ([b"abc"] if whole else [b"ab", b"c"])


def test_bos_and_eos_are_added_where_the_file_asks():
    tokens, types = [*ALPHABET, "<s>", "</s>"], [NORMAL] * 256 + [CONTROL] * 2
    ids = {"bos_token_id": 256, "eos_token_id": 257}
    a = ALPHABET.index("a")
    for more, expected in (
        ({}, [a]),
        ({"pre": "llama-bpe"}, [256, a]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [a]),
        ({"add_bos_token": True, "add_eos_token": True}, [256, a, 257]),
    ):
        tokenizer = read_tokenizer(metadata(tokens, types, **ids, **more))
        assert tokenizer.encode("a") == expected
        assert tokenizer.encode("a", add_special=False) == [a]
        assert tokenizer.decode(expected) == "a"


def test_an_end_of_generation_may_have_a_key_of_its_own():
    given = metadata([*ALPHABET, "<|im_end|>", "<tool>"], [NORMAL] * 256 + [CONTROL] * 2)
    assert read_tokenizer(given).end_tokens == {256}
    for key in ("eot_token_id", "eom_token_id"):
        assert read_tokenizer(given | {f"tokenizer.ggml.{key}": 257}).end_tokens == {256, 257}


def test_a_file_may_list_the_ends_of_generation():
    """As Ollama's converter does, of what ``generation_config.json`` says."""
    listed = metadata([*ALPHABET, "a", "b"], eos_token_id=0, eos_token_ids=np.array([0, 257]))
    assert read_tokenizer(listed).end_tokens == {0, 257}
    with pytest.raises(ModelFileError, match="eos_token_ids"):
        read_tokenizer(listed | {"tokenizer.ggml.eos_token_ids": [258]})


def test_tokens_that_are_not_utf8_decode_to_their_bytes(caplog):
    odd = b"\xff\xc3".decode("utf-8", "surrogateescape")
    tokenizer = read_tokenizer(metadata([*ALPHABET, odd, "", "a"]))
    assert tokenizer.token_bytes(256) == b"\xff\xc3"
    assert tokenizer.token_bytes(257) == b""


def test_merges_that_make_no_token_are_said_when_a_text_meets_one(caplog):
    tokenizer = read_tokenizer(metadata([*ALPHABET, "bc"], merges=["a b", "x", "", "b c"]))
    a, b = ALPHABET.index("a"), ALPHABET.index("b")
    assert tokenizer.encode("bc") == [256]
    assert not caplog.records
    for _ in range(2):
        assert tokenizer.encode("ab") == [a, b]
    (said,) = caplog.records
    assert "merge of 'a b' makes no token" in said.getMessage()


# --- vocabularies of pieces with scores ---

WORDS = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "▁abc", "▁▁", "ca", "aa", "é", "bca"]


def pieces(**more):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(WORDS) + [USER]
    scores = [0.0] * 259 + [-float(i) for i in random.Random(3).sample(range(50), len(WORDS))]
    found = metadata([*tokens, *WORDS, "<tool>"], types, bos_token_id=1, eos_token_id=2)
    del found["tokenizer.ggml.pre"], found["tokenizer.ggml.merges"]
    found |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.scores": np.array([*scores, 0.0], np.float32),
    }
    return found | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def join_by_score(text, tokens, scores):
    """The definition: join the neighbours whose joint piece scores best, leftmost first.

    As ``bpe_model.cc`` of SentencePiece orders its agenda.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    parts = list(text)
    while True:
        joint = [
            (-scores[ids[a + b]], i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in WORDS
        ]
        if not joint:
            break
        i = min(joint)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found = []
    for part in parts:
        found += [ids[part]] if part in WORDS else [ids[f"<0x{b:02X}>"] for b in part.encode()]
    return found


# Vocabularies that were extended by hand often have one score for all that was added.
TIED = np.array([0.0] * 259 + [-float(i % 3) for i in range(len(WORDS))] + [0.0], np.float32)
SCORED = {
    (prefix, tied): read_tokenizer(
        pieces(add_space_prefix=prefix, **({"scores": TIED} if tied else {}))
    )
    for prefix in (True, False)
    for tied in (False, True)
}


def test_pieces_are_joined_by_ranked_merges():
    """As in Gemma 4's files: the merges decide, whatever scores a file has beside them."""
    merges = ["b c", "a b", "a bc"]
    given = pieces(model="gemma4", merges=merges, add_space_prefix=False)
    tokenizer, tokens = read_tokenizer(given), given["tokenizer.ggml.tokens"]
    for text, parts in (("abc", ["abc"]), ("ab ca", ["ab", "▁", "c", "a"]), ("é", ["é"])):
        found = tokenizer.encode(text, add_special=False)
        assert [tokens[token] for token in found] == parts
        assert tokenizer.decode(found) == text


def test_texts_of_gemma_4_begin_with_bos_alone():
    """Whether or not a file says it, and the first files denied it."""
    for more in (
        {"model": "gemma4"},
        {"model": "gemma4", "add_bos_token": False},
        {"model": "gemma4", "add_bos_token": True},
        {"model": "llama", "pre": "gemma4"},  # Ollama's, whose scores are ids
        {"model": "gpt2", "pre": "gemma4"},
    ):
        tokenizer = read_tokenizer(pieces(merges=["a b"], **more))
        assert [tokenizer.vocabulary.tokens[token] for token in tokenizer.encode("ab")] == [
            "<s>",
            "ab",
        ]


@pytest.mark.parametrize(("prefix", "tied"), SCORED)
@bounded
@given(text=st.text("abc é漢", max_size=30) | st.text(max_size=8))
@example(text="a\U0010ffffb")  # no character, yet text as any other
def test_pieces_are_joined_by_score(prefix, tied, text):
    tokenizer = SCORED[prefix, tied]
    vocabulary = tokenizer.vocabulary
    spelled = ("▁" if prefix and text else "") + text.replace(" ", "▁")
    expected = join_by_score(spelled, vocabulary.tokens, vocabulary.scores)
    found = tokenizer.encode(text)
    assert found == [1, *expected]
    assert tokenizer.decode_bytes(found) == text.replace("▁", " ").encode()


@bounded
@given(st.lists(st.sampled_from(["a", " ab", "é", "<tool>", "<s>", " ", "漢"])).map("".join))
def test_spaces_survive_added_tokens(text):
    for tokenizer in SCORED.values():
        found = tokenizer.encode(text, add_special=False, parse_special=True)
        assert tokenizer.decode(found, special=True) == text
        stream = tokenizer.stream(special=True, start=True)
        assert "".join(map(stream.push, found)) + stream.flush() == text


def test_a_stream_continues_a_prompt():
    tokenizer = SCORED[True, False]
    first = tokenizer.encode("ab", add_special=False)
    assert tokenizer.stream().push(first[0]) == " ab"
    assert tokenizer.stream(start=True).push(first[0]) == "ab"


def unknowing(model, **more):
    """A vocabulary of pieces that knows two letters."""
    scores = np.arange(3, dtype=np.float32)
    found = metadata(["<unk>", "a", "b"], [UNKNOWN, NORMAL, NORMAL], model=model, scores=scores)
    return found | {"tokenizer.ggml.add_space_prefix": False} | more


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        (metadata(["Ã", "a", "b"]), [0]),  # © is lost
        (unknowing("llama"), [0]),
        (unknowing("t5", **{"tokenizer.ggml.unknown_token_id": 0}), [0]),
        (unknowing("gemma4"), []),
    ],
    ids=["bytes", "pieces", "unigram", "no unknown token"],
)
def test_what_a_vocabulary_does_not_know_is_said_when_a_text_loses_it(caplog, given, instead):
    """Once, and not before: many vocabularies lack bytes that no text has."""
    tokenizer = read_tokenizer(given)
    assert tokenizer.encode("ab", add_special=False) == [1, 2]
    assert not caplog.records
    for _ in range(2):
        assert tokenizer.encode("aébb", add_special=False) == [1, *instead, 2, 2]
    (said,) = caplog.records
    assert "no token for 'é'" in said.getMessage()
    if "tokenizer.ggml.scores" in given:
        # No character is like what stands inside for those that are unknown.
        spelt = tokenizer.encode("a\U0010ffffbb", add_special=False)
        assert spelt == [1, *instead, 2, 2]


# --- bad metadata ---


def test_no_tokenizer_is_none(caplog):
    assert read_tokenizer({}) is None
    assert read_tokenizer({"tokenizer.ggml.model": "none"}) is None
    for name, missing in (("bert", "WordPiece"), ("martian", "nothing is known")):
        caplog.clear()
        assert read_tokenizer({"tokenizer.ggml.model": name}) is None
        (said,) = caplog.records
        assert repr(name) in said.getMessage()
        assert missing in said.getMessage()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": 3}, "model"),
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": np.arange(3)}, "tokens"),
        ({"merges": None}, "merges"),
        ({"merges": np.arange(3)}, "merges"),
        ({"pre": 1}, "pre"),
        ({"token_type": np.ones(3, np.int32)}, "token_type"),
        ({"token_type": ["a"] * 256}, "token_type"),
        ({"bos_token_id": 256}, "bos_token_id"),
        ({"eot_token_id": -1}, "eot_token_id"),
        ({"eos_token_id": "a"}, "eos_token_id"),
        ({"suppress_tokens": np.array([3, 256], np.int32)}, "suppress_tokens"),
        ({"suppress_tokens": [-1]}, "suppress_tokens"),
        ({"suppress_tokens": "a"}, "suppress_tokens"),
        ({"add_bos_token": 2}, "add_bos_token"),
        ({"model": "llama"}, "scores"),
        ({"model": "llama", "scores": np.full(256, np.nan)}, "scores"),
        ({"model": "llama", "scores": np.zeros(255)}, "scores"),
    ],
)
def test_bad_metadata_names_its_key(change, key):
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key}'"):
        read_tokenizer(metadata(ALPHABET, **change))


def test_suppressed_tokens_are_read():
    assert read_tokenizer(metadata(ALPHABET)).suppressed == ()
    tokens = np.array([7, 3, 7], np.int32)
    assert read_tokenizer(metadata(ALPHABET, suppress_tokens=tokens)).suppressed == (3, 7)


def test_random_vocabularies_end_in_success_or_refusal():
    chance = random.Random(11)
    letters = ["a", "b", "▁", " ", "<0x41>", "", "\udcff", "Ġ", "é", "<s>", "\0"]
    for _ in range(300):
        n = chance.randint(1, 12)
        word = lambda: "".join(chance.choices(letters, k=chance.randint(0, 3)))  # noqa: E731
        types = [chance.randint(-1, 8) for _ in range(n)]
        found = metadata([word() for _ in range(n)], types, unknown_token_id=chance.randint(0, n))
        found["tokenizer.ggml.model"] = chance.choice(["gpt2", "llama"])
        found["tokenizer.ggml.merges"] = [word() + " " + word() for _ in range(5)]
        found["tokenizer.ggml.scores"] = np.array([chance.choice([0, 1, np.inf]) for _ in range(n)])
        try:
            tokenizer = read_tokenizer(found)
            tokenizer.decode(tokenizer.encode("ab <s>é", parse_special=chance.random() < 0.5))
            tokenizer.decode(range(n))
        except MtpcoreError:
            pass
