"""What does not fit is named, and nothing is left behind."""

import ast
import json
import os
import shutil
import types
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness.fixtures import checkpoint
from harness.published import changed_qwen2 as plugin
from harness.published import save_tensors, write_checkpoint

from mtpcore import conversion
from mtpcore.conversion import convert
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf import open_model_file
from mtpcore.models import QWEN2
from mtpcore.plugin import Rename, hookimpl


def test_missing_and_unknown_tensors_are_all_named(refuse, config, tensors):
    tensors["model.layers.0.self_attn.sinks"] = np.zeros(4, np.float32)
    tensors["model.layers.2.self_attn.q_proj.weight"] = np.zeros(4, np.float32)
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    error = refuse(config, tensors)
    assert "2 missing, 2 unknown" in error.what
    assert error.wanted == "model.norm.weight, model.layers.1.mlp.up_proj.weight"
    assert error.got == "model.layers.0.self_attn.sinks, model.layers.2.self_attn.q_proj.weight"


def test_every_name_is_said_however_many(refuse, config, tensors):
    strange = {f"model.layers.0.extra.{n}.weight": np.zeros(4, np.float32) for n in range(60)}
    config["num_hidden_layers"] = 9
    error = refuse(config, tensors | strange)
    assert "84 missing, 60 unknown" in error.what
    assert len(set(error.wanted.split(", "))) == 84
    assert "model.layers.8.mlp.down_proj.weight" in error.wanted
    assert sorted(error.got.split(", ")) == sorted(strange)
    assert "... (" in str(error)  # the message is cut, its parts are whole


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_quantised_tensors_are_said_to_be_quantised(refuse, config, tensors, method):
    """To download them again would not help."""
    name = "model.layers.0.mlp.up_proj.weight"
    codes = {name.replace("weight", "qweight"): np.zeros((8, 8), np.int32)}
    config["quantization_config"] = {"quant_method": method, "bits": 4}
    for changed in (tensors | codes, {n: v for n, v in tensors.items() if n != name} | codes):
        error = refuse(config, changed)
        assert f"(it says that it is quantised: {method}): " in error.what
        assert "1 unknown" in error.what
        assert error.fix.startswith("take the checkpoint that is not quantised")


@pytest.mark.parametrize(
    "said", [{"quant_method": "quanto"}, {"quant_method": None}, {}, None, "x"]
)
def test_plain_tensors_count_whatever_is_said_of_them(refuse, tmp_path, config, tensors, said):
    config["quantization_config"] = said
    write_checkpoint(tmp_path / "plain", config, tensors)
    convert(tmp_path / "plain", tmp_path / "model.gguf")
    (tmp_path / "model.gguf").unlink()
    tensors["model.layers.0.extra"] = np.zeros(4, np.float32)
    shutil.rmtree(tmp_path / "plain")
    assert ("quanto" in refuse(config, tensors).what) == ("quanto" in str(said))
    del tensors["model.layers.0.extra"], tensors["model.norm.weight"]
    assert "quanto" not in refuse(config, tensors).what, "a tensor is missing, and no more"


def test_scales_are_named_beside_what_they_scale(refuse, config, tensors):
    at = "model.layers.0.extra.weight"
    tensors |= {at: np.zeros((4, 4), np.float32), at + "_scale_inv": np.ones((1, 1), np.float32)}
    assert refuse(config, tensors).got == f"{at}, {at}_scale_inv"


@pytest.mark.parametrize("wrong", ["four", -4, 4.5, [4], True])
def test_a_wrong_value_in_the_configuration(refuse, config, tensors, wrong):
    """The error names the file that was asked for, and where the value comes from."""
    error = refuse(config | {"num_attention_heads": wrong}, tensors)
    assert ".part" not in str(error)
    assert "config.json" in str(error)


def test_an_output_matrix_may_be_missing_only_where_it_is_tied(refuse, config, tensors):
    del tensors["lm_head.weight"]
    assert refuse(config, tensors).wanted == "lm_head.weight"


def test_one_expert_is_missing(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    source = checkpoint("glm-11")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    data = (source / "model.safetensors").read_bytes()
    name = "model.layers.2.mlp.experts.5.up_proj.weight"
    data = data.replace(name.encode(), name.replace("5.up", "8.up").encode())
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError) as error:
        convert(folder, tmp_path / "model.gguf")
    assert error.value.wanted == name
    assert error.value.got == name.replace("5.up", "8.up")


def test_a_tensor_of_the_wrong_shape(refuse, config, tensors):
    tensors["model.layers.1.mlp.down_proj.weight"] = np.zeros((32, 63), np.float32)
    error = refuse(config, tensors)
    assert "blk.1.ffn_down" in str(error)
    assert "does not fit its tensors" in error.what


def test_a_shape_that_a_change_cannot_take(refuse, config, tensors):
    config["architectures"] = ["LlamaForCausalLM"]
    tensors = {name: t for name, t in tensors.items() if not name.endswith(".bias")}
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((30, 32), np.float32)
    error = refuse(config, tensors)
    assert "cannot make blk.{n}.attn_q.weight of it" in error.what
    assert "model.layers.0.self_attn.q_proj.weight" in error.where


def test_experts_of_different_shapes(refuse, config, tensors):
    config |= {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2}
    config["num_experts_per_tok"] = 1
    made = {n: t for n, t in tensors.items() if not n.endswith(".bias") and ".mlp." not in n}
    for n in range(2):
        moe = f"model.layers.{n}.block_sparse_moe."
        made[moe + "gate.weight"] = np.zeros((2, 32), np.float32)
        for e in range(2):
            made[f"{moe}experts.{e}.w1.weight"] = np.zeros((64, 32), np.float32)
            made[f"{moe}experts.{e}.w3.weight"] = np.zeros((64 + 8 * e * n, 32), np.float32)
            made[f"{moe}experts.{e}.w2.weight"] = np.zeros((32, 64), np.float32)
    error = refuse(config, made)
    assert "experts of different shapes" in error.what
    assert error.where == "blk.1.ffn_up_exps.weight"


def test_an_unknown_architecture(refuse, config, tensors):
    error = refuse(config | {"architectures": ["UnheardForCausalLM"]}, tensors)
    assert "Qwen3MoeForCausalLM" in error.wanted
    assert error.got == ["UnheardForCausalLM"]
    assert (
        "none, model_type 'unheard'"
        in refuse(
            {k: v for k, v in config.items() if k != "architectures"} | {"model_type": "unheard"},
            tensors,
        ).got
    )


def test_a_checkpoint_that_is_nearly_a_family_s(refuse, config, tensors):
    """What tells its layout from others is missing, and named."""
    error = refuse(config | {"architectures": ["DFlashDraftModel"]}, tensors)
    assert "nearly one of 'dflash'" in error.what
    assert error.wanted == "block_size"
    assert error.where.endswith("config.json")


def test_a_configuration_lacks_a_value(refuse, config, tensors):
    del config["hidden_size"]
    assert refuse(config, tensors).where.endswith("config.json: hidden_size")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000])
def test_a_malformed_configuration(tmp_path, tensors, text):
    (tmp_path / "config.json").write_text(text)
    save_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"config\.json: not"):
        convert(tmp_path, tmp_path / "model.gguf")


def test_no_folder(tmp_path):
    with pytest.raises(ModelFileError, match="no such folder"):
        convert(tmp_path / "nothing", tmp_path / "model.gguf")


def test_a_folder_that_cannot_be_written_to(tmp_path, config, tensors):
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError, match="cannot write the file"):
        convert(tmp_path / "hf", tmp_path / "nowhere" / "model.gguf")


@pytest.mark.parametrize(
    ("kind", "group", "key"),
    [
        ("dynamic", "rope_scaling", "type"),
        ("longrope", "rope_scaling", "rope_type"),
        ("llama3", "rope_parameters", "rope_type"),
        ("su", "rope_parameters", "type"),
        (3, "rope_scaling", "type"),
        (["yarn"], "rope_scaling", "type"),
    ],
)
def test_a_scaling_that_the_file_would_not_hold(refuse, config, tensors, kind, group, key):
    """The model would turn positions otherwise than the checkpoint, and nothing would show it."""
    error = refuse(config | {group: {key: kind, "factor": 2.0}}, tensors)
    assert "scaling" in error.what
    assert error.where.endswith(f"config.json: {group}.{key}")
    assert error.wanted == "default, linear, yarn"
    assert error.got == kind
    assert ("max_position_embeddings" in error.fix) == (kind == "dynamic")


def test_each_kind_of_layers_is_looked_at(refuse, config, tensors):
    parameters = {"full_attention": {"rope_type": "default"}, "other": {"rope_type": "longrope"}}
    error = refuse(config | {"rope_parameters": parameters}, tensors)
    assert error.where.endswith("config.json: rope_parameters.other.rope_type")


@pytest.mark.parametrize(
    "scaling", [None, {}, {"type": None}, {"rope_type": "default"}, {"type": "mrope"}]
)
def test_no_scaling_however_it_is_said(tmp_path, config, tensors, scaling):
    """All axes of an M-RoPE position are equal in text."""
    write_checkpoint(tmp_path / "hf", config | {"rope_scaling": scaling}, tensors)
    convert(tmp_path / "hf", tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        assert not [key for key in file.metadata if "scaling" in key]


def test_a_failing_function_of_a_plugin_is_named(refuse, config, tensors):
    broken = (*QWEN2.checkpoint.metadata, ("{arch}.x", lambda config: 1 / 0))
    error = refuse(config, tensors, plugins=plugin(metadata=broken))
    assert "ZeroDivisionError" in error.what
    assert "{arch}.x" in error.where


def test_a_smallest_type_that_does_not_exist(tmp_path, config, tensors):
    made = types.ModuleType("changed")
    spec = msgspec.structs.replace(QWEN2, min_types=(("output.weight", "Q9_0"),))
    made.mtpcore_models = hookimpl(lambda: [spec])
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(PluginError, match=r"min_types.*Q9_0"):
        convert(tmp_path / "hf", tmp_path / "model.gguf", plugins=Registry.of(made))


def test_a_value_that_no_file_can_hold(refuse, config, tensors):
    strange = (*QWEN2.checkpoint.metadata, ("{arch}.x", lambda config: {"a": 1}))
    assert refuse(config, tensors, plugins=plugin(metadata=strange)).got == {"a": 1}


def test_a_change_that_looks_at_values(refuse, config, tensors):
    """It is tried on zeros, to know the shape."""
    kept = [r for r in QWEN2.checkpoint.tensors if r.tensor != "output.weight"]
    sly = Rename("lm_head.weight", "output.weight", lambda v, c: v if not v.any() else v[:-1])
    error = refuse(config, tensors, plugins=plugin(tensors=(*kept, sly)))
    assert "another shape than for zeros" in error.what


def test_two_sources_of_one_tensor(refuse, config, tensors):
    second = Rename("model.norm.weight", "output.weight")
    table = (*QWEN2.checkpoint.tensors, second)
    error = refuse(config, tensors, plugins=plugin(tensors=table))
    assert "both become output.weight" in error.what


def test_two_spellings_of_one_name(refuse, config, tensors):
    tensors["norm.weight"] = tensors["model.norm.weight"]
    error = refuse(config, tensors, plugins=plugin(prefixes=(("norm.", "model.norm."),)))
    assert "mean the same" in error.what


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mtp": "only"}, "no heads"),
        ({"target": "."}, "only a drafter"),
        ({"outtype": "q9_k"}, "unknown type"),
        ({"mtp_type": "q9_k"}, "unknown type"),
    ],
)
def test_options_that_make_no_sense(refuse, config, tensors, options, what):
    assert what in refuse(config, tensors, **options).what


def test_an_old_file_survives_a_failure(tmp_path, config, tensors):
    (tmp_path / "model.gguf").write_text("before")
    tensors["model.norm.weight"] = np.zeros(31, np.float32)
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError):
        convert(tmp_path / "hf", tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_text() == "before"


def test_an_interrupt_leaves_nothing(tmp_path, config, tensors):
    write_checkpoint(tmp_path / "hf", config, tensors)

    def interrupt(done, total):
        assert len(list(tmp_path.glob("model.gguf.*.part"))) == 1
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "hf", tmp_path / "model.gguf", report=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_progress_counts_every_byte(tmp_path, config, tensors):
    write_checkpoint(tmp_path / "hf", config, tensors)
    seen = []
    convert(tmp_path / "hf", tmp_path / "model.gguf", report=lambda *said: seen.append(said))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_the_configuration_s_nested_objects_may_be_laid_open(tmp_path, config, tensors):
    inner = {key: value for key, value in config.items() if key != "architectures"}
    outer = {"architectures": config["architectures"], "text_config": inner}
    write_checkpoint(tmp_path / "hf", outer, tensors)
    convert(tmp_path / "hf", tmp_path / "a.gguf", plugins=plugin(nested=("text_config",)))
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "hf", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_what_is_no_regular_file_is_not_replaced(tmp_path, config, tensors):
    write_checkpoint(tmp_path / "hf", config, tensors)
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        beside = path.with_name(path.name + ".part")
        beside.write_text("of somebody else")
        with pytest.raises(ModelFileError, match="not a regular file") as error:
            convert(tmp_path / "hf", path)
        assert error.value.where == str(path)
        assert error.value.fix == "give the name of the file to write"
        assert beside.read_text() == "of somebody else"
        beside.unlink()
    with pytest.raises(ModelFileError, match="File name too long"):
        convert(tmp_path / "hf", tmp_path / ("x" * 300))
    assert pipe.is_fifo()
    assert folder.is_dir()
    with pytest.raises(ModelFileError, match="a folder, not a model file") as error:
        load_model(tmp_path / "hf")
    assert "mtpcore convert" in error.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "hf", "pipe"]


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 11026736\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "model.gguf"])
def test_pointers_of_git_lfs_are_known(tmp_path, config, tensors, name):
    """They lie in the place of large files in a clone that was made without Git LFS."""
    write_checkpoint(tmp_path, config, tensors)
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(ModelFileError) as error:
        open_model_file(tmp_path / name) if ".gguf" in name else convert(tmp_path, tmp_path / "out")
    assert error.value.where == str(tmp_path / name)
    assert error.value.fix.startswith("install Git LFS")


def test_every_error_says_what_to_do():
    """Of those that conversion makes itself."""
    lacking = [
        f"{path.name}:{call.lineno}"
        for path in Path(conversion.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "ModelFileError"
        if not any(given.arg == "fix" for given in call.keywords)
    ]
    assert not lacking


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_the_file_that_is_cut_is_named(refuse, tmp_path, config, tensors, name):
    write_checkpoint(tmp_path / "hf", config, tensors)
    (tmp_path / "hf" / name).write_text('{"a":')
    error = refuse(config, tensors)
    assert (error.what, error.where) == ("not JSON", str(tmp_path / "hf" / name))


def test_what_does_not_fit_is_to_be_corrected_where_it_comes_from(refuse, config, tensors):
    """To convert the model again, as is the cure for a file, is what just failed."""
    error = refuse(config, tensors | {"model.norm.weight": np.zeros(3, np.float32)})
    assert "output_norm.weight" in error.where
    assert error.fix.startswith("correct it where it comes from: config.json, the tensors")


def test_types_with_bounds_are_named_plainly(refuse, config, tensors):
    config["rms_norm_eps"] = None
    error = refuse(config, tensors)
    assert "layer_norm_rms_epsilon" in error.where
    assert error.wanted == "float"
