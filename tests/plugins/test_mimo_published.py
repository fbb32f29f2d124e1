"""MiMo-V2.5 as it is published: q, k and v in one matrix of eight bits, cut into ranks."""

import json

import mtpcore_mimo_mtp
import numpy as np
import pytest
from harness.fixtures import checkpoint, model_file
from harness.published import Raw, save_tensors, scaled

from mtpcore.conversion import convert
from mtpcore.conversion.metadata import family_metadata
from mtpcore.conversion.published import read_tensors
from mtpcore.declarations.checkpoint import Config
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

BLOCK, N_RANKS = 30, 4


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """The fixture in that layout, with a tensor of another part; and its q, k and v rows."""
    source, folder = checkpoint("mimo2-15"), tmp_path_factory.mktemp("mimo") / "hf"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.rows() for name, tensor in read_tensors(source).items()}
    whole = {}
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}.self_attn."
        rows = [tensors.pop(f"{at}{part}_proj.weight") for part in "qkv"]
        shares = [np.split(one, N_RANKS) for one in rows]
        ranked = np.concatenate([share[rank] for rank in range(N_RANKS) for share in shares])
        codes, scales = scaled(ranked, BLOCK, N_RANKS)
        tensors[at + "qkv_proj.weight"] = Raw("F8_E4M3", codes)
        tensors[at + "qkv_proj.weight_scale_inv"] = scales
        whole[n] = np.concatenate(rows)
    tensors["visual.patch_embed.proj.weight"] = np.zeros((2, 3), np.float32)
    save_tensors(folder / "model.safetensors", tensors)
    return folder, whole


def test_the_ranks_are_undone(fused, tmp_path):
    folder, whole = fused
    left_out = convert(folder, tmp_path / "model.gguf", outtype="f32")
    assert left_out == {"visual.patch_embed.proj.weight": "of no use: visual.*"}
    with (
        open_model_file(tmp_path / "model.gguf") as file,
        open_model_file(model_file("mimo2-15", "f32")) as plain,
    ):
        for n, rows in whole.items():
            found = file.tensors[f"blk.{n}.attn_qkv.weight"].array()
            assert np.corrcoef(found.ravel(), rows.ravel())[0, 1] > 0.999
            assert np.abs(found - rows).max() < 0.07 * np.abs(rows).max()
        same = plain.tensors.keys() & file.tensors.keys()
        assert len(plain.tensors) - len(same) == 3 * len(whole)
        for name in same:
            np.testing.assert_array_equal(file.tensors[name].raw(), plain.tensors[name].raw())


@pytest.mark.parametrize("kind", ["default", "yarn", "linear", "dynamic", "llama3"])
@pytest.mark.parametrize("layers", [None, "sliding_attention"])
def test_a_scaled_rotation_is_refused(kind, layers):
    """No such model is published scaled, and a file could not say which layers it is for."""
    values = json.loads((checkpoint("mimo2-15") / "config.json").read_text())
    scaling = {"rope_type": kind, "factor": 4.0}
    values |= {"rope_parameters": {layers: scaling}} if layers else {"rope_scaling": scaling}
    table = mtpcore_mimo_mtp.MIMO2.checkpoint
    if kind == "default":
        assert not [k for k in family_metadata("mimo2", [table], Config(values)) if "scaling" in k]
        return
    with pytest.raises(ModelFileError, match="scaling") as error:
        family_metadata("mimo2", [table], Config(values))
    assert (error.value.wanted, error.value.got) == ("default", kind)
