"""Blocks of every quantised type are the values that ggml makes of them."""

from pathlib import Path

import numpy as np
import pytest

from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.stream import StreamedFile, StreamedTensor, stream_model_files
from mtpcore.gguf.types import BLOCKS, F16, F32, block_type, dequantize, is_float, type_name

DATA = np.load(Path(__file__).parents[1] / "data" / "llama_cpp" / "values.npz")
NAMES = [key.removeprefix("blocks/") for key in DATA if key.startswith("blocks/")]
NEW = ("Q1_0", "Q2_0")


@pytest.mark.parametrize("name", NAMES)
def test_values_equal_those_of_ggml(name):
    kind = block_type(name)
    assert (type_name(kind), is_float(kind)) == (name, True)
    made = dequantize(DATA[f"blocks/{name}"], kind)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, DATA[f"values/{name}"])


def test_every_type_that_ggml_has_values_of_is_known():
    assert len(NAMES) == 25
    assert [block_type(name) for name in NEW] == [41, 42]


@pytest.mark.parametrize("name", [*NEW, "NVFP4"])
def test_blocks_pass_through_files_and_are_converted(name, tmp_path):
    path, blocks = tmp_path / "it.gguf", DATA[f"blocks/{name}"]
    # Scales that are finite and suit float16, so that nothing is lost in it.
    whole = blocks.reshape(-1, BLOCKS[block_type(name)][1]).copy()
    whole[:, :4] = (0x30, 0x38, 0x41, 0x2F) if name == "NVFP4" else (0, 0x2A, 1, 2)
    blocks = whole.reshape(blocks.shape)
    write_model_file(path, "toy", {}, {"w": blocks}, {"w": name})
    shape = DATA[f"values/{name}"].shape
    streamed = StreamedTensor("w", shape, block_type(name), lambda: [blocks])
    stream_model_files([StreamedFile(tmp_path / "streamed.gguf", "toy", {}, [streamed])])
    assert path.read_bytes() == (tmp_path / "streamed.gguf").read_bytes()
    with open_model_file(path) as file:
        tensor = file.tensors["w"]
        assert (tensor.type_name, tensor.shape) == (name, shape)
        np.testing.assert_array_equal(tensor.raw(), blocks)
        kind, halves = tensor.native({F32, F16})
        assert kind == F16
        np.testing.assert_array_equal(halves.view("<f2"), tensor.array())


def test_what_has_no_writer_is_refused(tmp_path):
    for name in NEW:
        with pytest.raises(ModelFileError, match=f"cannot be quantised to {name}"):
            write_model_file(tmp_path / "it.gguf", "toy", {}, {"w": np.ones((2, 128))}, name)
    with pytest.raises(ModelFileError, match="unknown tensor type"):
        write_model_file(tmp_path / "it.gguf", "toy", {}, {"w": np.ones((2, 128))}, "Q3_0")
