"""Weights of eight bits: their values, their scales, and matrices that were cut before scaling."""

import types

import msgspec
import numpy as np
import pytest
from harness.published import Raw, scaled, small_config, small_tensors, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.conversion.float8 import e4m3_values, find_ranks, regroup, scale_blocks
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file
from mtpcore.models import QWEN2
from mtpcore.plugin import Checkpoint, Shards, block_renames, hookimpl

CODES = np.arange(256, dtype=np.uint8)


def test_known_values():
    """Of the format's table: largest, smallest normal, smallest, one, not a number."""
    found = e4m3_values(np.array([0x7E, 0x08, 0x01, 0x38, 0xB8, 0x00, 0x80], np.uint8))
    assert found.tolist() == [448.0, 2.0**-6, 2.0**-9, 1.0, -1.0, 0.0, 0.0]
    assert np.isnan(e4m3_values(np.array([0x7F, 0xFF], np.uint8))).all()
    assert np.isfinite(e4m3_values(CODES)).sum() == 254


def test_positive_codes_rise():
    assert (np.diff(e4m3_values(CODES[:127])) > 0).all()


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_each_block_gets_its_scale(n_ranks):
    values = np.ones((20, 7), np.float32)
    per_rank = 20 // n_ranks
    n_blocks = n_ranks * -(-per_rank // 4)
    scales = np.arange(n_blocks * 3, dtype=np.float32).reshape(n_blocks, 3)
    scale_blocks(values, scales, (4, 3), n_ranks)
    for row in range(20):
        rank, inside = divmod(row, per_rank)
        block = rank * (n_blocks // n_ranks) + inside // 4
        for column in range(7):
            assert values[row, column] == scales[block, column // 3]


def test_ranks_are_found_by_the_number_of_scales():
    assert find_ranks(13568, 108, 128, (8, 4)) == 4
    assert find_ranks(13568, 112, 128, (8, 4)) == 8
    assert find_ranks(14848, 116, 128, (8, 4)) == 4
    with pytest.raises(ModelFileError, match="107"):
        find_ranks(13568, 107, 128, (8, 4))


def test_parts_are_put_together_again():
    parts, n_ranks = (8, 4, 2), 2
    names = [f"{part}{i}" for part, n in zip("qkv", parts, strict=True) for i in range(n)]
    shares = [np.array_split(np.arange(n) + sum(parts[:p]), n_ranks) for p, n in enumerate(parts)]
    order = np.concatenate([shares[p][rank] for rank in range(n_ranks) for p in range(3)])
    ranked = order[:, None].astype(np.float32)
    assert [names[int(i)] for i in regroup(ranked, parts, n_ranks)[:, 0]] == names


@pytest.mark.parametrize("piece", [1 << 20, 800])
def test_a_checkpoint_of_eight_bits_is_converted(tmp_path, monkeypatch, piece):
    """Matrices with rows and columns that are no whole blocks, read whole and in pieces."""
    monkeypatch.setattr("mtpcore.conversion.values._PIECE", piece)
    block = 24
    config = small_config(quantization_config={"weight_block_size": [block, block]})
    tensors, wanted = {}, {}
    for name, values in small_tensors(config).items():
        if ".self_attn." in name and values.ndim == 2:
            codes, scales = scaled(values, block)
            tensors[name] = Raw("F8_E4M3", codes)
            tensors[name + "_scale_inv"] = scales
            full = np.repeat(np.repeat(scales, block, 0), block, 1)
            wanted[name] = e4m3_values(codes) * full[: len(values), : values.shape[1]]
            assert np.abs(wanted[name] - values).max() < 0.1
        else:
            tensors[name] = values
    write_checkpoint(tmp_path / "hf", config, tensors)
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    with open_model_file(tmp_path / "model.gguf") as file:
        for n in range(2):
            for part, published in zip("qkv", ("q_proj", "k_proj", "v_proj"), strict=True):
                found = file.tensors[f"blk.{n}.attn_{part}.weight"].array()
                name = f"model.layers.{n}.self_attn.{published}.weight"
                np.testing.assert_array_equal(found, wanted[name])


def test_scales_that_do_not_fit_are_refused(tmp_path):
    config = small_config(quantization_config={"weight_block_size": [24, 24]})
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = small_tensors(config)
    codes, scales = scaled(tensors[name], 24)
    tensors |= {name: Raw("F8_E4M3", codes), name + "_scale_inv": scales[:1]}
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError, match="not one scale for each block"):
        convert(tmp_path / "hf", tmp_path / "model.gguf")
    del tensors[name + "_scale_inv"]
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError, match="without its scales"):
        convert(tmp_path / "hf", tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_declared_cut_into_ranks_is_undone(tmp_path):
    """A family that publishes q, k and v as one matrix, cut into two ranks before it was scaled."""
    block, n_ranks, parts = 12, 2, (32, 16, 16)
    config = small_config(quantization_config={"weight_block_size": [block, block]})
    config["architectures"] = ["RankedForCausalLM"]
    tensors = small_tensors(config)
    whole = {}
    for n in range(2):
        at = f"model.layers.{n}.self_attn."
        rows = [tensors.pop(f"{at}{part}_proj.weight") for part in "qkv"]
        shares = [np.split(one, n_ranks) for one in rows]
        ranked = np.concatenate([shares[p][rank] for rank in range(n_ranks) for p in range(3)])
        codes, scales = scaled(ranked, block, n_ranks)
        tensors[at + "qkv_proj.weight"] = Raw("F8_E4M3", codes)
        tensors[at + "qkv_proj.weight_scale_inv"] = scales
        whole[n] = np.concatenate(rows)
    write_checkpoint(tmp_path / "hf", config, tensors)

    own = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}
    kept = [
        rename
        for rename in QWEN2.checkpoint.tensors
        if rename.source.removeprefix("model.layers.{n}.") not in own
    ]
    fused = block_renames(
        {"self_attn.qkv_proj.weight": "attn_qkv.weight"},
        shards=Shards(parts=lambda config, n: parts, ranks=(4, n_ranks)),
    )
    table = Checkpoint(
        architectures=frozenset({"RankedForCausalLM"}),
        tensors=(*kept, *fused),
        metadata=QWEN2.checkpoint.metadata,
    )
    plugin = types.ModuleType("ranked")
    spec = msgspec.structs.replace(QWEN2, checkpoint=table)
    plugin.mtpcore_models = hookimpl(lambda: [spec])
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32", plugins=Registry.of(plugin))
    with open_model_file(tmp_path / "model.gguf") as file:
        for n in range(2):
            found = file.tensors[f"blk.{n}.attn_qkv.weight"].array()
            assert np.abs(found - whole[n]).max() < 0.1
            assert np.corrcoef(found.ravel(), whole[n].ravel())[0, 1] > 0.999
