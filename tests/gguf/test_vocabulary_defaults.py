"""What holds of a vocabulary where a file is silent, or types control tokens as ordinary text.

As llama.cpp's source has it (``llama_vocab::impl::load``), which is asked where it is installed.
"""

from typing import NamedTuple

import numpy as np
import pytest
from harness.witness import hear_vocabulary, needs_llama_cpp

from mtpcore.gguf import read_tokenizer, write_model_file
from mtpcore.gguf.vocabulary import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
LETTERS = list(byte_alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "a", "b", "▁a", "ab"]
TEXTS = ["a b", " é", "", "a<|im_end|>b", "a</s>b", "a<|im_end|> \n\u00a0b<s> \tb</s> <s>"]


class Case(NamedTuple):
    """A vocabulary and what is read of it, all spelt as texts with spaces between."""

    given: dict
    begin: str = ""  # what is put before a text, and after it
    end: str = ""
    middle: str = "a Ġ b"  # of "a b"
    ends: str = ""  # of a generation
    control: str = ""
    apart: str = ""  # why it is not read as llama.cpp reads it


def keys(tokens, model, types, **more):
    found = {"model": model, "tokens": tokens} | more
    if types is not None:
        found["token_type"] = np.array(types, np.int32)
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}


def letters(*names, types=None, **more):
    kinds = None if types is None else [NORMAL] * 257 + list(types)
    more = {"pre": "gpt-2", "merges": ["a b"]} | more
    return keys([*LETTERS, "ab", *names], "gpt2", kinds, **more)


def pieces(model="llama", typed=True, first=("<unk>", "<s>", "</s>"), **more):
    tokens = [*first, *BYTES, *PIECES]
    types = [UNKNOWN, *[CONTROL] * 4][: len(first)] + [BYTE] * 256 + [NORMAL] * len(PIECES)
    scores = -np.arange(len(tokens), dtype=np.float32)
    return keys(tokens, model, types if typed else None, **({"scores": scores} | more))


def unigram(**more):
    tokens, types = ["<pad>", "</s>", "<unk>", *PIECES], [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * 5]
    return keys(tokens, "t5", types, scores=-np.arange(8, dtype=np.float32), **more)


def named(*names, kind=NORMAL, **more):
    return letters(*names, types=[kind] * len(names), eos_token_id=257, **more)


ELEVEN = "token 11 is BOS and EOS there where a file names none: Falcon's, and here a comma"
HTML = "</s> always ends there; in Qwen's vocabularies and others it is HTML, and stays so here"
HARMONY = "there <|end|> and marks of channels become ordinary text, which any text may contain"
SPM = {"middle": "▁a ▁ b", "ends": "</s>"}
CASES = {
    "pieces": Case(pieces(), "<s>", control="<s> </s>", **SPM),
    "pieces without types": Case(pieces(typed=False), "<s>", control="</s>", **SPM),
    "pieces without control tokens": Case(
        pieces(first=()), "<0x01>", middle="▁a ▁ b", ends="<0x02>"
    ),
    "pieces that say otherwise": Case(
        pieces(add_bos_token=False, add_eos_token=True, add_space_prefix=False),
        *("", "</s>", "a ▁ b", "</s>", "<s> </s>"),
    ),
    "pieces of Phi-3": Case(
        pieces(first=("<unk>", "<s>", "</s>", "<|im_end|>", "<|endoftext|>"))
        | {"general.name": "My Phi3 model"},
        *("<s>", "", "▁a ▁ b"),
        *("</s> <|im_end|> <|endoftext|>", "<s> </s> <|im_end|> <|endoftext|>"),
    ),
    "merged pieces": Case(
        pieces("gemma4", scores=None, merges=["▁ a"], bos_token_id=1),
        *("<s>", "", "a ▁ b", "</s>", "<s> </s>"),
    ),
    "merged pieces that ask for a space": Case(
        pieces("gemma4", scores=None, merges=["▁ a"], bos_token_id=1, add_space_prefix=True),
        *("<s>", "", "a ▁ b", "</s>", "<s> </s>"),
    ),
    "pieces with ids of -1": Case(
        pieces(eos_token_id=2**32 - 1, unknown_token_id=2**32 - 1),
        *("<s>", "", "▁a ▁ b", "</s>", "<s> </s>"),
    ),
    "unigram": Case(unigram(), "", "</s>", "a ▁ b", "</s>", "<pad> </s>"),
    "bytes": Case(letters(), apart=ELEVEN),
    "bytes after BOS": Case(
        letters("<s>", types=[CONTROL], pre="llama-bpe", bos_token_id=257, eos_token_id=257),
        *("<s>", "", "a Ġ b", "<s>", "<s>"),
    ),
    "an end without types": Case(
        letters("<|im_end|>", eos_token_id=257), ends="<|im_end|>", control="<|im_end|>"
    ),
    "</s> that the file ends with": Case(named("</s>"), ends="</s>", control="</s>"),
    "</s> that is HTML": Case(named("<eos>", "</s>"), ends="<eos>", control="<eos>", apart=HTML),
    "</s> beside <|tool_response>": Case(
        named("<eos>", "</s>", "<|tool_response>"),
        ends="<eos> <|tool_response>",
        control="<eos> <|tool_response>",
    ),
    "turns that go on": Case(
        named("<|return|>", "<|call|>", "<|end|>"),
        ends="<|return|> <|call|>",
        control="<|return|> <|call|> <|end|>",
        apart=HARMONY,
    ),
    "calls that are flushed": Case(
        named("<|flush|>", "<|calls|>", "<|end|>"),
        ends="<|flush|> <|calls|>",
        control="<|flush|> <|calls|> <|end|>",
        apart=HARMONY,
    ),
    "what fills in the middle": Case(
        named(
            "<eos>", "<fim_prefix>", "<SUF>", "<|middle|>", "[PAD]", "<reponame>", "<|file_sep|>"
        ),
        ends="<eos> [PAD] <reponame> <|file_sep|>",
        control="<eos> <fim_prefix> <SUF> <|middle|> [PAD] <reponame> <|file_sep|>",
    ),
    "what fills in the middle, by its key": Case(
        named("<eos>", "<PAD>", "x1", "<PRE>", "x2", fim_pad_token_id=259, prefix_token_id=261),
        ends="<eos> x1",
        control="<eos>",
    ),
}
for kind in (NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE):
    CASES[f"an end of type {kind}"] = Case(
        named("<|im_end|>", kind=kind), ends="<|im_end|>", control="<|im_end|>"
    )


def read_case(case):
    """Return what of it is read: the ends, the control tokens, and the tokens of each text."""
    tokenizer = read_tokenizer(case.given)
    types = tokenizer.vocabulary.types
    control = {token for token, kind in enumerate(types) if kind == CONTROL}
    return tokenizer.end_tokens, control, [tokenizer.encode(t, parse_special=True) for t in TEXTS]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_silent_files_are_read_as_llama_cpp_reads_them(case):
    tokens = case.given["tokenizer.ggml.tokens"]
    spelt = lambda found: [tokens[token] for token in sorted(found)]  # noqa: E731
    ends, control, ids = read_case(case)
    assert (spelt(ends), spelt(control)) == (case.ends.split(), case.control.split())
    around = f"{case.begin} {case.middle} {case.end}"
    assert [tokens[token] for token in ids[0]] == around.split()


@needs_llama_cpp
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_llama_cpp_reads_the_same(case, tmp_path):
    write_model_file(tmp_path / "it.gguf", "llama", case.given, {})
    heard = hear_vocabulary(tmp_path / "it.gguf", TEXTS)
    control = {token for token, bits in enumerate(heard["attributes"]) if bits & 8}
    assert ((set(heard["ends"]), control, heard["ids"]) == read_case(case)) is (not case.apart)


def test_an_end_of_turn_that_a_file_types_as_text_is_found_in_texts_on_request(caplog):
    tokenizer = read_tokenizer(named("<|im_end|>"))
    assert tokenizer.encode("a<|im_end|>", parse_special=True)[1:] == [257]
    assert 257 not in tokenizer.encode("a<|im_end|>")
    assert tokenizer.decode([257]) == ""
    assert tokenizer.decode([257], special=True) == "<|im_end|>"
    (said,) = caplog.records
    assert "'<|im_end|>' (257)" in said.getMessage()


def test_types_that_differ_in_nothing_that_texts_show_are_not_spoken_of(caplog):
    read_tokenizer(named("<|im_end|>", "<tool>", kind=USER))
    assert not caplog.records


@pytest.mark.parametrize(("more", "shown"), [({}, "<unk>"), ({"unknown_token_id": 7}, "ab")])
def test_unknown_characters_are_the_unknown_token(more, shown):
    tokenizer = read_tokenizer(unigram(**more))
    assert [tokenizer.vocabulary.tokens[t] for t in tokenizer.encode("aé")] == ["a", shown, "</s>"]


def test_tokens_that_spell_bytes_are_bytes_where_no_token_has_a_type():
    tokenizer = read_tokenizer(pieces(typed=False))
    assert tokenizer.decode(tokenizer.encode("aéb", add_special=False)) == "aéb"


def test_tokens_of_phi_3_take_the_spaces_after_them():
    tokenizer = read_tokenizer(CASES["pieces of Phi-3"].given)
    spelt = lambda text: [  # noqa: E731
        tokenizer.vocabulary.tokens[token] for token in tokenizer.encode(text, parse_special=True)
    ]
    assert spelt("<|im_end|> \n b</s>\t<s> b") == [
        *("<s>", "<|im_end|>", "▁", "b", "</s>", "<s>", "▁", "▁", "b")
    ]
