"""Model files in other types."""

import importlib

import gguf
import mtpcore_glm_nextn
import numpy as np
import pytest
import toy
from harness.fixtures import checkpoint, model_file

import mtpcore
from mtpcore.conversion import convert, quantize
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.plugin import DrafterSpec, Fit


def raw(path):
    with open_model_file(path) as file:
        return {n: (t.type_name, t.shape, t.raw().tobytes()) for n, t in file.tensors.items()}


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_the_same_as_from_the_checkpoint(tmp_path, outtype):
    path = tmp_path / "model.gguf"
    quantize(model_file("glm-11"), path, outtype=outtype, mtp_type=outtype)
    assert raw(path) == raw(model_file("glm-11", outtype))
    with open_model_file(path) as made, open_model_file(model_file("glm-11", outtype)) as wanted:
        assert made.metadata.keys() == wanted.metadata.keys()
        assert made.metadata["general.file_type"] == wanted.metadata["general.file_type"]


@pytest.mark.parametrize("outtype", ["q2_k", "q4_k_m", "iq4_xs"])
def test_a_mix_is_the_same_as_from_the_checkpoint(tmp_path, outtype):
    made, wanted = tmp_path / "made.gguf", tmp_path / "wanted.gguf"
    convert(checkpoint("glm-11"), wanted, outtype=outtype, mtp_type="mix")
    quantize(model_file("glm-11"), made, outtype=outtype, mtp_type="mix")
    assert raw(made) == raw(wanted)
    assert len({kind for kind, *_ in raw(made).values()}) > 2


@pytest.mark.parametrize("outtype", ["q8_0", "q4_0"])
def test_blocks_are_those_of_the_gguf_package(tmp_path, outtype):
    path = tmp_path / "model.gguf"
    quantize(model_file("glm-11", "f32"), path, outtype=outtype)
    kind = gguf.GGMLQuantizationType[outtype.upper()]
    with open_model_file(path) as made, open_model_file(model_file("glm-11", "f32")) as source:
        name = "blk.2.ffn_down_exps.weight"
        wanted = gguf.quants.quantize(source.tensors[name].array(), kind)
        np.testing.assert_array_equal(made.tensors[name].raw(), wanted)
        assert made.tensors["blk.4.attn_q.weight"].type_name == "Q8_0"


def test_a_quantised_file_may_be_the_source(tmp_path):
    quantize("demo", tmp_path / "f16.gguf", outtype="f16")
    quantize(tmp_path / "f16.gguf", tmp_path / "q8_0.gguf", outtype="q8_0", mtp_type="q8_0")
    with (
        open_model_file(tmp_path / "f16.gguf") as big,
        open_model_file(tmp_path / "q8_0.gguf") as small,
    ):
        assert big.n_bytes > 1.5 * small.n_bytes
    with mtpcore.load_model(tmp_path / "q8_0.gguf") as model:
        assert [drafter.name for drafter in model.drafters] == ["glm_nextn"]


def test_a_plugin_that_drafts_without_a_graph_is_no_obstacle(tmp_path):
    """It fits every model, and has nothing to build of the file."""
    guess = DrafterSpec(name="guess", fit=Fit(), shape="proposer", proposer=lambda model: None)
    known = Registry.of(mtpcore_glm_nextn, toy.offering(guess))
    quantize("demo", tmp_path / "q8_0.gguf", outtype="q8_0", plugins=known)
    with mtpcore.load_model(tmp_path / "q8_0.gguf", plugins=known) as model:
        assert [drafter.name for drafter in model.drafters] == ["glm_nextn", "guess"]


def test_rows_that_are_no_whole_blocks_become_f16(tmp_path):
    with open_model_file(model_file("glm-11", "f32")) as file:
        tensors = {name: tensor.array() for name, tensor in file.tensors.items()}
        narrow = {n: t for n, t in tensors.items() if n.startswith("blk.0.ffn_")}
        for name, values in narrow.items():
            cut = values[:, :377] if name == "blk.0.ffn_down.weight" else values[:377]
            tensors[name] = cut
        write_model_file(tmp_path / "odd.gguf", file.architecture, file.metadata, tensors)
    quantize(tmp_path / "odd.gguf", tmp_path / "model.gguf", outtype="q8_0")
    with open_model_file(tmp_path / "model.gguf") as file:
        assert file.tensors["blk.0.ffn_down.weight"].type_name == "F16"
        assert file.tensors["blk.0.ffn_up.weight"].type_name == "Q8_0"


def test_pieces_of_any_size_give_the_same_file(tmp_path, monkeypatch):
    module = importlib.import_module("mtpcore.conversion.quantize")
    monkeypatch.setattr(module, "_PIECE", 1000)
    quantize(model_file("glm-11"), tmp_path / "model.gguf", outtype="q8_0", mtp_type="q8_0")
    assert raw(tmp_path / "model.gguf") == raw(model_file("glm-11", "q8_0"))


def test_a_split_file_becomes_one(tmp_path):
    with open_model_file(model_file("glm-11")) as file:
        blocks = {name: tensor.raw() for name, tensor in file.tensors.items()}
        kinds = {name: tensor.type for name, tensor in file.tensors.items()}
        write_model_file(
            tmp_path / "m.gguf", file.architecture, file.metadata, blocks, kinds, max_tensors=30
        )
    first = tmp_path / "m-00001-of-00003.gguf"
    quantize(first, tmp_path / "whole.gguf", outtype="f16")
    assert raw(tmp_path / "whole.gguf") == raw(model_file("glm-11"))
    with open_model_file(tmp_path / "whole.gguf") as file:
        assert not [key for key in file.metadata if key.startswith("split.")]


def test_a_file_is_not_written_over_itself(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(model_file("glm-11").read_bytes())
    with pytest.raises(ModelFileError, match="the one to read"):
        quantize(path, path, outtype="q8_0")
    assert path.read_bytes() == model_file("glm-11").read_bytes()


def test_an_unknown_type(tmp_path):
    with pytest.raises(ModelFileError, match="unknown type"):
        quantize("demo", tmp_path / "model.gguf", outtype="q9_k")
    assert list(tmp_path.iterdir()) == []
