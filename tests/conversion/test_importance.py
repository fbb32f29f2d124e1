"""Importance matrices: both forms of the file, and files that are none."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.conversion.importance import read_importance
from mtpcore.errors import ModelFileError
from mtpcore.gguf import write_model_file

NAME = "blk.0.ffn_down.weight"
SUMS = np.array([[6, 3, 0, 9], [1, 1, 1, 1]], np.float32)


def write_gguf(path, sums=SUMS, counts=(3, 0), said=None, **others):
    tensors = {f"{NAME}.in_sum2": sums, f"{NAME}.counts": np.array(counts, np.float32)[:, None]}
    said = {"general.type": "imatrix", "imatrix.datasets": ["a", "b"]} if said is None else said
    write_model_file(path, "", said | {"imatrix.chunk_count": 5}, tensors | others)
    return path


def old_form(n_calls=3, end=True):
    name, sums = NAME.encode(), SUMS.reshape(-1)
    made = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", n_calls, len(sums))
    made += sums.astype("<f4").tobytes()
    return made + (struct.pack("<ii", 5, 1) + b"a" if end else b"")


def test_weights_are_mean_squares(tmp_path):
    """Of a matrix that saw no rows they are 1."""
    found = read_importance(write_gguf(tmp_path / "new.gguf"))
    np.testing.assert_array_equal(found.of(NAME, (2, 7, 4)), [[2, 1, 0, 3], [1, 1, 1, 1]])
    assert found.of("blk.0.ffn_up.weight", (7, 4)) is None
    assert found.described() == {
        "quantize.imatrix.file": str(tmp_path / "new.gguf"),
        "quantize.imatrix.dataset": "a",
        "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 5,
    }


def test_the_form_before_gguf(tmp_path):
    (tmp_path / "old.dat").write_bytes(old_form())
    found = read_importance(tmp_path / "old.dat")
    np.testing.assert_array_equal(found.of(NAME, (2, 7, 4)), SUMS / 3)
    assert (found.datasets, found.n_chunks) == (("a",), 5)
    (tmp_path / "older.dat").write_bytes(old_form(n_calls=0, end=False))
    found = read_importance(tmp_path / "older.dat")
    np.testing.assert_array_equal(found.of(NAME, (2, 7, 4)), np.ones((2, 4)))
    assert "quantize.imatrix.dataset" not in found.described()


def test_weights_of_another_shape_are_refused(tmp_path):
    found = read_importance(write_gguf(tmp_path / "a.gguf"))
    with pytest.raises(ModelFileError, match="importance matrix is of another model"):
        found.of(NAME, (7, 4))
    write_gguf(tmp_path / "a.gguf", **{"token_embd.weight.in_sum2": SUMS[:1],
               "token_embd.weight.counts": np.ones((1, 1), np.float32)})  # fmt: skip
    assert read_importance(tmp_path / "a.gguf").of("token_embd.weight", (7, 8)) is None


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"sums": SUMS * np.float32(np.nan)}, "not finite, or below 0"),
        ({"sums": -SUMS}, "not finite, or below 0"),
        ({"counts": (3,)}, "different numbers of matrices"),
        ({"said": {"general.type": "model"}}, "wanted imatrix"),
        ({"said": {}}, "wanted imatrix"),
        ({"said": {"general.type": "imatrix", "imatrix.datasets": "a"}}, None),
    ],
)
def test_files_that_are_none(tmp_path, given_, words):
    write_gguf(tmp_path / "a.gguf", **given_)
    if words is None:
        assert read_importance(tmp_path / "a.gguf").datasets == ()
    else:
        with pytest.raises(ModelFileError, match=words):
            read_importance(tmp_path / "a.gguf")


def test_sums_without_counts_and_files_that_are_not_there(tmp_path):
    said = {"general.type": "imatrix"}
    write_model_file(tmp_path / "a.gguf", "", said, {f"{NAME}.in_sum2": SUMS})
    with pytest.raises(ModelFileError, match="sums without counts"):
        read_importance(tmp_path / "a.gguf")
    write_model_file(tmp_path / "a.gguf", "", said, {"other": SUMS})
    with pytest.raises(ModelFileError, match="no weights"):
        read_importance(tmp_path / "a.gguf")
    for missing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelFileError, match="cannot open the importance matrix"):
            read_importance(missing)


@searching(100)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "a"
    whole = bytearray(old_form())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(ModelFileError):
        for weights in read_importance(path).weights.values():
            assert (weights >= 0).all()
