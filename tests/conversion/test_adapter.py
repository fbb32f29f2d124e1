"""Adapters that PEFT saved become files that compute what PEFT does."""

import json

import numpy as np
import pytest
from harness.adapters import change_of
from harness.published import tokenizer, write_checkpoint
from harness.published_families import (
    FOLDER,
    N_VOCAB,
    adapter_tensors,
    known,
    logits,
    tensors,
    tokens,
)
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


NO_FILE = ("SmolLM3ForCausalLM, lengths", "Phi3ForCausalLM, lengths")
"""Which no adapter's file holds."""


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
    values = adapter_tensors(CASES[case]["family"], CASES[case]["shapes"])
    save_file(values, folder / "adapter_model.safetensors")


def made(path, adapters=None):
    with load_model(path) as model:
        context = Context(model, n_ctx=64, kv_dtype="f32", threads=1, adapters=adapters)
        context.adapt(0, {} if adapters is None else ["a"])
        return context.process(Batch.of(tokens(), outputs="all")).logits


def check_near(found, case):
    """Hold logits against PEFT's."""
    wanted, name = wanted_of(case), CASES[case]["family"]
    size = np.square(wanted).mean()
    assert np.square(logits(name) - wanted).mean() > 0.01 * size  # it changes much
    assert np.square(found - wanted).mean() < APPROXIMATE.get(name, NEAR) * size


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_merged_checkpoint_are_those_of_peft(tmp_path, case):
    write_base(tmp_path / "base", CASES[case]["family"])
    write_adapter(tmp_path / "adapter", case)
    out = tmp_path / "model.gguf"
    convert(tmp_path / "base", out, outtype="f32", lora=[tmp_path / "adapter"])
    check_near(made(out), case)


@pytest.mark.parametrize("case", [case for case in CASES if case not in NO_FILE])
def test_logits_beside_a_model_are_those_of_peft(tmp_path, case):
    write_base(tmp_path / "base", CASES[case]["family"])
    write_adapter(tmp_path / "adapter", case)
    convert(tmp_path / "base", tmp_path / "model.gguf", outtype="f32")
    convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")
    adapter = load_adapter(tmp_path / "a.gguf")
    check_near(made(tmp_path / "model.gguf", {"a": adapter}), case)
    with load_model(tmp_path / "model.gguf") as model:
        is_tied = "output.weight" not in model.tensors
    is_of_output = "output.weight" in adapter.matrices
    if is_tied and is_of_output != ("token_embd.weight" in adapter.matrices):
        return  # merged, it would change both
    if is_tied and is_of_output:
        with pytest.raises(ModelFileError, match="shares its table"):
            load_model(tmp_path / "model.gguf", adapters=[(adapter, 1.0)])
        return
    with load_model(tmp_path / "model.gguf", adapters=[(adapter, 1.0)]) as merged:
        context = Context(merged, n_ctx=64, kv_dtype="f32", threads=1)
        found = context.process(Batch.of(tokens(), outputs="all")).logits
    check_near(found, case)


def test_a_whole_table_that_is_the_output_too_changes_both(tmp_path):
    """Where the adapter's file has it once."""
    case = "Gemma2ForCausalLM, whole table"
    write_base(tmp_path / "base", CASES[case]["family"])
    write_adapter(tmp_path / "adapter", case)
    values = adapter_tensors(CASES[case]["family"], CASES[case]["shapes"])
    del values["base_model.model.lm_head.weight"]
    save_file(values, tmp_path / "adapter" / "adapter_model.safetensors")
    out = tmp_path / "model.gguf"
    convert(tmp_path / "base", out, outtype="f32", lora=[tmp_path / "adapter"])
    check_near(made(out), case)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "LOHA"}, "another kind than LoRA"),
        ({"use_dora": True}, "wanted A, B, magnitude"),
        ({"lora_bias": True}, "wanted A, B, bias"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts"]}, "no stacks of experts"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"modules_to_save": ["lm_head"]}, "tensors are missing"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
        ({"something_new": 3}, "something_new"),
        ({"bias": "some"}, "kind of biases"),
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
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "do not speak"),
        ("base_model.model.model.norm.weight", "do not speak"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight", "do not speak"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "part of the change"),
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


def of_experts(case):
    """Return an adapter's tensors, and the names of both halves of each stack."""
    values = adapter_tensors(CASES[case]["family"], CASES[case]["shapes"])
    halves = [name for name in values if ".experts." in name and name.endswith("lora_A.weight")]
    return values, [(name, name.replace("lora_A", "lora_B")) for name in halves]


def test_halves_of_experts_may_have_inputs_and_outputs_the_other_way_round(tmp_path):
    """As PEFT saved them before it asked classes for the order of a stack's axes."""
    case, n_experts, rank = "OlmoeForCausalLM, experts", 4, 2
    write_base(tmp_path / "base", CASES[case]["family"])
    changes = []
    for i in range(2):
        write_adapter(tmp_path / f"{i}", case)
        values, halves = of_experts(case)
        for a, b in halves if i else ():
            by_expert = values[a].reshape(n_experts, rank, -1)
            down = values[b].reshape(-1, rank, n_experts).transpose(2, 1, 0)
            values[a] = np.ascontiguousarray(down).reshape(n_experts * rank, -1)
            values[b] = by_expert.transpose(2, 1, 0).reshape(-1, rank * n_experts).copy()
        save_file(values, tmp_path / f"{i}" / "adapter_model.safetensors")
        convert_adapter(tmp_path / f"{i}", tmp_path / "a.gguf", base=tmp_path / "base")
        matrices = load_adapter(tmp_path / "a.gguf").matrices
        changes.append({name: change_of(matrix) for name, matrix in matrices.items()})
    assert changes[0].keys() == changes[1].keys()
    for name, change in changes[0].items():
        np.testing.assert_allclose(changes[1][name], change, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (np.tile(a, (2, 1)), np.tile(b, (1, 2))), "wanted 4 experts"),
        (lambda a, b: (np.tile(a, (1, 2)), b), "32 inputs or outputs"),
        (lambda a, b: (a, b[:-1]), "outputs in 2 parts"),
        (lambda a, b: (a, b[: a.shape[1]]), "tell inputs from outputs"),
        (lambda a, b: (a[:-1], b[:, :-1]), "rows of A in 2s"),
    ],
)
def test_stacks_of_other_experts_are_refused(tmp_path, change, message):
    case = "OlmoeForCausalLM, experts"
    write_base(tmp_path / "base", CASES[case]["family"])
    write_adapter(tmp_path / "adapter", case)
    values, halves = of_experts(case)
    for names in halves:  # gate_up_proj's is that of the layer around which the other was put
        if ".base_layer." in names[0]:
            halves = zip(names, change(*(values[name] for name in names)), strict=True)
            values |= {name: np.ascontiguousarray(half) for name, half in halves}
        else:
            values = {name: half for name, half in values.items() if name not in names}
    save_file(values, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")


def test_experts_of_a_model_without_any_are_refused(tmp_path):
    write_base(tmp_path / "base", "Olmo2ForCausalLM")
    write_adapter(tmp_path / "adapter", "OlmoeForCausalLM, experts")
    with pytest.raises(ModelFileError, match="experts that the model does not have"):
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")


def test_experts_in_four_bits_keep_their_adapter_beside_them(tmp_path):
    """As gpt-oss is published."""
    case = "GptOssForCausalLM, experts"
    shapes = dict(FAMILIES[CASES[case]["family"]]["shapes"])
    packed = {}
    for name in [name for name in shapes if name.endswith(("gate_up_proj", "down_proj"))]:
        n, n_in, n_out = shapes.pop(name)
        packed[f"{name}_blocks"] = np.zeros((n, n_out, -(-n_in // 32), 16), np.uint8)
        packed[f"{name}_scales"] = np.full((n, n_out, -(-n_in // 32)), 120, np.uint8)
    values = {**tensors(shapes), **packed}
    config = FAMILIES[CASES[case]["family"]]["config"]
    write_checkpoint(tmp_path / "base", config, values, tokenizer(N_VOCAB))
    write_adapter(tmp_path / "adapter", case)
    convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", base=tmp_path / "base")
    write_base(tmp_path / "plain", CASES[case]["family"])
    convert_adapter(tmp_path / "adapter", tmp_path / "b.gguf", base=tmp_path / "plain")
    assert load_adapter(tmp_path / "a.gguf").digest == load_adapter(tmp_path / "b.gguf").digest
    with pytest.raises(ModelFileError, match=r"does not have(.|\n)*four bits"):
        convert(tmp_path / "base", tmp_path / "m.gguf", lora=[tmp_path / "adapter"])


def test_a_row_that_was_trained_is_one_of_the_rank(tmp_path):
    """And a table that was trained as a whole has the rank of its width."""
    write_base(tmp_path / "base", "Olmo2ForCausalLM")
    ranks = {}
    for kind in ("rows", "saved"):
        write_adapter(tmp_path / kind, f"Olmo2ForCausalLM, {kind}")
        convert_adapter(tmp_path / kind, tmp_path / "a.gguf", base=tmp_path / "base")
        matrices = load_adapter(tmp_path / "a.gguf").matrices
        ranks[kind] = [matrices[f"{name}.weight"].rank for name in ("token_embd", "output")]
    width = FAMILIES["Olmo2ForCausalLM"]["config"]["hidden_size"]
    assert ranks == {"rows": [1, 3], "saved": [width, width]}


def test_differences_need_the_base_model_s_tensors(tmp_path):
    for case in ("Olmo2ForCausalLM, saved", "Gemma2ForCausalLM, rows"):
        folder = tmp_path / case
        folder.mkdir()
        write_base(folder / "base", CASES[case]["family"])
        (folder / "base" / "model.safetensors").unlink()
        write_adapter(folder / "adapter", case)
        with pytest.raises(ModelFileError, match="base model"):
            convert_adapter(folder / "adapter", folder / "a.gguf", base=folder / "base")


def test_lengths_of_transposed_layers_are_refused(tmp_path):
    case = "GPT2LMHeadModel"
    write_base(tmp_path / "base", case)
    write_adapter(tmp_path / "adapter", case, use_dora=True)
    held = tensors(CASES[case]["shapes"])
    lengths = {
        name.replace("lora_B.weight", "lora_magnitude_vector"): np.ones(len(b), np.float32)
        for name, b in held.items()
        if name.endswith("lora_B.weight")
    }
    save_file({**held, **lengths}, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match="sets lengths"):
        convert(tmp_path / "base", tmp_path / "model.gguf", lora=[tmp_path / "adapter"])


def test_an_adapter_of_another_model_is_not_merged(tmp_path):
    name = "SmolLM3ForCausalLM"
    write_base(tmp_path / "base", "Olmo2ForCausalLM")
    write_adapter(tmp_path / "adapter", "GPT2LMHeadModel")
    out = tmp_path / "model.gguf"
    with pytest.raises(ModelFileError, match="does not have"):
        convert(tmp_path / "base", out, lora=[tmp_path / "adapter"])
    write_adapter(tmp_path / "longer", f"{name}, saved")
    path = tmp_path / "longer" / "adapter_model.safetensors"
    held = adapter_tensors(name, CASES[f"{name}, saved"]["shapes"])
    head = "base_model.model.lm_head.weight"
    save_file({**held, head: np.ones((N_VOCAB + 1, held[head].shape[1]), np.float32)}, path)
    write_base(tmp_path / "other", name)
    with pytest.raises(ModelFileError, match=r"another shape.*\n.*vocabulary grew"):
        convert(tmp_path / "other", out, lora=[tmp_path / "longer"])
    assert not out.exists()


def test_matrices_of_eight_bits_are_not_changed(tmp_path):
    case = "SmolLM3ForCausalLM, patterns"
    write_base(tmp_path / "base", CASES[case]["family"])
    write_adapter(tmp_path / "adapter", case)
    name, values = (
        "model.layers.0.mlp.up_proj.weight",
        tensors(FAMILIES["SmolLM3ForCausalLM"]["shapes"]),
    )
    values[f"{name}_scale_inv"] = np.ones((1, 1), np.float32)
    save_file(values, tmp_path / "base" / "model.safetensors")
    with pytest.raises(ModelFileError, match=rf"{name}: an adapter of a matrix of eight bits"):
        convert(tmp_path / "base", tmp_path / "model.gguf", lora=[tmp_path / "adapter"])


def test_adapters_are_merged_one_after_the_other(tmp_path):
    """Of both the changes add, and a table that one replaced is what the other changes."""
    name = "Olmo2ForCausalLM"
    write_base(tmp_path / "base", name)
    folders = [tmp_path / kind for kind in ("saved", "output")]
    for folder in folders:
        write_adapter(folder, f"{name}, {folder.name}")
    found = {}
    for i, given in enumerate(([], folders[:1], folders[1:], folders)):
        out = tmp_path / f"{i}.gguf"
        convert(tmp_path / "base", out, outtype="f32", lora=given)
        with load_model(out) as model:
            found[i] = {n: t.array().astype(np.float64) for n, t in model.tensors.items()}
    for tensor, values in found[0].items():
        changes = sum(found[i][tensor] - values for i in (1, 2))
        np.testing.assert_allclose(found[3][tensor], values + changes, rtol=0, atol=1e-5)
    assert any((found[1][n] != found[2][n]).any() for n in found[0])


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
    merged, words = tmp_path / "m.gguf", ["--outtype", "f32", "--lora", str(tmp_path / "adapter")]
    assert main(["convert", str(tmp_path / "base"), str(merged), *words]) == 0
    check_near(made(merged), case)
    assert main(["convert", str(tmp_path / "adapter"), str(out), *words]) == 2
    assert "--lora is for a model" in capsys.readouterr().err
