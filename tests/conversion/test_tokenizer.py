"""Published tokenizers as metadata: what is read back makes the tokens that their source makes."""

import json
from hashlib import sha256

import numpy as np
import pytest
import tokenizers
from harness.fixtures import checkpoint
from harness.published import tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from mtpcore.conversion.tokenizer import tokenizer_metadata
from mtpcore.errors import ModelFileError
from mtpcore.gguf import read_chat_template, read_tokenizer
from mtpcore.gguf.pretokenizers import find_pretokenizer
from mtpcore.gguf.response_template import RESPONSE_TEMPLATE_KEY, read_response_template

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KEY = "tokenizer.ggml."
TEXTS = (
    "def read(path: str) -> None:\n    return 12345\n",
    "  It's here.\r\n\n\tNo; they'll wait\u2026 \u4e2d\u6587 na\u00efve 42%",
    " a  b   c ",
)
CORPUS = ["the cat sat on the mat", "a cat and a dog at the door", "that hat is on the dog"] * 5


def write(folder, source, **config):
    (folder / "tokenizer.json").write_text(
        source if isinstance(source, str) else json.dumps(source)
    )
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["glm-11", "ds-12", "mimo-14", "mimo2-15"])
def test_tokens_equal_those_of_the_source(name):
    folder = checkpoint(name)
    made = read_tokenizer(tokenizer_metadata(folder, 2048))
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special=False) == wanted
        assert made.decode(wanted) == text


PRE_TOKENIZERS = (
    *("qwen2", "qwen35", "llama-bpe", "glm4", "chatglm-bpe", "deepseek-v3", "gpt-4o", "tekken"),
    *("gpt-2", "smollm", "seed-coder"),
)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize("adds_bos", [True, False])
def test_pre_tokenizers_are_known_by_their_patterns(tmp_path, name, adds_bos):
    """Llama 3 and GLM-4.5 differ only in that one of them begins texts with BOS.

    ChatGLM's differs in words that merges do not reach, of which there are none here.
    """
    known = find_pretokenizer(name)
    steps = [{"type": "Split", "pattern": {"Regex": pattern}} for pattern in known.patterns]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    source = tokenizer()
    source["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    source["model"]["ignore_merges"] = known.whole_words
    folder = write(tmp_path, source, add_bos_token=adds_bos, bos_token="a")
    made = tokenizer_metadata(folder, None)
    named = {("glm4", True): "llama-bpe", ("llama-bpe", False): "glm4",
             ("chatglm-bpe", True): "llama-bpe"}  # fmt: skip
    wanted = named.get((name, adds_bos), name)
    assert made[KEY + "pre"] == wanted
    (folder / "tokenizer_config.json").unlink()
    assert not read_tokenizer(tokenizer_metadata(folder, None)).vocabulary.add_bos


EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# As published, with the characters that end lines themselves; None is a step for digits. The list
# of letters is long, so its digest stands for it.
LETTERS = "38fd0b5eb7e66ecf05e5e89dd0272208b64a6d60fa009c4ea1be70e7b7e739d5"
DEEPSEEK = {
    "deepseek-llm": (
        "[\r\n]",
        find_pretokenizer("deepseek-llm").patterns[1],
        r"\s?[!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        EAST_ASIAN,
        None,
    ),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, None),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
}


@pytest.mark.parametrize("name", DEEPSEEK)
def test_deepseek_s_tokenizers_as_published(tmp_path, name):
    letters = DEEPSEEK["deepseek-llm"][1]
    assert sha256(letters.encode()).hexdigest() == LETTERS
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            if pattern is not None
            else pre_tokenizers.Digits(individual_digits=True)
            for pattern in DEEPSEEK[name]
        ]
        + [pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    texts = (
        *TEXTS,
        "in 1984",
        "a\u0561b \u0562\u0561 \u0531\u0561.",
        "\u4e2d\u6587\u3000\u3042!?\uff01 ",
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([*CORPUS, *texts] * 5, trainer)
    metadata = tokenizer_metadata(write(tmp_path, made.to_str()), None)
    assert metadata[KEY + "pre"] == name
    for text in texts:
        assert read_tokenizer(metadata).encode(text) == made.encode(text).ids


def cut_as(name, *, whole_words):
    """Return a source that cuts text as the pre-tokenizer of that name."""
    source = tokenizer()
    pattern = {"Regex": find_pretokenizer(name).patterns[0]}
    source["pre_tokenizer"]["pretokenizers"][0]["pattern"] = pattern
    source["model"]["ignore_merges"] = whole_words
    return source


def test_llama_3_is_known_before_its_file_said_that_words_are_whole(tmp_path, caplog):
    """As published in April 2024: of 128,000 tokens, its merges do not make 588.

    Meta's own tokenizer takes words whole, and the file said so a month later.
    """
    source = cut_as("llama-bpe", whole_words=False)
    write(tmp_path, source, add_bos_token=True, bos_token="a")
    assert tokenizer_metadata(tmp_path, None)[KEY + "pre"] == "llama-bpe"
    assert not caplog.records, "the tokens are the same"
    source["model"]["vocab"]["abc"] = 8
    write(tmp_path, source, add_bos_token=True, bos_token="a")
    made = tokenizer_metadata(tmp_path, None)
    assert made[KEY + "pre"] == "llama-bpe"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'tokenizer.json'}: its merges never make 1 of its tokens, so that the model "
        "learnt words that are tokens whole: they are taken so, as 'llama-bpe' says"
    ]
    assert read_tokenizer(made).encode("abc", add_special=False) == [8]
    write(tmp_path, source, add_bos_token=False)
    assert tokenizer_metadata(tmp_path, None)[KEY + "pre"] == "chatglm-bpe"
    source = cut_as("tekken", whole_words=False)
    for more in ({}, {"abc": 8}):
        source["model"]["vocab"] |= more
        assert tokenizer_metadata(write(tmp_path, source), None)[KEY + "pre"] == "tekken"


def test_whole_words_make_no_difference_where_merges_reach_them(tmp_path):
    """As in gpt-oss's tokenizer: it takes words whole, and its merges make every one of them."""
    name = "gpt-4o"
    source = cut_as(name, whole_words=True)
    assert tokenizer_metadata(write(tmp_path, source), None)[KEY + "pre"] == name
    source["model"]["vocab"]["abc"] = 8
    with pytest.raises(ModelFileError, match="no model file has a name"):
        tokenizer_metadata(write(tmp_path, source), None)
    source["added_tokens"].append({"id": 8, "content": "abc", "special": False})
    assert tokenizer_metadata(write(tmp_path, source), None)[KEY + "pre"] == name


@pytest.mark.parametrize("normalizer", [
    {"type": "NFC"},
    {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [{"type": "NFC"}]}]},
])  # fmt: skip
def test_text_that_is_not_composed_is_said_to_be_cut_otherwise(tmp_path, caplog, normalizer):
    """As in Qwen's tokenizers. A model file cannot say it, and no engine composes text for one."""
    source = tokenizer()
    wanted = tokenizer_metadata(write(tmp_path, source), None)
    assert not caplog.records
    made = tokenizer_metadata(write(tmp_path, source | {"normalizer": normalizer}), None)
    assert made.keys() == wanted.keys()
    (record,) = caplog.records
    assert "unicodedata.normalize('NFC', text)" in record.getMessage()


@pytest.mark.parametrize("normalizer", [
    {"type": "NFKC"},
    {"type": "NFD"},
    {"type": "Lowercase"},
    {"type": "StripAccents"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": "x"}, "content": "y"},
    {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
], ids=lambda step: step["type"])  # fmt: skip
def test_steps_that_change_ordinary_text_are_refused(tmp_path, normalizer):
    """Their tokens would be others than those that the model learnt."""
    last = normalizer.get("normalizers", [normalizer])[-1]["type"]
    with pytest.raises(ModelFileError, match="a step of its normalizer") as error:
        tokenizer_metadata(write(tmp_path, tokenizer() | {"normalizer": normalizer}), None)
    assert error.value.got == repr(last)
    assert error.value.where == f"{tmp_path / 'tokenizer.json'}: normalizer"
    assert "remove the step" in error.value.fix


@pytest.mark.parametrize("normalizer", [None, {"type": "Sequence", "normalizers": []}])
def test_no_step_is_nothing_to_say(tmp_path, caplog, normalizer):
    tokenizer_metadata(write(tmp_path, tokenizer() | {"normalizer": normalizer}), None)
    assert not caplog.records


def split_up(folder, source, cls="Qwen2TokenizerFast"):
    """Write a tokenizer as ``vocab.json``, ``merges.txt`` and its settings."""
    merges = "\n".join(["#version: 0.2", *map(" ".join, source["model"]["merges"]), ""])
    (folder / "vocab.json").write_text(json.dumps(source["model"]["vocab"]))
    (folder / "merges.txt").write_text(merges)
    added = {str(one["id"]): {"content": one["content"], "special": one["special"]}
             for one in source["added_tokens"]}  # fmt: skip
    settings = {"tokenizer_class": cls, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_vocabulary_and_merges_in_files_of_their_own(tmp_path, caplog):
    """As tokenizer.json has them, which is read where it is there."""
    source = tokenizer()
    (tmp_path / "one").mkdir()
    wanted = tokenizer_metadata(write(tmp_path / "one", source), 12)
    made = tokenizer_metadata(split_up(tmp_path, source), 12)
    assert made.keys() == wanted.keys()
    assert all(np.array_equal(made[key], wanted[key]) for key in wanted)
    assert made[KEY + "pre"] == "qwen2"
    assert "NFC" in caplog.text, "its class composes text"
    caplog.clear()
    split_up(tmp_path, source, "GPT2Tokenizer")
    assert tokenizer_metadata(tmp_path, 12)[KEY + "pre"] == "gpt-2"
    assert not caplog.records


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("tokenizer_config.json", "{}", "tokenizer_class: how this tokenizer cuts words"),
        ("tokenizer_config.json", '{"tokenizer_class": "T", "added_tokens_decoder": 3}', "object"),
        ("merges.txt", "a\n", "a merge is not a pair"),
        ("merges.txt", "a z\n", "a merge names no tokens"),
        ("merges.txt", None, r"merges\.txt"),
        ("vocab.json", '{"a": -1}', r"vocab\.json: model"),
        ("vocab.json", "[]", r"vocab\.json"),
    ],
)
def test_such_files_are_wrong(tmp_path, file, text, match):
    split_up(tmp_path, tokenizer())
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    with pytest.raises(ModelFileError, match=match):
        tokenizer_metadata(tmp_path, 12)


@pytest.mark.parametrize("token", ["x", "-1", "99999999999", "1.5"])
def test_an_added_token_without_a_number(tmp_path, token):
    source = tokenizer()
    split_up(tmp_path, source)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"][token] = {"content": "<x>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelFileError, match="added_tokens_decoder"):
        tokenizer_metadata(tmp_path, 12)


def test_the_expression_that_byte_level_brings_along(tmp_path):
    source = tokenizer() | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    assert tokenizer_metadata(write(tmp_path, source), None)[KEY + "pre"] == "gpt-2"


def test_digits_that_are_cut_one_by_one(tmp_path):
    """As SmolLM's tokenizer has it: a step for digits, and what byte-level brings along."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([*CORPUS, "in 1984 and 2001 "] * 5, trainer)
    metadata = tokenizer_metadata(write(tmp_path, made.to_str()), None)
    assert metadata[KEY + "pre"] == "smollm"
    for text in (*TEXTS, "in 1984"):
        assert read_tokenizer(metadata).encode(text) == made.encode(text).ids


def test_kinds_of_tokens_and_unused_ids(tmp_path):
    source = tokenizer(4)
    source["added_tokens"] += [
        {"id": 5, "content": "<tool>", "special": False},
        {"id": 6, "content": "<|looks|>", "special": False},
    ]
    made = tokenizer_metadata(write(tmp_path, source), 9)
    assert made[KEY + "tokens"] == [
        *("a", "b", "ab", "<|end|>", "[PAD4]", "<tool>", "<|looks|>", "[PAD7]", "[PAD8]")
    ]
    assert made[KEY + "token_type"].tolist() == [
        *(NORMAL, NORMAL, NORMAL, CONTROL, UNUSED, USER, CONTROL, UNUSED, UNUSED)
    ]


def test_special_ids_and_chat_template(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = write(
        tmp_path,
        tokenizer(8),
        eos_token={"content": "<|end|>"},
        add_bos_token=False,
        chat_template=template,
    )
    kinds = (("eot", "<|end|>"), ("bos", "<|end|>"), ("eom", "<|nowhere|>"))
    made = tokenizer_metadata(folder, 8, kinds)
    assert made[KEY + "eos_token_id"] == 7, "the tokenizer's own word counts"
    assert made[KEY + "bos_token_id"] == 1, "the declaration's counts last"
    assert made[KEY + "eot_token_id"] == 7
    assert KEY + "eom_token_id" not in made
    assert made[KEY + "add_bos_token"] is False
    read = read_tokenizer(made)
    assert read_chat_template(made, read).render([{"role": "user", "content": "x"}]) == "x"


def test_a_response_template_is_copied(tmp_path):
    template = {"start_anchor": "<a>", "fields": {"content": {"close": "</a>"}}}
    made = tokenizer_metadata(write(tmp_path, tokenizer(8), response_template=template), 8)
    assert read_response_template(made).source == template
    assert json.loads(made[RESPONSE_TEMPLATE_KEY]) == template


def test_a_malformed_response_template_is_refused(tmp_path):
    folder = write(tmp_path, tokenizer(8), response_template={"fields": {"content": {"open": ""}}})
    with pytest.raises(ModelFileError, match="empty mark"):
        tokenizer_metadata(folder, 8)


@pytest.fixture(scope="module")
def pieces():
    """A vocabulary of the SentencePiece kind, as transformers converts one."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    source = json.loads(made.to_str())
    source["pre_tokenizer"] = None
    source["added_tokens"] = [t for t in source["added_tokens"] if t["id"] < 3]
    return source


def test_pieces_keep_the_order_of_their_merges(tmp_path, pieces):
    folder = write(tmp_path, pieces, bos_token="<s>", eos_token="</s>")
    made = tokenizer_metadata(folder, None)
    assert made[KEY + "model"] == "llama"
    assert made[KEY + "add_space_prefix"] is True
    types = made[KEY + "token_type"].tolist()
    assert types[:3] == [UNKNOWN, CONTROL, CONTROL]
    assert types[3:259] == [BYTE] * 256
    assert set(types[259:]) == {NORMAL}
    assert made[KEY + "scores"].dtype == np.float32
    read = read_tokenizer(made)
    theirs = Tokenizer.from_str(json.dumps(pieces))
    for text in (*CORPUS[:3], "that cat", "hot dogs at the mat", "caf\u00e9"):
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert len(wanted) < len(text.encode()) + 2
        assert read.encode(text, add_special=False) == wanted


@pytest.mark.parametrize("step", [
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "x"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
    {"type": "Replace"},
])  # fmt: skip
def test_pieces_are_spelt_by_two_steps_alone(tmp_path, pieces, step):
    steps = [*pieces["normalizer"]["normalizers"], step]
    source = pieces | {"normalizer": {"type": "Sequence", "normalizers": steps}}
    with pytest.raises(ModelFileError, match="a step of its normalizer"):
        tokenizer_metadata(write(tmp_path, source), None)


def test_the_merge_that_comes_first_wins_whatever_the_ids_say(tmp_path):
    vocab = {text: i for i, text in enumerate(("<unk>", "a", "b", "c", "bc", "ab"))}
    model = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab}
    for merges, wanted in ((["a b", "b c"], ["ab", "c"]), (["b c", "a b"], ["a", "bc"])):
        source = {"model": model | {"merges": merges}, "added_tokens": []}
        read = read_tokenizer(tokenizer_metadata(write(tmp_path, source), None))
        assert [read.vocabulary.tokens[t] for t in read.encode("abc", add_special=False)] == wanted


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "no byte-pair encoding"),
        ({"model": None}, "no byte-pair encoding"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "unknown step"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "a space is put"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, r"Expected `int` >= 0"),
        ({"model": {"type": "BPE", "vocab": {"a": "x"}}}, "malformed"),
        ({"model": {"type": "BPE", "vocab": {"a": 900}}}, "more tokens than the model has"),
        ({"added_tokens": [{"content": "x"}]}, "malformed"),
        ({"added_tokens": 3}, "malformed"),
        ({"pre_tokenizer": 3}, "malformed"),
    ],
)
def test_others_are_refused(tmp_path, changed, what):
    with pytest.raises(ModelFileError, match=what):
        tokenizer_metadata(write(tmp_path, tokenizer() | changed), 64)


@pytest.mark.parametrize(
    ("merge", "what"),
    [
        (["a", "z"], "names no tokens"),
        (["b", "b"], "names no tokens"),
        (["", "a"], "names no tokens"),
        ("a  b", "not a pair"),
        ("ab", "not a pair"),
        (["a", "b", "c"], "of length 2"),
        ([1, 2], "Expected `str`"),
        (["a", None], "Expected `str`"),
        (None, "malformed"),
        ({"a": "b"}, "malformed"),
    ],
)
def test_merges_that_the_source_s_own_library_would_refuse(tmp_path, merge, what):
    source = tokenizer()
    for merges in ([["a", "b"], merge], [merge, "a b"]):
        source["model"]["merges"] = merges
        with pytest.raises(ModelFileError, match=what):
            tokenizer_metadata(write(tmp_path, source), 64)
        with pytest.raises(Exception, match=r".*"):  # the library's own
            Tokenizer.from_str(json.dumps(source))


def test_merges_may_be_spelt_both_ways(tmp_path):
    source = tokenizer()
    for merge in ("a b", ["a", "b"]):
        source["model"]["merges"] = [merge]
        assert tokenizer_metadata(write(tmp_path, source), 8)[KEY + "merges"] == ["a b"]


def test_merges_in_a_file_of_their_own(tmp_path):
    source = tokenizer()
    source["model"]["merges"] = []
    write(tmp_path, source)
    with pytest.raises(ModelFileError, match="no merges"):
        tokenizer_metadata(tmp_path, 8)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert tokenizer_metadata(tmp_path, 8)[KEY + "merges"] == ["a b"]
    (tmp_path / "merges.txt").write_text("a z\n")
    with pytest.raises(ModelFileError, match="names no tokens"):
        tokenizer_metadata(tmp_path, 8)


@pytest.mark.parametrize(
    ("model", "added", "what"),
    [
        ({"vocab": {}}, [], "no tokens"),
        ({"vocab": {"a": 1, "b": 1}}, [], "one id"),
        ({"vocab": {"a": 1 << 20}}, [], "Expected `int` <"),
        ({"vocab": {"a": 1 << 64}}, [], "Expected `int` <"),
        ({"vocab": {"a": 1.5}}, [], "Expected `int`"),
        ({"vocab": [["a", 1]]}, [], "malformed"),
        ({"unk_token": 3}, [], "malformed"),
        ({"end_of_word_suffix": "</w>"}, [], "affix"),
        ({}, [{"id": 9, "content": "x"}, {"id": 9, "content": "y"}], "one id"),
        ({}, [{"id": 1 << 31, "content": "x"}], "malformed"),
        ({}, [{"id": 3, "content": None}], "malformed"),
        ({}, [3], "malformed"),
    ],
)
def test_vocabularies_that_no_file_can_hold(tmp_path, model, added, what):
    source = tokenizer()
    source["model"] |= model
    source["added_tokens"] = added
    with pytest.raises(ModelFileError, match=what):
        tokenizer_metadata(write(tmp_path, source), None)


def test_the_pieces_of_a_step_may_be_anything(tmp_path):
    for key in ("pre_tokenizer", "normalizer"):
        for step in (3, "x", [], {"type": 3}, {"pretokenizers": 3}, {"normalizers": [3]},
                     {"type": "Sequence", "pretokenizers": [None]}):  # fmt: skip
            with pytest.raises(ModelFileError):
                tokenizer_metadata(write(tmp_path, tokenizer() | {key: step}), None)


@pytest.mark.parametrize(
    ("processor", "what"),
    [
        ([3], "malformed"),
        ({"type": "TemplateProcessing", "single": [3, 4]}, "malformed"),
        ({"type": "RobertaProcessing", "cls": []}, "IndexError"),
    ],
)
def test_what_the_gguf_package_cannot_parse(tmp_path, processor, what):
    write(tmp_path, tokenizer() | {"post_processor": processor}, bos_token="a")
    with pytest.raises(ModelFileError, match=what):
        tokenizer_metadata(tmp_path, None)


def test_a_template_that_is_no_text(tmp_path):
    write(tmp_path, tokenizer(), chat_template=[{"name": 3}, 4])
    with pytest.raises(ModelFileError, match="malformed"):
        tokenizer_metadata(tmp_path, None)


def test_a_pattern_without_a_name(tmp_path):
    source = tokenizer()
    source["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\w+"}
    with pytest.raises(ModelFileError, match=r"no model file has a name.*\\\\w"):
        tokenizer_metadata(write(tmp_path, source), 64)


def test_no_tokenizer(tmp_path):
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: no tokenizer"):
        tokenizer_metadata(tmp_path, 64)


def test_flags_of_added_tokens_without_tokenizer_json(tmp_path, caplog):
    split_up(tmp_path, tokenizer(), "GPT2Tokenizer")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for one in settings["added_tokens_decoder"].values():
        one |= {"lstrip": True, "normalized": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer_metadata(tmp_path, 12)
    assert "take the spaces before them: '<|end|>'" in caplog.text


def said(folder, caplog, source, **config):
    """Convert; return what was said of it."""
    caplog.clear()
    made = tokenizer_metadata(write(folder, source, **config), None)
    return made, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("lstrip", "take the spaces before them"),
        ("rstrip", "take the spaces after them"),
        ("single_word", "between words alone"),
        ("normalized", ""),
    ],
)
def test_flags_of_added_tokens_are_said(tmp_path, caplog, flag, words):
    """A model file has no place for them; llama.cpp knows them of some models by their name."""
    source = tokenizer()
    source["added_tokens"][0][flag] = True
    _, lines = said(tmp_path, caplog, source)
    assert len(lines) == bool(words)
    assert all(words in line and line.endswith("'<|end|>'") for line in lines)


SPECIAL_A, TEXT = {"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A"}}
END = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}


@pytest.mark.parametrize(
    ("single", "adds", "lost"),
    [
        ([TEXT], (None, None), []),
        ([SPECIAL_A, TEXT], (True, None), []),
        ([TEXT, END], (None, True), []),
        ([SPECIAL_A, TEXT, END], (True, True), []),
        ([SPECIAL_A, END, TEXT], (True, None), ["before a text, but BOS alone"]),
        ([END, TEXT], (False, None), ["before a text, but BOS alone"]),
        ([TEXT, END, END], (None, True), ["after a text, but EOS alone"]),
    ],
)
@pytest.mark.parametrize("in_sequence", [True, False])
def test_tokens_around_a_text(tmp_path, caplog, single, adds, lost, in_sequence):
    processor = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    if in_sequence:
        bytes_ = {"type": "ByteLevel", "trim_offsets": False}
        processor = {"type": "Sequence", "processors": [bytes_, processor]}
    source = tokenizer() | {"post_processor": processor}
    source["added_tokens"].append({"id": 0, "content": "a", "special": True})
    made, lines = said(tmp_path, caplog, source, bos_token="a", eos_token="<|end|>")
    assert tuple(made.get(f"{KEY}add_{kind}_token") for kind in ("bos", "eos")) == adds
    lines = [line for line in lines if "post_processor" in line]
    assert len(lines) == len(lost)
    assert all(words in line for words, line in zip(lost, lines, strict=True))


def test_a_space_before_the_first_word_alone_is_said(tmp_path, caplog, pieces):
    cut = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    source = pieces | {"normalizer": spaces}
    for scheme, adds, n_said in (("first", True, 1), ("always", True, 0), ("never", False, 0)):
        cut["prepend_scheme"] = scheme
        made, lines = said(tmp_path, caplog, source | {"pre_tokenizer": cut})
        assert made[KEY + "add_space_prefix"] is adds
        assert sum("prepend_scheme" in line for line in lines) == n_said
    cut = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": False}
    made, _ = said(tmp_path, caplog, source | {"pre_tokenizer": cut})
    assert made[KEY + "add_space_prefix"] is False


def isolating(**changed):
    source = tokenizer()
    source["pre_tokenizer"]["pretokenizers"][0] |= changed
    return source


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"post_processor": {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}},
         "an unknown way to put tokens around a text"),
        ({"decoder": {"type": "WordPiece", "prefix": "##"}}, "an unknown step of its decoder"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "CTC"}]}},
         "an unknown step of its decoder"),
        ({"model": {**tokenizer()["model"], "dropout": 0.1}}, "left out at random"),
        ({"model": {**tokenizer()["model"], "new": 1}}, "unknown field `new`"),
        ({"new": 1}, "unknown field `new`"),
        ({"added_tokens": [{"id": 0, "content": "a", "new": 1}]}, "unknown field `new`"),
        (isolating(behavior="MergedWithPrevious"), "otherwise than as they match"),
        (isolating(behavior="Removed", invert=False), "otherwise than as they match"),
        (isolating(invert=True), "otherwise than as they match"),
    ],
)  # fmt: skip
def test_what_no_model_file_can_say_is_refused(tmp_path, changed, what):
    with pytest.raises(ModelFileError, match=what):
        tokenizer_metadata(write(tmp_path, tokenizer() | changed), None)


@pytest.mark.parametrize(
    "changed",
    [
        isolating(behavior="Removed", invert=True),
        isolating(behavior="Isolated", invert=False),
        {"model": {**tokenizer()["model"], "dropout": None, "fuse_unk": True, "unk_token": "a"}},
        {"decoder": {"type": "ByteLevel", "trim_offsets": True}, "version": "1.0"},
        {"truncation": {"max_length": 8}, "padding": {"strategy": "BatchLongest"}},
    ],
)
def test_what_makes_no_difference_passes(tmp_path, caplog, changed):
    plain, _ = said(tmp_path, caplog, tokenizer())
    made, lines = said(tmp_path, caplog, tokenizer() | changed)
    assert made.keys() == plain.keys()
    assert not lines


@pytest.mark.parametrize("cut", [
    {"type": "Whitespace"},
    {"type": "Metaspace", "replacement": "_"},
    {"type": "Split", "pattern": {"Regex": " "}},
    {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}, {"type": "Digits"}]},
])  # fmt: skip
def test_pieces_are_cut_at_spaces_alone(tmp_path, pieces, cut):
    with pytest.raises(ModelFileError, match="an unknown step of its pre-tokenizer"):
        tokenizer_metadata(write(tmp_path, pieces | {"pre_tokenizer": cut}), None)
    at_spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    assert tokenizer_metadata(write(tmp_path, pieces | {"pre_tokenizer": at_spaces}), None)


def test_settings_call_tokens_special(tmp_path, caplog):
    """Transformers takes their word where tokenizer.json says otherwise."""
    source = tokenizer(4)
    source["added_tokens"] += [
        {"id": n, "content": text, "special": False} for n, text in ((4, "<a>"), (5, "<b>"))
    ] + [{"id": 6, "content": "<c>", "special": False}]
    made, lines = said(
        tmp_path,
        caplog,
        source,
        added_tokens_decoder={"4": {"content": "<a>", "special": True}},
        additional_special_tokens=["<b>"],
        model_max_length=100,
        split_special_tokens=True,
        do_lower_case=False,
    )
    assert made[KEY + "token_type"].tolist()[3:] == [CONTROL, CONTROL, CONTROL, USER]
    (line,) = lines
    assert line.endswith("a model file has no place for split_special_tokens = True")
