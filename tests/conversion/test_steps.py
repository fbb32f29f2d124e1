"""Every field of every step that the ``tokenizers`` library has: read, refused, or harmless.

The steps are those of the library that is installed, as it writes them.
"""

import inspect
import json
from itertools import product

import pytest
from harness.published import QWEN_2_PATTERN, tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as post_processors

from mtpcore.conversion.tokenizer import tokenizer_metadata
from mtpcore.conversion.tokenizer_json import READ, STEPS
from mtpcore.errors import ModelFileError

SPACE = "\u2581"
PARTS = {
    "normalizer": normalizers,
    "pre_tokenizer": pre_tokenizers,
    "post_processor": post_processors,
    "decoder": decoders,
}
ABSTRACT = {"Normalizer", "PreTokenizer", "PostProcessor", "Decoder", "DecodeStream"}
GIVEN = {
    "Prepend": (SPACE,),
    "Replace": (" ", SPACE),
    ("decoder", "Replace"): (SPACE, " "),
    "CharDelimiterSplit": ("x",),
    "Split": (" ", "isolated"),
    "Sequence": ([],),
    "BertProcessing": (("b", 1), ("a", 0)),
    "RobertaProcessing": (("b", 1), ("a", 0)),
    "TemplateProcessing": ("a $0", None, [("a", 0)]),
    ("pre_tokenizer", "Metaspace"): (SPACE,),
    ("decoder", "Metaspace"): (SPACE,),
    ("decoder", "Strip"): (" ", 1, 0),
}
WRITTEN = {"Precompiled": {"type": "Precompiled", "precompiled_charsmap": ""}}
"""What the library makes of bytes alone."""
CHANGED = {
    # Fields that earlier versions wrote besides.
    ("pre_tokenizer", "Metaspace"): {"add_prefix_space": True, "str_rep": SPACE},
    # As in tokenizers that a model file can hold.
    ("pre_tokenizer", "ByteLevel"): {"add_prefix_space": False},
    ("pre_tokenizer", "Digits"): {"individual_digits": True},
    ("pre_tokenizer", "Split"): {"pattern": {"Regex": QWEN_2_PATTERN}},
}
"""What is not as the library writes it by default."""


def step(part, name):
    """Return a step as the library writes it."""
    if name in WRITTEN:
        return WRITTEN[name]
    made = Tokenizer(models.BPE())
    given = GIVEN.get((part, name), GIVEN.get(name, ()))
    setattr(made, part, getattr(PARTS[part], name)(*given))
    return json.loads(made.to_str())[part] | CHANGED.get((part, name), {})


ALL = [
    (part, name)
    for part, module in PARTS.items()
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and name not in ABSTRACT
]


def byte_level():
    source = tokenizer()
    source["pre_tokenizer"] = step("pre_tokenizer", "ByteLevel")
    return source


def pieces():
    made = tokenizer()
    vocab = {"<unk>": 0, "a": 1, SPACE: 2, f"{SPACE}a": 3}
    made["model"] = {"type": "BPE", "vocab": vocab, "merges": [f"{SPACE} a"],
                     "byte_fallback": True, "unk_token": "<unk>"}  # fmt: skip
    return made | {"added_tokens": [], "pre_tokenizer": None}


def unigram():
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), (f"{SPACE}a", -2.0)], unk_id=0))
    made.add_special_tokens([AddedToken("b", special=True)])
    return json.loads(made.to_str())


BASES = (byte_level, pieces, unigram)


def before_byte_level(part, made):
    """Return a step where it may stand: what cuts words before what spells bytes."""
    if part != "pre_tokenizer" or made["type"] in ("Sequence", "ByteLevel"):
        return made
    spells = {"type": "ByteLevel", "add_prefix_space": False,
              "use_regex": made["type"] == "Digits"}  # fmt: skip
    return {"type": "Sequence", "pretokenizers": [made, spells]}


def outcome(folder, caplog, base, part, made):
    """Return the metadata and the warnings of a tokenizer, None where it is refused."""
    caplog.clear()
    source = base()
    source[part] = before_byte_level(part, made) if base is byte_level else made
    (folder / "tokenizer.json").write_text(json.dumps(source))
    try:
        metadata = tokenizer_metadata(folder, None)
    except ModelFileError:
        return None
    return repr(metadata), caplog.text


def test_the_steps_that_pass_are_the_library_s():
    assert {(part, name) for part, known in STEPS.items() for name in known} <= {*ALL}


@pytest.mark.parametrize(("part", "name"), ALL)
def test_fields_are_accounted_for(tmp_path, caplog, part, name):
    """Of a step that is not known there is nothing to account for: it is refused."""
    made = step(part, name)
    found = {base: outcome(tmp_path, caplog, base, part, made) for base in BASES}
    if name not in STEPS[part]:
        assert not any(found.values())
        return
    assert {*made} - {"type"} <= {*STEPS[part][name]}
    for base in BASES:
        assert outcome(tmp_path, caplog, base, part, made | {"strange": 1}) is None


OTHERS = {
    "pattern": [{"String": "x"}, {"Regex": "x"}],
    "single": [[{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "a"}}]],
    "special_tokens": [{"a": {"id": "a", "ids": [9], "tokens": ["a"]}}],
    "prepend_scheme": ["never", "first"],
    "behavior": ["MergedWithNext"],
    "precompiled_charsmap": ["AAAA", "?"],
    "cls": [["b", 1]],
    "sep": [["a", 0]],
}


def others(field, value):
    """Return other values of a field."""
    if field in OTHERS:
        return OTHERS[field]
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int) else ["x"]


READ_FIELDS = [
    (part, name, field)
    for part, known in STEPS.items()
    for name, fields in known.items()
    for field, why in fields.items()
    if why == READ and name != "Sequence"
]


@pytest.mark.parametrize(("part", "name", "field"), READ_FIELDS)
def test_another_value_of_a_field_that_is_read_makes_a_difference(
    tmp_path, caplog, part, name, field
):
    """In the metadata, a warning, or that it is refused, with some kind of vocabulary."""
    made = step(part, name)
    differs = [
        outcome(tmp_path, caplog, base, part, made | {field: other}) != plain
        for base, other in product(BASES, others(field, made[field]))
        if (plain := outcome(tmp_path, caplog, base, part, made))
    ]
    assert any(differs)


@pytest.mark.parametrize(
    ("part", "made", "what"),
    [
        ("decoder", {"type": "Strip", "content": " ", "start": 2, "stop": 0}, "decoder"),
        ("decoder", {"type": "Strip", "content": "_", "start": 1, "stop": 0}, "decoder"),
        ("decoder", {"type": "Metaspace", "replacement": "_"}, "decoder"),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "x"},
         "normalizer"),
        ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True}, "Strip"),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": SPACE, "fraction": 0.5},
         "Metaspace: fraction"),
        ("post_processor", {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"a": {"ids": [2]}}}, "other tokens are put around"),
    ],
)  # fmt: skip
def test_what_was_passed_over_is_refused(tmp_path, part, made, what):
    source = unigram()
    source[part] = made
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    with pytest.raises(ModelFileError, match=what):
        tokenizer_metadata(tmp_path, None)


def test_tokens_that_roberta_puts_around_a_text_are_said(tmp_path, caplog):
    source = byte_level() | {"post_processor": step("post_processor", "RobertaProcessing")}
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    tokenizer_metadata(tmp_path, None)
    assert "put before a text" in caplog.text
    assert "put after a text" in caplog.text
