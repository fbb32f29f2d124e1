"""Small random hybrids against what transformers makes of them, from the checkpoint on."""

import numpy as np
import pytest
from harness import qwen
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from mtpcore_qwen_mtp.values import rows_in_tiles

from mtpcore import Batch, Context, load_model
from mtpcore.conversion import convert
from mtpcore.gguf import open_model_file, write_model_file

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4


@pytest.fixture(scope="module", params=qwen.SHAPES)
def made(request, tmp_path_factory):
    """Return a shape, its model in float32, and its references."""
    s, folder = qwen.SHAPES[request.param], tmp_path_factory.mktemp("qwen")
    tensors = qwen.published(s, qwen.weights(s))
    write_checkpoint(folder / "hf", qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    with np.load(DATA / "qwen" / "refs.npz") as file:
        refs = {
            name.partition("/")[2]: file[name] for name in file if name.startswith(request.param)
        }
    with load_model(folder / "model.gguf") as model:
        yield s, model, refs


def open_context(model, backend, **settings):
    return Context(model, 64, **{"kv_dtype": "f32", "threads": 1, "backend": backend, **settings})


@backends
def test_trunk(made, backend):
    s, model, refs = made
    assert ("output.weight" in model.tensors) == (not s.tied)
    context = open_context(model, backend, taps=["hidden"])
    out = context.process(Batch.of(qwen.tokens(), outputs="all"))
    assert np.abs(out.logits - refs["logits"]).max() < CLOSE
    assert np.abs(out.tap("hidden") - refs["hidden"]).max() < CLOSE


@backends
def test_positions_on_several_axes(made, backend):
    s, model, refs = made
    if s.family == "qwen3_next":
        assert model.hparams.rotary_axes == 1
        return
    context = open_context(model, backend, taps=["hidden"])
    axes = np.concatenate([qwen.positions(), np.zeros((1, 20), np.int32)]).T
    out = context.process(Batch(qwen.tokens(), pos=axes))
    assert np.abs(out.tap("hidden") - refs["turned"]).max() < CLOSE
    assert np.abs(refs["hidden"] - refs["turned"]).max() > 0.01


@backends
def test_head(made, backend):
    _, model, refs = made
    context = open_context(model, backend, graph_type="draft", drafter="qwen_mtp")
    slots = {"hidden": refs["hidden"][:-1]}
    out = context.process(Batch(qwen.tokens()[1:], pos=1, slots=slots, outputs="all"))
    assert np.abs(out.logits - refs["head_logits"]).max() < CLOSE
    assert np.abs(out.tap("hidden") - refs["head_hidden"]).max() < CLOSE


# Files that hold the same in other pieces


def take_apart(folder, name):
    """Return a shape's weights, and the metadata and tensors of its file."""
    s = qwen.SHAPES[name]
    w = qwen.weights(s)
    write_checkpoint(
        folder / "hf", qwen.configuration(s), qwen.published(s, w), tokenizer(qwen.N_VOCAB)
    )
    convert(folder / "hf", folder / "whole.gguf", outtype="f32")
    with open_model_file(folder / "whole.gguf") as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        return w, file.architecture, dict(file.metadata), tensors


def compare(folder, architecture, metadata, tensors):
    """Compare such a file with the whole one, trunk and head, to the last bit."""
    write_model_file(folder / "other.gguf", architecture, metadata, tensors)
    rows = np.random.default_rng(2).normal(0, 1, (7, qwen.WIDTH)).astype(np.float32)
    made = []
    for name in ("whole", "other"):
        with load_model(folder / f"{name}.gguf") as model:
            for backend in ("cpu", "reference"):
                context = open_context(model, backend)
                out = context.process(Batch.of(qwen.tokens(8), outputs="all"))
                head = open_context(model, backend, graph_type="draft", drafter="qwen_mtp")
                batch = Batch(qwen.tokens(8)[1:], pos=1, slots={"hidden": rows}, outputs="all")
                made.append([out.logits.copy(), head.process(batch).logits.copy()])
    for whole, other in zip(made[:2], made[2:], strict=True):
        assert all(map(np.array_equal, whole, other))


def test_heads_that_keep_their_order_are_found(tmp_path, monkeypatch):
    """A planted fault: a file has V heads as the checkpoint has them, not in tiles."""
    name = "irregular layers, tied"
    order = (lambda values, config: values).__code__  # renames hold the function itself
    monkeypatch.setattr(rows_in_tiles, "__code__", order)
    take_apart(tmp_path, name)
    with np.load(DATA / "qwen" / "refs.npz") as file:
        wanted = file[f"{name}/logits"]
    with load_model(tmp_path / "whole.gguf") as model:
        out = open_context(model, "cpu").process(Batch.of(qwen.tokens(), outputs="all"))
        assert np.abs(out.logits - wanted).max() > 100 * CLOSE


def test_rows_and_gate_from_one_matrix(tmp_path):
    w, architecture, metadata, tensors = take_apart(tmp_path, "grouped")
    for n in range(3):
        del tensors[f"blk.{n}.attn_qkv.weight"], tensors[f"blk.{n}.attn_gate.weight"]
        fused = w[f"model.layers.{n}.linear_attn.in_proj_qkvz.weight"]
        tensors[f"blk.{n}.ssm_in.weight"] = fused
    compare(tmp_path, architecture, metadata, tensors)


def test_queries_keys_and_values_from_one_matrix(tmp_path):
    _, architecture, metadata, tensors = take_apart(tmp_path, "irregular layers, tied")
    for n in (0, 3):
        parts = [tensors.pop(f"blk.{n}.attn_{x}.weight") for x in "qkv"]
        tensors[f"blk.{n}.attn_qkv.weight"] = np.concatenate(parts)
    compare(tmp_path, architecture, metadata, tensors)


def test_gate_and_up_of_experts_from_one_matrix(tmp_path):
    _, architecture, metadata, tensors = take_apart(tmp_path, "experts in one piece")
    for n in range(qwen.SHAPES["experts in one piece"].n_layers + 1):
        parts = [tensors.pop(f"blk.{n}.ffn_{x}_exps.weight") for x in ("gate", "up")]
        tensors[f"blk.{n}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    compare(tmp_path, architecture, metadata, tensors)


@pytest.mark.parametrize("name", ["irregular layers, tied", "grouped"])
def test_files_as_ollama_writes_them(name, tmp_path):
    """Key heads by layer, three sections, a name without a suffix, Qwen3-Next as Qwen3.5."""
    s = qwen.SHAPES[name]
    _, architecture, metadata, tensors = take_apart(tmp_path, name)
    metadata = {
        key.partition(".")[2]: value for key, value in metadata.items() if architecture in key
    }
    del metadata["attention.recurrent_layers"], metadata["full_attention_interval"]
    counts = [qwen.N_KV_HEADS * (kind == qwen.FULL) for kind in s.kinds]
    metadata["attention.head_count_kv"] = np.array([*counts, qwen.N_KV_HEADS], np.int32)
    if s.family == "qwen3_next":
        metadata["ssm.v_head_reordered"] = False
    else:
        metadata["rope.dimension_sections"] = metadata["rope.dimension_sections"][:3]
    for n, kind in enumerate(s.kinds):
        if kind == qwen.LINEAR:
            tensors[f"blk.{n}.ssm_dt"] = tensors.pop(f"blk.{n}.ssm_dt.bias")
    metadata = {f"qwen35moe.{key}": value for key, value in metadata.items()}
    compare(tmp_path, "qwen35moe", metadata, tensors)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_small_types_leave_small_tensors_as_they_are(kind, tmp_path):
    s = qwen.SHAPES["experts in one piece"]
    tensors = qwen.published(s, qwen.weights(s))
    write_checkpoint(tmp_path / "hf", qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype=kind)
    exact = {"ssm_a", "ssm_dt.bias", "ssm_conv1d.weight"}
    exact |= {"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"}
    with load_model(tmp_path / "model.gguf") as model:
        found = {t.name.split(".", 2)[-1]: t.type_name for t in model.tensors.values()}
    assert {found[name] for name in exact} == {"F32"}
    assert {kind for name, kind in found.items() if name.endswith("norm.weight")} == {"F32"}
    assert "F32" not in {found[name] for name in ("attn_qkv.weight", "ssm_out.weight")}
