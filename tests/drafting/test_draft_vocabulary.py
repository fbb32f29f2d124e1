"""Counting the tokens worth drafting, and the file that holds them."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import toy

import mtpcore
from mtpcore import BatchError, DraftVocabulary, LinkError, ModelFileError


@pytest.fixture(scope="module")
def demo():
    return mtpcore.load_model("demo")


TEXT = "the king said to the queen: the king\n" * 3 + "a rare word"


def test_tokens_are_ranked_by_how_often_they_occur(demo):
    vocabulary = DraftVocabulary.of_text(demo, TEXT)
    ids = demo.tokenizer.encode(TEXT, add_special=False)
    ends = sorted(demo.tokenizer.end_tokens)
    tokens = vocabulary.tokens.tolist()
    assert tokens[: len(ends)] == ends
    assert set(tokens) == {*ids, *ends}
    rest = tokens[len(ends) :]
    assert rest == sorted(rest, key=lambda token: (-ids.count(token), token))
    assert ids.count(rest[0]) > ids.count(rest[-1])


def test_pieces_and_special_tokens_are_counted(demo):
    lines = TEXT.splitlines(keepends=True)
    whole, pieces = (DraftVocabulary.of_text(demo, text) for text in (TEXT, lines))
    assert pieces.tokens.tolist() == whole.tokens.tolist()
    special = next(t for t in range(100) if t not in demo.tokenizer.end_tokens and _marks(demo, t))
    spelled = demo.tokenizer.decode([special], special=True)
    assert special in DraftVocabulary.of_text(demo, "a" + spelled).tokens
    assert special not in DraftVocabulary.of_text(demo, "a").tokens


def _marks(model, token):
    """Whether a token is read from its spelling only where special ones are."""
    spelled = model.tokenizer.decode([token], special=True)
    read = [model.tokenizer.encode(spelled, False, special) for special in (False, True)]
    return read[1] == [token] and read[0] != [token]


def test_ids_are_taken_as_counted_elsewhere(demo):
    counted = DraftVocabulary.of_text(demo, TEXT)
    taken = DraftVocabulary.of_tokens(demo, counted.tokens.tolist())
    assert taken.tokens.tolist() == counted.tokens.tolist()
    assert taken.tokenizer == counted.tokenizer
    with pytest.raises(LinkError, match="unknown tokens"):
        DraftVocabulary.of_tokens(demo, [demo.hparams.n_vocab])
    with pytest.raises(BatchError, match="a model's tokens"):
        DraftVocabulary.of_tokens("demo", [1])


def test_no_text_leaves_the_ends(demo):
    assert DraftVocabulary.of_text(demo, "").tokens.tolist() == sorted(demo.tokenizer.end_tokens)


def test_a_file_holds_it_all(demo, tmp_path):
    made = DraftVocabulary.of_text(demo, TEXT)
    made.write(tmp_path / "few.json")
    read = DraftVocabulary.read(tmp_path / "few.json")
    assert read.tokens.tolist() == made.tokens.tolist()
    assert read.tokenizer == made.tokenizer
    read.check(demo)
    assert read.cut(5).tokens.tolist() == made.tokens[:5].tolist()
    assert len(read.cut(10**6)) == len(read)
    assert DraftVocabulary.beside(demo) == Path("demo.vocabulary.json")  # not in the package
    other = toy.load(tmp_path, toy.trunk_tensors())
    assert DraftVocabulary.beside(other).parent == other.path.parent == tmp_path


def test_another_tokenizer_is_noticed(demo, tmp_path):
    other = toy.load(tmp_path, toy.trunk_tensors())
    with pytest.raises(LinkError, match="another tokenizer"):
        DraftVocabulary.of_text(demo, TEXT).check(other)


@pytest.mark.parametrize("tokens", [[], [3, 3], [-1], [2**31], [1.5], [[1]]])
def test_what_is_no_list_of_different_ids_is_refused(tokens):
    with pytest.raises(BatchError):
        DraftVocabulary(tokens, tokenizer="")


def test_tokens_cannot_be_written_to():
    given = np.array([3, 4], np.int32)
    vocabulary = DraftVocabulary(given, tokenizer="")
    given[0] = 9
    assert vocabulary.tokens.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        vocabulary.tokens[0] = 1


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"[1, 2]",
        b"\xff\xfe",
        json.dumps({"format": "other", "tokenizer": "", "tokens": [1]}).encode(),
        json.dumps({"format": "mtpcore draft vocabulary 1", "tokens": [1]}).encode(),
        json.dumps(
            {"format": "mtpcore draft vocabulary 1", "tokenizer": "", "tokens": [1, 1]}
        ).encode(),
        json.dumps(
            {"format": "mtpcore draft vocabulary 1", "tokenizer": "", "tokens": [2**80]}
        ).encode(),
    ],
)
def test_other_files_are_refused(tmp_path, held):
    path = tmp_path / "few.json"
    path.write_bytes(held)
    with pytest.raises(ModelFileError, match="not a draft vocabulary"):
        DraftVocabulary.read(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "none" / "few.json"
    with pytest.raises(ModelFileError, match="cannot write the draft vocabulary") as caught:
        DraftVocabulary([1], tokenizer="").write(path)
    assert caught.value.where == str(path)


def test_what_a_tokenizer_has_beyond_the_model_is_left_out(demo):
    """Ends among it: some files name more tokens than the model has rows for."""

    ends = frozenset({7, demo.hparams.n_vocab})
    tokenizer = SimpleNamespace(encode=demo.tokenizer.encode, end_tokens=ends)
    more = SimpleNamespace(hparams=demo.hparams, metadata=demo.metadata, tokenizer=tokenizer)
    made = DraftVocabulary.of_text(more, TEXT)
    assert made.tokens[0] == 7
    made.check(demo)


def test_a_file_that_is_not_there_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(ModelFileError, match="mtpcore vocabulary"):
        DraftVocabulary.read(tmp_path / "none.json")
