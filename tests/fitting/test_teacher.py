"""The teacher's rows, and the files in which they wait for the next fit."""

import numpy as np
import pytest

import mtpcore
from mtpcore.errors import LinkError, ModelFileError
from mtpcore.fitting.teacher import Teacher, output_rows
from mtpcore.fitting.written_texts import Writer

TAPS = ("layer_input:2", "layer_input:5")
WINDOW = 48


@pytest.fixture(scope="module")
def target():
    with mtpcore.load_model("demo:eagle3", sidecars=False) as model:
        yield model


@pytest.fixture(scope="module")
def pieces():
    random = np.random.default_rng(0)
    return [random.integers(5, 2000, n).astype(np.int32) for n in (48, 17, 30)]


def rows_of(model, tokens):
    context = mtpcore.Context(model, 64, taps=("hidden", *TAPS), threads=1)
    out = context.process(mtpcore.Batch.of(tokens, outputs="all"))
    return out, np.concatenate([out.tap(tap) for tap in TAPS], axis=1)


def test_a_shard_has_the_rows_of_each_piece_alone(target, pieces, tmp_path):
    shard = Teacher(target, TAPS, tmp_path, WINDOW, threads=1).read(pieces)
    assert np.array_equal(shard.tokens, np.concatenate(pieces))
    table = target.tensors["output.weight"].array()
    for i, piece in enumerate(pieces):
        rows = shard.read(i)
        out, taps = rows_of(target, piece)
        assert np.array_equal(rows.tokens, piece)
        assert np.array_equal(rows.taps, taps.astype(np.float16))
        # With the output matrix they are the model's own distributions.
        assert np.abs(rows.hidden.astype(np.float32) @ table.T - out.logits).max() < 0.1


def test_rows_are_read_once(target, pieces, tmp_path, monkeypatch):
    first = Teacher(target, TAPS, tmp_path, WINDOW, threads=1).read(pieces)
    again = Teacher(target, TAPS, tmp_path, WINDOW, threads=1)
    monkeypatch.setattr(again, "_process", None)
    shard = again.read(pieces)
    assert shard.path == first.path
    assert np.array_equal(shard.begins, first.begins)


@pytest.mark.parametrize("change", ["taps", "pieces", "cut"])
def test_other_rows_are_another_shard(target, pieces, tmp_path, change):
    first = Teacher(target, TAPS, tmp_path, WINDOW, threads=1).read(pieces)
    taps = TAPS[:1] if change == "taps" else TAPS
    if change == "pieces":
        pieces = pieces[::-1]
    if change == "cut":  # the same tokens, of which others begin anew
        pieces = [pieces[0], np.concatenate(pieces[1:])]
    assert Teacher(target, taps, tmp_path, WINDOW, threads=1).read(pieces).path != first.path


def test_logits_that_no_matrix_makes_are_refused(target, pieces, tmp_path, monkeypatch):
    teacher = Teacher(target, TAPS, tmp_path, WINDOW, threads=1)
    vocabulary = np.arange(0, 2000, 3)
    teacher.check_output(pieces[0], vocabulary)
    monkeypatch.setattr(
        "mtpcore.fitting.teacher.output_rows", lambda *args: output_rows(*args) * 1.5
    )
    with pytest.raises(LinkError, match="not the product"):
        teacher.check_output(pieces[0], vocabulary)


@pytest.mark.parametrize("place", [9, -1, "cut", "empty"])
def test_damage_is_refused(target, pieces, tmp_path, place):
    teacher = Teacher(target, TAPS, tmp_path, WINDOW, threads=1)
    path = teacher.read(pieces).path
    data = bytearray(path.read_bytes())
    if isinstance(place, int):
        data[place] ^= 1
    else:
        del data[0 if place == "empty" else len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"damaged[\s\S]*delete the file"):
        teacher.read(pieces)
    path.unlink()
    assert len(teacher.read(pieces).tokens) == sum(map(len, pieces))


def test_the_model_writes_the_same_again_and_reads_what_it_wrote(
    target, pieces, tmp_path, monkeypatch
):
    texts = Writer(target, pieces, tmp_path / "a", WINDOW, 5, threads=1).write(1)
    assert len(texts) == 16
    assert all(len(text) <= WINDOW for text in texts)
    again = Writer(target, pieces, tmp_path / "b", WINDOW, 5, threads=1)
    assert [text.tolist() for text in again.write(1)] == [text.tolist() for text in texts]
    assert [text.tolist() for text in again.write(0)] != [text.tolist() for text in texts]
    stored = Writer(target, pieces, tmp_path / "a", WINDOW, 5, threads=1)
    monkeypatch.setattr("mtpcore.fitting.written_texts.Generator", None)
    assert [text.tolist() for text in stored.write(1)] == [text.tolist() for text in texts]
