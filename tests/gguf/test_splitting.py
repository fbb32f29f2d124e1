"""Parts of model files: llama.cpp's, by bytes (``tools/llama_cpp_splits.py``)."""

import numpy as np
import pytest
from harness.splits import CASES, WAYS, digest, kept, write

from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.splitting import join_parts, plan_parts, split_file


@pytest.mark.parametrize("case", CASES)
def test_parts_and_what_they_join_to_are_those_of_gguf_split(tmp_path, case):
    model, wanted = write(case, tmp_path / "model.gguf"), kept()
    for way, (_, asked) in WAYS.items():
        split, joined = (tmp_path / f"{way}-{name}" for name in ("split", "joined"))
        split.mkdir()
        joined.mkdir()
        parts = split_file(model, split / "x", **asked)
        assert [part.path for part in parts] == sorted(split.iterdir())
        assert digest(split) == wanted[f"split/{case}/{way}"], way
        join_parts(parts[0].path, joined / "x.gguf")
        assert digest(joined) == wanted[f"joined/{case}/{way}"], way


def test_a_split_model_is_the_whole_one(tmp_path):
    model = write("experts", tmp_path / "model.gguf")
    first = split_file(model, tmp_path / "x.gguf", max_tensors=5)[0].path
    with open_model_file(model) as one, open_model_file(first) as other:
        assert list(one.tensors) == list(other.tensors)
        for name, tensor in one.tensors.items():
            assert np.array_equal(tensor.raw(), other.tensors[name].raw())


@pytest.mark.parametrize(
    ("sizes", "asked", "wanted"),
    [
        ([1] * 3, {}, [3]),
        ([1] * 129, {}, [128, 1]),
        ([1] * 4, {"max_tensors": 2}, [2, 2]),
        ([1] * 4, {"max_tensors": 2, "empty_first": True}, [0, 2, 2]),
        ([32, 32, 33, 1], {"max_bytes": 96}, [2, 2]),
        ([32, 500, 32], {"max_bytes": 96}, [1, 1, 1]),
        ([33, 33], {"max_bytes": 96}, [1, 1]),
        ([], {}, [0]),
    ],
)
def test_which_tensors_go_where(sizes, asked, wanted):
    parts = plan_parts(sizes, **asked)
    assert [len(part) for part in parts] == wanted
    assert [i for part in parts for i in part] == list(range(len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "asked", "said"),
    [
        ([1], {"max_tensors": 1, "max_bytes": 1}, "two limits"),
        ([1], {"max_tensors": 0}, "at least one tensor"),
        ([1], {"max_bytes": -1}, "at least one tensor"),
        ([100], {"max_bytes": 96}, "first tensor is larger"),
        ([1] * 70000, {"max_tensors": 1}, "too many parts"),
    ],
)
def test_plans_that_are_refused(sizes, asked, said):
    with pytest.raises(ModelFileError, match=said):
        plan_parts(sizes, **asked)


def test_what_cannot_be_split_or_joined(tmp_path):
    model = write("dense", tmp_path / "model.gguf")
    first = split_file(model, tmp_path / "x", max_tensors=50)[0].path
    there = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ModelFileError, match="split already"):
        split_file(first, tmp_path / "y")
    with pytest.raises(ModelFileError, match="is not split"):
        join_parts(model, tmp_path / "y.gguf")
    with pytest.raises(ModelFileError, match="one of those to read"):
        join_parts(first, first)
    with pytest.raises(ModelFileError, match="cannot write"):
        join_parts(first, tmp_path / "none" / "y.gguf")
    with pytest.raises(ModelFileError, match="cannot write"):
        split_file(model, tmp_path / "none" / "y", max_tensors=50)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == there
    (tmp_path / "x-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelFileError, match="a part of the split model is missing"):
        join_parts(first, tmp_path / "y.gguf")


def test_another_alignment_is_left_out(tmp_path):
    """gguf-split keeps the key and writes at multiples of 32: its file cannot be read."""
    path = tmp_path / "model.gguf"
    values = {f"{i}.weight": np.arange(5 + i, dtype=np.float32) for i in range(4)}
    write_model_file(path, "llama", {"general.alignment": 256}, values)
    first = split_file(path, tmp_path / "x", max_tensors=3)[0].path
    with open_model_file(first) as file:
        assert "general.alignment" not in file.metadata
        for name, wanted in values.items():
            assert np.array_equal(file.tensors[name].raw().view(np.float32).ravel(), wanted)


def test_a_dry_run_writes_nothing(tmp_path):
    model = write("dense", tmp_path / "model.gguf")
    parts = split_file(model, tmp_path / "x", max_tensors=50, dry_run=True)
    assert [len(part.tensors) for part in parts] == [50, 34]
    assert list(tmp_path.iterdir()) == [model]
