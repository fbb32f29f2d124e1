"""What is packed comes out as it was."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from harness import fixtures

TOOL = Path(__file__).resolve().parents[2] / "tools" / "pack_fixture.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("pack_fixture", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n_bytes", [0, 1, 2, 1001])
def test_every_bit_survives(tool, n_bytes):
    header = b'{"a": 1}'
    values = np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8).tobytes()
    file = len(header).to_bytes(8, "little") + header + values
    assert fixtures.unpack(tool.pack(file)) == file


def test_references_keep_rows_of_one_prompt(tool, tmp_path):
    np.savez(tmp_path / "a.npz", prompts=np.arange(4)[:, None], logits=np.ones((2, 3, 5)))
    tool.reduce_references(tmp_path / "a.npz", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as file:
        assert {name: value.shape for name, value in file.items()} == {
            "prompts": (4, 1),
            "logits": (1, 3, 5),
        }


@pytest.mark.parametrize("name", ["ds-12", "mimo-14", "mimo2-15", "eagle3-13"])
def test_packed_models_are_whole(name):
    folder = fixtures.checkpoint(name)
    data = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:begin])
    ends = [info["data_offsets"][1] for key, info in tensors.items() if key != "__metadata__"]
    assert max(ends) == len(data) - begin
    assert (folder / "config.json").exists()
    assert set(fixtures.counts(name)) >= {"k=1", "k=2", "k=3"}
    assert fixtures.references(name)["logits"].shape == (1, 48, 2048)
