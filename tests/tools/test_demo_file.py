"""The shipped demo model is what it says it is; only the `gguf` reader looks at it."""

import json
from pathlib import Path

import gguf
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "mtpcore/data/demo.gguf"
PROMPTS = ROOT / "tests/data/demo/prompts.json"
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


@pytest.fixture(scope="module")
def reader():
    return gguf.GGUFReader(MODEL)


@pytest.fixture(scope="module")
def tensors(reader):
    return {t.name: t for t in reader.tensors}


def value(reader, key):
    return reader.fields[key].contents()


def test_file_is_at_most_five_megabytes():
    assert MODEL.stat().st_size <= 5_000_000


def test_architecture_is_glm_with_one_nextn_block(reader):
    assert value(reader, "general.architecture") == "glm4moe"
    assert value(reader, "glm4moe.nextn_predict_layers") == 1
    assert value(reader, "glm4moe.leading_dense_block_count") == 1
    assert value(reader, "glm4moe.expert_gating_func") == gguf.ExpertGatingFuncType.SIGMOID
    n_rope = value(reader, "glm4moe.rope.dimension_count")
    assert 0 < n_rope < value(reader, "glm4moe.attention.key_length")
    n_head_kv = value(reader, "glm4moe.attention.head_count_kv")
    assert n_head_kv < value(reader, "glm4moe.attention.head_count")


def test_two_to_four_million_weights(tensors):
    assert 2_000_000 <= sum(int(t.n_elements) for t in tensors.values()) <= 4_000_000


def test_tensors_are_those_of_a_complete_file(reader, tensors):
    attention = ["attn_norm.weight", "attn_output.weight", "post_attention_norm.weight"]
    attention += [f"attn_{x}.{kind}" for x in "qkv" for kind in ("weight", "bias")]
    dense = ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]
    routed = ["ffn_gate_inp.weight", "exp_probs_b.bias"]
    routed += [f"ffn_{x}_{s}.weight" for x in ("gate", "up", "down") for s in ("exps", "shexp")]
    nextn = [f"nextn.{x}.weight" for x in ("eh_proj", "enorm", "hnorm", "shared_head_norm")]
    last = value(reader, "glm4moe.block_count") - 1
    wanted = {"token_embd.weight", "output_norm.weight", "output.weight"}
    for i in range(last + 1):
        parts = attention + (dense if i == 0 else routed) + (nextn if i == last else [])
        wanted |= {f"blk.{i}.{part}" for part in parts}
    assert set(tensors) == wanted


def test_matrices_are_q8_0_and_the_rest_f32(tensors):
    for name, t in tensors.items():
        is_plain = len(t.shape) == 1 or "ffn_gate_inp." in name
        assert t.tensor_type == (F32 if is_plain else Q8_0), name


def test_correction_biases_were_moved_by_load(tensors):
    biases = [t.data for name, t in tensors.items() if name.endswith("exp_probs_b.bias")]
    assert len(biases) > 1
    assert all(b.std() > 1e-3 for b in biases)


def test_table_and_output_matrix_are_not_the_same(tensors):
    table, output = tensors["token_embd.weight"], tensors["output.weight"]
    assert table.shape.tolist() == output.shape.tolist()
    assert (table.data != output.data).any()


def test_tokenizer_covers_the_table(reader, tensors):
    tokens = value(reader, "tokenizer.ggml.tokens")
    assert len(tokens) == len(set(tokens)) == tensors["token_embd.weight"].shape[1]
    assert value(reader, "tokenizer.ggml.model") == "gpt2"
    assert value(reader, "tokenizer.ggml.pre") == "qwen2"
    known = set(tokens)
    for merge in value(reader, "tokenizer.ggml.merges"):
        assert merge.replace(" ", "") in known


def test_file_says_where_it_comes_from(reader):
    assert value(reader, "general.license") == "PSF-2.0"
    description = value(reader, "general.description")
    assert "tools/train_demo.py" in description
    assert "seed" in description


def test_twenty_held_out_prompts():
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    assert len(prompts) == 20
    assert len({p["text"] for p in prompts}) == 20
    for prompt in prompts:
        assert prompt["file"].endswith(".py")
        assert prompt["text"].endswith("\n")
        assert 60 <= len(prompt["text"]) <= 400
