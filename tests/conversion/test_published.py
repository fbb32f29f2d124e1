"""Reading checkpoints: types, several files, files that are wrong."""

import json
import logging
import os

import numpy as np
import pytest
from harness.published import Raw, bf16, save_tensors, small_config, small_tensors, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.conversion.published import read_tensors
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

FLOATS = np.array([[0.0, -1.5, 3.0e38], [np.inf, np.nan, 1e-30]], np.float32)


def test_types_keep_their_values(tmp_path):
    tensors = {
        "f32": FLOATS,
        "f16": np.full((2, 3), 0.25, "f2"),
        "f64": FLOATS[:, :2].astype("f8"),
        "i64": np.array([1 << 40, -3]),
        "i32": np.array([[7]], np.int32),
        "bool": np.array([True, False]),
        "scalar": np.float32(2).reshape(()),
        "bf16": bf16(FLOATS),
        "f8": Raw("F8_E4M3", np.array([0x38, 0xB8], np.uint8)),
    }
    save_tensors(tmp_path / "model.safetensors", tensors)
    found = read_tensors(tmp_path)
    assert list(found) == list(tensors)
    for name in ("f32", "f64", "i64", "i32", "bool", "scalar"):
        values = found[name].rows()
        assert values.shape == tensors[name].shape
        np.testing.assert_array_equal(values, tensors[name].astype(values.dtype))
    assert found["i64"].rows().dtype == np.int64
    assert found["bf16"].rows().dtype == np.float32
    np.testing.assert_allclose(found["bf16"].rows(), FLOATS, rtol=2.0**-7)
    assert found["f8"].rows().tolist() == [1.0, -1.0]


def test_rows_are_read_by_themselves(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    save_tensors(tmp_path / "model.safetensors", {"a": values, "b": values + 1})
    np.testing.assert_array_equal(read_tensors(tmp_path)["b"].rows(2, 5), values[2:5] + 1)


@pytest.mark.parametrize(
    "named", ["../b.safetensors", "/b.safetensors", "", "..", 3, None, "c.json"]
)
def test_a_name_that_leads_nowhere_is_passed_over(tmp_path, named):
    """What the configuration calls the weights goes before others, if it is there."""
    folder = tmp_path / "hf"
    folder.mkdir()
    for path in (folder / "a.safetensors", tmp_path / "b.safetensors"):
        save_tensors(path, {path.stem: np.zeros(3, np.float32)})
    assert list(read_tensors(folder, named)) == ["a"]
    save_tensors(folder / "d.safetensors", {"d": np.zeros(3, np.float32)})
    assert list(read_tensors(folder, "d.safetensors")) == ["d"]


def test_equality_is_of_bytes(tmp_path):
    values = np.arange(1 << 19, dtype=np.float32) % 99
    other = values.copy()
    other[-1] = 0
    tensors = {"a": values, "b": values.copy(), "c": other, "d": values.astype("f2")}
    save_tensors(tmp_path / "model.safetensors", tensors)
    found = read_tensors(tmp_path)
    assert found["a"].equals(found["b"])
    assert not found["a"].equals(found["c"])
    assert not found["a"].equals(found["d"])


def test_several_files_with_an_index_are_one_checkpoint(tmp_path, caplog):
    config, tensors = small_config(), small_tensors(small_config())
    write_checkpoint(tmp_path / "one", config, tensors)
    write_checkpoint(tmp_path / "three", config, tensors, n_files=3)
    save_tensors(tmp_path / "three" / "consolidated.safetensors", tensors)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(tmp_path / "three", tmp_path / "three.gguf")
    assert "consolidated.safetensors is not in the index" in caplog.text
    convert(tmp_path / "one", tmp_path / "one.gguf")
    with (
        open_model_file(tmp_path / "one.gguf") as one,
        open_model_file(tmp_path / "three.gguf") as three,
    ):
        assert one.tensors.keys() == three.tensors.keys()
        for name, tensor in one.tensors.items():
            np.testing.assert_array_equal(tensor.raw(), three.tensors[name].raw())


def test_the_whole_model_in_one_file_is_read_alone(tmp_path, caplog):
    """As transformers does; Mistral's have the same tensors, by other names, beside it."""
    write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    other = {"layers.0.attention.wq.weight": np.zeros((4, 4), np.float32)}
    save_tensors(tmp_path / "hf" / "consolidated.safetensors", other)
    assert set(read_tensors(tmp_path / "hf")) == set(small_tensors(small_config()))
    assert "consolidated.safetensors is beside the whole model" in caplog.text


def test_pieces_of_any_size_give_the_same_file(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    convert(tmp_path / "hf", tmp_path / "whole.gguf", outtype="q8_0")
    monkeypatch.setattr("mtpcore.conversion.values._PIECE", 100)
    convert(tmp_path / "hf", tmp_path / "pieces.gguf", outtype="q8_0")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


def test_a_file_of_the_index_is_missing(tmp_path):
    write_checkpoint(tmp_path, small_config(), small_tensors(small_config()), n_files=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.safetensors: a file"):
        read_tensors(tmp_path)


def test_a_tensor_of_the_index_is_in_no_file(tmp_path):
    write_checkpoint(tmp_path, small_config(), small_tensors(small_config()), n_files=2)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    lost = [f"model.lost.{n:02}" for n in range(60)]
    index["weight_map"] |= dict.fromkeys(lost, "model-00001-of-00002.safetensors")
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="in no file") as error:
        read_tensors(tmp_path)
    assert error.value.got == ", ".join(lost)


def test_a_tensor_in_two_files(tmp_path):
    for name in ("a", "b"):
        save_tensors(tmp_path / f"{name}.safetensors", {"twice": FLOATS})
    with pytest.raises(ModelFileError, match=r"also in a\.safetensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not a safetensors file"),
        (b"GGUF" + bytes(100), "not a safetensors file"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "not a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0{]", "not a safetensors file"),
    ],
)
def test_other_files_are_refused(tmp_path, data, what):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError, match=what):
        read_tensors(tmp_path)


def test_damaged_files_are_refused_or_read(tmp_path):
    """Flip bytes of the header: an error of ours, or tensors that can be read, nothing else."""
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"a": FLOATS, "b": np.arange(3)})
    whole, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.integers(0, 150)] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            for tensor in read_tensors(tmp_path).values():
                tensor.rows()
        except ModelFileError:
            refused += 1
    assert refused > 100


def test_types_without_a_conversion_are_named(tmp_path):
    save_tensors(tmp_path / "model.safetensors", {"a": Raw("F8_E5M2", np.zeros(4, np.uint8))})
    with pytest.raises(ModelFileError, match=r"tensor 'a'.*got F8_E5M2"):
        read_tensors(tmp_path)


def test_a_folder_without_tensors(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"no tensors.*pytorch_model\.bin"):
        read_tensors(tmp_path)


def test_values_beyond_f16_are_warned_of(tmp_path, caplog):
    tensors = small_tensors(small_config())
    tensors["lm_head.weight"][3, 4] = 1e6
    write_checkpoint(tmp_path / "hf", small_config(), tensors)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f16")
    assert "output.weight: 1 values are too large for F16" in caplog.text
    caplog.clear()
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="bf16")
    assert "too large" not in caplog.text


def test_bf16_stays_bf16(tmp_path):
    tensors = {name: bf16(values) for name, values in small_tensors(small_config()).items()}
    write_checkpoint(tmp_path / "hf", small_config(), tensors)
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="bf16")
    with open_model_file(tmp_path / "model.gguf") as file:
        found = file.tensors["blk.0.ffn_up.weight"]
        assert found.type_name == "BF16"
        stored = found.raw().reshape(-1).view(np.uint16)
        bits = tensors["model.layers.0.mlp.up_proj.weight"].bits
        np.testing.assert_array_equal(stored, bits.reshape(-1))


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "..", ".", "", "a\0b", "sub/model.safetensors"]
)
def test_an_index_names_files_of_its_folder_only(tmp_path, name):
    write_checkpoint(tmp_path, small_config(), small_tensors(small_config()), n_files=2)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelFileError, match="outside its folder"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": 3}, {"weight_map": {"a": 3}}])
def test_a_malformed_index(tmp_path, index):
    write_checkpoint(tmp_path, small_config(), small_tensors(small_config()), n_files=2)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"index\.json: malformed"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing", "/dev/zero"])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "additional_chat_templates/x.jinja",
        "README.md",
    ],
)
def test_only_regular_files_of_a_folder_are_read(tmp_path, name, kind):
    """Nothing waits for a pipe or reads a device; optional files may be missing."""
    folder = write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    (folder / "chat_template.jinja").write_text("")
    (folder / "tokenizer_config.json").write_text("{}")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "/dev/zero" else "nowhere")
    if kind == "link to nothing" and path.name in _MAY_BE_MISSING:
        convert(folder, tmp_path / "model.gguf")
        return
    with pytest.raises(ModelFileError) as error:
        convert(folder, tmp_path / "model.gguf")
    assert error.value.where == str(path)


_MAY_BE_MISSING = ("tokenizer_config.json", "generation_config.json", "README.md")


def test_a_file_that_becomes_shorter_meanwhile(tmp_path):
    folder = write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))

    def cut(done, total):
        os.truncate(folder / "model.safetensors", 5000)

    with pytest.raises(ModelFileError, match="has become shorter"):
        convert(folder, tmp_path / "model.gguf", report=cut)
    assert not (tmp_path / "model.gguf").exists()


def test_a_file_may_not_be_endless(tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    for name in ("README.md", "config.json"):
        with open(folder / name, "ab") as file:
            file.truncate(1 << 40)  # takes no room
        with pytest.raises(ModelFileError, match="too long") as error:
            convert(folder, tmp_path / "model.gguf")
        assert error.value.where == str(folder / name)
