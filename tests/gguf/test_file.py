"""Mapped files: values, conversion, splits, closing."""

import json
import logging

import gguf
import numpy as np
import pytest
from harness.fixtures import model_file

from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file

KIND = gguf.GGMLQuantizationType
NATIVE = {KIND.F32, KIND.F16, KIND.BF16, KIND.Q8_0, KIND.Q4_0, KIND.Q4_K, KIND.Q6_K}


def floats(*shape, scale=1.0):
    return (np.random.default_rng(3).standard_normal(shape) * scale).astype(np.float32)


def blocks(kind, n_rows, n_blocks):
    """Random bytes with tame scales: the float16 fields of a block are set to small numbers."""
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    found = np.random.default_rng(4).integers(0, 256, (n_rows, n_blocks, n_bytes), np.uint8)
    if gguf.GGML_QUANT_SIZES[kind][0] == 1:
        return np.zeros((n_rows, n_blocks * n_bytes), np.uint8)
    small = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    at = {KIND.Q2_K: (80, 82), KIND.Q3_K: (108,), KIND.Q5_K: (0, 2), KIND.Q4_K: (0, 2)}
    for begin in at.get(kind, (0,)):
        found[..., begin : begin + 2] = small
    return found.reshape(n_rows, -1)


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_fixture_equals_what_the_gguf_package_reads(outtype):
    path = model_file("glm-11", outtype)
    theirs = gguf.GGUFReader(path)
    with open_model_file(path) as ours:
        assert ours.architecture == "glm4moe"
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.shape == tuple(reversed(tensor.shape.tolist()))
            assert mine.type == tensor.tensor_type
            assert mine.type_name == tensor.tensor_type.name
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(mine.array(), values.reshape(mine.shape))
        for key, value in ours.metadata.items():
            expected = theirs.fields[key].contents()
            assert expected == (value.tolist() if isinstance(value, np.ndarray) else value), key


def test_types_that_numpy_stores_keep_their_values(tmp_path):
    path = tmp_path / "plain.gguf"
    tensors = {
        name: (floats(3, 5, scale=50)).astype(dtype)
        for name, dtype in {"i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8"}.items()
    }
    tensors |= {"f64": floats(3, 5), "f32": floats(2, 3, 4), "scalar": np.float32(7).reshape(())}
    write_model_file(path, "toy", {}, tensors, {"f64": "F64"})
    with open_model_file(path) as model:
        for name, values in tensors.items():
            found = model.tensors[name].array(values.dtype)
            assert found.shape == values.shape
            np.testing.assert_array_equal(found, values)
        assert model.tensors["i64"].type == KIND.I64
        assert model.tensors["f64"].type == KIND.F64
        view = model.tensors["f32"].array()
        assert not view.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ModelFileError, match="'f32'"):
            model.tensors["f32"].array(np.int64)
    np.testing.assert_array_equal(view, tensors["f32"])  # outlives the file


def test_integers_that_float32_cannot_hold_are_refused(tmp_path):
    path = tmp_path / "ids.gguf"
    write_model_file(path, "toy", {}, {"ids": np.array([1, (1 << 24) + 1], np.int64)})
    ids = open_model_file(path).tensors["ids"]
    assert ids.array(np.int64).tolist() == [1, (1 << 24) + 1]
    with pytest.raises(ModelFileError, match="too large for float32"):
        ids.array()


def test_rows_count_all_outer_axes(tmp_path):
    path = tmp_path / "rows.gguf"
    values = floats(4, 6, 64)
    write_model_file(path, "toy", {}, {"w": values}, "Q8_0")
    tensor = open_model_file(path).tensors["w"]
    assert (tensor.n_rows, tensor.row_bytes, tensor.n_bytes) == (24, 68, 24 * 68)
    assert tensor.raw().shape == (4, 6, 68)
    whole = tensor.array()
    assert np.abs(whole - values).max() < 0.02
    np.testing.assert_array_equal(tensor.rows(5, 13), whole.reshape(24, 64)[5:13])
    assert tensor.rows(3, 3).shape == (0, 64)
    for begin, end in ((-1, 2), (3, 2), (0, 25)):
        with pytest.raises(ModelFileError, match="no such rows"):
            tensor.rows(begin, end)


def test_native_types_come_as_they_are_and_others_converted(tmp_path, caplog):
    path = tmp_path / "mixed.gguf"
    tensors = {
        "q8": floats(4, 256),
        "q5": floats(4, 256),
        "q5 too": floats(2, 256),
        "q5 large": floats(2, 256, scale=1e5),
        "q5 small": floats(2, 256, scale=1e-6),
        "k5": blocks(KIND.Q5_K, 3, 2),
        "f64": floats(2, 8).astype(np.float64),
    }
    types = {"q8": "Q8_0", "q5": "Q5_0", "q5 too": "Q5_0", "q5 large": "Q5_0", "q5 small": "Q5_0"}
    write_model_file(path, "toy", {}, tensors, types | {"k5": "Q5_K", "f64": "F64"})
    model = open_model_file(path)
    kind, raw = model.tensors["q8"].native(NATIVE)
    assert kind == KIND.Q8_0
    assert not raw.flags.owndata
    wanted = {"q5": "f2", "q5 too": "f2", "q5 large": "f4", "q5 small": "f4", "k5": "f2"}
    with caplog.at_level(logging.INFO, "mtpcore"):
        for name, code in (wanted | {"f64": "f4"}).items():
            tensor = model.tensors[name]
            kind, raw = tensor.native(NATIVE)
            assert kind == {"f2": KIND.F16, "f4": KIND.F32}[code]
            found = raw.view(code)
            assert found.shape == tensor.shape
            np.testing.assert_array_equal(found, tensor.array(code))
        model.tensors["k5"].native({KIND.F32})
    said = [record.getMessage().split(": ", 1)[1] for record in caplog.records]
    assert said == [
        "Q5_0 tensors are converted to F16 at load",
        "Q5_0 tensors are converted to F32 at load",
        "Q5_K tensors are converted to F16 at load",
        "F64 tensors are converted to F32 at load",
        "Q5_K tensors are converted to F32 at load",
    ]


@pytest.mark.parametrize("kind", sorted(gguf.GGML_QUANT_SIZES))
def test_every_type_loads_or_says_that_it_cannot(kind, tmp_path):
    path = tmp_path / "any.gguf"
    write_model_file(path, "toy", {}, {"w": blocks(kind, 2, 3)}, {"w": kind})
    tensor = open_model_file(path).tensors["w"]
    assert tensor.type == kind
    assert tensor.shape == (2, 3 * gguf.GGML_QUANT_SIZES[kind][0])
    if kind in (KIND.Q8_1, KIND.Q8_K):  # intermediates
        with pytest.raises(ModelFileError, match="no conversion"):
            tensor.native(NATIVE)
        return
    kind, raw = tensor.native(NATIVE)
    assert kind in NATIVE
    assert raw.shape[0] == 2


def test_values_that_are_not_numbers_load(tmp_path):
    path = tmp_path / "nan.gguf"
    raw = np.full((2, 22 * 2), 0xFF, np.uint8)  # every scale a NaN
    write_model_file(path, "toy", {}, {"w": raw}, {"w": "Q5_0"})
    kind, values = open_model_file(path).tensors["w"].native(NATIVE)
    assert kind == KIND.F32
    assert np.isnan(values.view("f4")).all()


def test_files_that_cannot_be_opened(tmp_path):
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    fixes = {
        tmp_path / "missing.gguf": "a GGUF file that exists",
        tmp_path: "the GGUF file in it",
        empty: "give a GGUF file",
        "/dev/zero": "what a pipe brings is saved to one first",
    }
    for path, fix in fixes.items():
        with pytest.raises(ModelFileError) as error:
            open_model_file(path)
        assert str(path) in error.value.where
        assert fix in error.value.fix


def test_an_architecture_is_needed(tmp_path):
    path = tmp_path / "a.gguf"
    write_model_file(path, "toy", {}, {})
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        open_model_file(path)


def test_a_closed_file_says_so(tmp_path):
    path = tmp_path / "a.gguf"
    write_model_file(path, "toy", {}, {"w": floats(2, 4)})
    with open_model_file(path) as model:
        tensor = model.tensors["w"]
        raw = tensor.raw()
    with pytest.raises(ModelFileError, match="closed"):
        tensor.raw()
    assert raw.view("f4").sum() == floats(2, 4).sum()


@pytest.fixture
def split(tmp_path):
    """Five tensors in three parts; returns the parts' paths and the tensors."""
    tensors = {f"t{i}": floats(2, 8) + i for i in range(5)}
    write_model_file(tmp_path / "m.gguf", "toy", {"toy.n": 3}, tensors, max_tensors=2)
    return [tmp_path / f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)], tensors


def replace(path, before, after):
    assert path.read_bytes().count(before) == 1
    path.write_bytes(path.read_bytes().replace(before, after))


def test_a_split_model_is_one(split):
    paths, tensors = split
    with open_model_file(paths[0]) as model:
        assert list(model.tensors) == list(tensors)
        assert [file.path for file in model.files] == paths
        assert model.metadata["toy.n"] == 3
        for name, values in tensors.items():
            np.testing.assert_array_equal(model.tensors[name].array(), values)


def test_broken_splits(split):
    paths, _ = split
    with pytest.raises(ModelFileError, match=f"open {paths[0]}"):
        open_model_file(paths[1])
    whole = [path.read_bytes() for path in paths]

    def broken(message):
        with pytest.raises(ModelFileError, match=message):
            open_model_file(paths[0])
        for path, data in zip(paths, whole, strict=True):
            path.write_bytes(data)

    paths[2].unlink()
    broken(paths[2].name)
    paths[2].write_bytes(whole[1])  # the second part twice
    broken(r"m-00003-of-00003.gguf: metadata key 'split.no'")
    paths[1].write_bytes(whole[1][:100])
    broken("m-00002-of-00003")
    number, key = (9).to_bytes(2, "little"), b"split.count\x02\0\0\0"
    replace(paths[1], key + b"\3\0", key + number)
    broken(r"m-00002-of-00003.gguf: metadata key 'split.count'")
    replace(paths[0], key + b"\3\0", key + number)
    broken("name of a split model")
    replace(paths[0], b"split.tensors.count\x05\0\0\0\5", b"split.tensors.count\x05\0\0\0\6")
    broken(r"split\.tensors\.count.*wanted 6; got 5")
    replace(paths[1], b"\2\0\0\0\0\0\0\0t2", b"\2\0\0\0\0\0\0\0t0")
    broken("'t0': the tensor is also in m-00001")
    name = paths[0].with_name("renamed.gguf")
    name.write_bytes(whole[0])
    with pytest.raises(ModelFileError, match=r"got renamed\.gguf"):
        open_model_file(name)


def test_writing_is_deterministic_and_keeps_metadata(tmp_path):
    metadata = {
        "toy.f": 0.5,
        "toy.b": True,
        "toy.i": -3,
        "toy.u": 1 << 40,
        "toy.s": "bytes \udcff",
        "toy.list": ["a", "\udce2\udc82"],
        "toy.array": np.array([1, 2], np.int16),
        "general.alignment": 64,
    }
    for name in "ab":
        write_model_file(tmp_path / name, "toy", metadata, {"w": floats(4, 64)}, "Q4_0")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with open_model_file(tmp_path / "a") as model:
        assert json.dumps(model.metadata, default=lambda v: v.tolist()) == json.dumps(
            {"general.architecture": "toy"} | metadata, default=lambda v: v.tolist()
        )


def test_the_writer_refuses_what_does_not_fit(tmp_path):
    for values, kind in ((floats(2, 40), "Q8_0"), (floats(2, 256), "IQ2_XS"), (floats(2, 8), "Q9")):
        with pytest.raises(ModelFileError, match="tensor 'w'"):
            write_model_file(tmp_path / "x", "toy", {}, {"w": values}, kind)
    with pytest.raises(ModelFileError, match="not whole blocks"):
        write_model_file(tmp_path / "x", "toy", {}, {"w": np.zeros((2, 33), np.uint8)}, "Q8_0")
    assert not (tmp_path / "x").exists()
