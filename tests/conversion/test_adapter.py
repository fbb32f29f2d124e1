"""Adapters that PEFT saved become files that compute what PEFT does."""

import json

import numpy as np
import pytest
from harness.adapters import change_of
from harness.published import tokenizer, write_checkpoint
from harness.published_families import FOLDER, N_VOCAB, known, logits, tensors, tokens
from safetensors.numpy import save_file

from mtpcore import Batch, Context, load_adapter, load_model
from mtpcore.cli import main
from mtpcore.conversion import convert, convert_adapter
from mtpcore.errors import ModelFileError

FAMILIES = known()
CASES = json.loads((FOLDER / "adapters.json").read_text())
NEAR = 1e-8
"""Mean square of the differences, beside that of the logits: rounding, where adapters of random
values make scores large."""
APPROXIMATE = dict.fromkeys(
    ("GPTNeoXForCausalLM", "FalconForCausalLM", "MptForCausalLM", "BloomForCausalLM"), 1e-6
)
"""Where files mean GELU's approximation by tanh and the class GELU itself."""


def wanted_of(case):
    with np.load(FOLDER / "adapters.npz") as arrays:
        return arrays[case].astype(np.float64)


def write_base(folder, name):
    family = FAMILIES[name]
    write_checkpoint(folder, family["config"], tensors(family["shapes"]), tokenizer(N_VOCAB))


def write_adapter(folder, case, **changed):
    folder.mkdir()
    config = CASES[case]["config"] | changed
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors(CASES[case]["shapes"]), folder / "adapter_model.safetensors")


def made(path, adapters=None):
    with load_model(path) as model:
        context = Context(model, n_ctx=64, kv_dtype="f32", threads=1, adapters=adapters)
        context.adapt(0, {} if adapters is None else ["a"])
        return context.process(Batch.of(tokens(), outputs="all")).logits


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(tmp_path, case):
    name = CASES[case]["family"]
    write_base(tmp_path / "base", name)
    write_adapter(tmp_path / "adapter", case)
    convert(tmp_path / "base", tmp_path / "model.gguf", outtype="f32")
    convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")
    wanted, near = wanted_of(case), APPROXIMATE.get(name, NEAR)
    size = np.square(wanted).mean()
    assert np.square(logits(name) - wanted).mean() > 0.01 * size  # it changes much
    adapter = load_adapter(tmp_path / "a.gguf")
    found = made(tmp_path / "model.gguf", {"a": adapter})
    assert np.square(found - wanted).mean() < near * size
    with load_model(tmp_path / "model.gguf") as model:
        is_tied = "output.weight" not in model.tensors
    if is_tied and "token_embd.weight" in adapter.matrices:
        return  # merged, it would change the output, too
    with load_model(tmp_path / "model.gguf", adapters=[(adapter, 1.0)]) as merged:
        context = Context(merged, n_ctx=64, kv_dtype="f32", threads=1)
        found = context.process(Batch.of(tokens(), outputs="all")).logits
    assert np.square(found - wanted).mean() < near * size


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "LOHA"}, "another kind than LoRA"),
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
        ({"something_new": 3}, "something_new"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"init_lora_weights": "pissa_niter_4"}, "was changed, too"),
        ({"r": "four"}, "not the configuration"),
    ],
)
def test_settings_that_no_file_holds_are_refused(tmp_path, changed, message):
    case = "SmolLM3ForCausalLM"
    write_base(tmp_path / "base", case)
    write_adapter(tmp_path / "adapter", case, **changed)
    with pytest.raises(ModelFileError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "no adapter"),
        ("base_model.model.model.norm.weight", "no adapter"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight", "no adapter"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "half of a pair"),
    ],
)
def test_tensors_that_no_file_holds_are_refused(tmp_path, name, message):
    case = "SmolLM3ForCausalLM"
    write_base(tmp_path / "base", case)
    write_adapter(tmp_path / "adapter", case)
    held = {**tensors(CASES[case]["shapes"]), name: np.ones((4, 8), np.float32)}
    save_file(held, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")


def test_an_adapter_of_another_model_is_refused(tmp_path):
    write_base(tmp_path / "base", "GPT2LMHeadModel")
    write_adapter(tmp_path / "adapter", "SmolLM3ForCausalLM")
    with pytest.raises(ModelFileError, match="does not have"):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")
    with pytest.raises(ModelFileError, match="--base"):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf")


def test_the_command(tmp_path, capsys):
    """By itself it finds the base model that the adapter names, where that is a folder."""
    case = "SmolLM3ForCausalLM"
    write_base(tmp_path / "base", case)
    write_adapter(tmp_path / "adapter", case, base_model_name_or_path=str(tmp_path / "base"))
    out = tmp_path / "a.gguf"
    assert main(["convert", str(tmp_path / "adapter"), str(out)]) == 0
    assert "wrote" in capsys.readouterr().err
    first = load_adapter(out)
    words = ["--base", str(tmp_path / "base"), "--outtype", "f16"]
    assert main(["convert", str(tmp_path / "adapter"), str(tmp_path / "b.gguf"), *words]) == 0
    second = load_adapter(tmp_path / "b.gguf")
    for name, matrix in first.matrices.items():
        np.testing.assert_allclose(change_of(second.matrices[name]), change_of(matrix), atol=1e-2)
    assert first.name == "adapter"
    assert main(["convert", str(tmp_path / "adapter"), str(out), "--outtype", "q4_0"]) == 1
    assert "stored as floats" in capsys.readouterr().err
    assert main(["run", "demo", "x", "--lora", str(tmp_path / "adapter")]) == 1
    assert "mtpcore convert" in capsys.readouterr().err
