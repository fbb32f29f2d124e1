"""The head on a generated model: it is found, computes its formula, and changes no token."""

import mtpcore_llama_nextn
import numpy as np
import pytest

from mtpcore import Context, Generator, Sampling, link
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import describe_plugins
from mtpcore.gguf import write_model_file
from mtpcore.testing import Runner, Subject, check_drafts, check_graphs

WIDTH, N_VOCAB, N_HEADS, N_KV_HEADS, HEAD_WIDTH, FFN, N_LAYERS = 32, 48, 4, 2, 8, 64, 2
NEXTN = f"blk.{N_LAYERS}.nextn"


def tensors(seed=0, quiet_layer=False):
    """Random weights; with ``quiet_layer`` the head's layer adds nothing to the residual."""
    made = np.random.default_rng(seed)

    def matrix(*shape):
        return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    def norm():
        return made.uniform(0.5, 1.5, WIDTH).astype(np.float32)

    found = {"token_embd.weight": matrix(N_VOCAB, WIDTH), "output_norm.weight": norm()}
    found["output.weight"] = matrix(N_VOCAB, WIDTH)
    for n in range(N_LAYERS + 1):
        quiet = 0.0 if quiet_layer and n == N_LAYERS else 1.0
        found |= {
            f"blk.{n}.attn_norm.weight": norm(),
            f"blk.{n}.attn_q.weight": matrix(N_HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{n}.attn_k.weight": matrix(N_KV_HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{n}.attn_v.weight": matrix(N_KV_HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{n}.attn_output.weight": quiet * matrix(WIDTH, N_HEADS * HEAD_WIDTH),
            f"blk.{n}.ffn_norm.weight": norm(),
            f"blk.{n}.ffn_gate.weight": matrix(FFN, WIDTH),
            f"blk.{n}.ffn_up.weight": matrix(FFN, WIDTH),
            f"blk.{n}.ffn_down.weight": quiet * matrix(WIDTH, FFN),
        }
    found |= {f"{NEXTN}.enorm.weight": norm(), f"{NEXTN}.hnorm.weight": norm()}
    found[f"{NEXTN}.eh_proj.weight"] = matrix(WIDTH, 2 * WIDTH)
    return {name: np.asarray(values, np.float32) for name, values in found.items()}


def load(folder, weights):
    """Write a model file and load it, with whatever plugins are installed."""
    metadata = {
        "llama.block_count": N_LAYERS + 1,
        "llama.nextn_predict_layers": 1,
        "llama.context_length": 256,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": N_HEADS,
        "llama.attention.head_count_kv": N_KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_WIDTH,
    }
    write_model_file(folder / "tiny.gguf", "llama", metadata, weights)
    return load_model(folder / "tiny.gguf")


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "llama_nextn")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-llama-nextn 0.1.0",)
    assert [spec.name for spec in plugin.drafters] == [mtpcore_llama_nextn.NEXTN.name]


def test_head_is_found_by_its_tensors(tmp_path):
    weights = tensors()
    model = load(tmp_path, weights)
    # Other installed plugins may offer proposers, which fit every model; heads come first.
    assert model.drafters[0].name == "llama_nextn"
    assert model.hparams.n_layers == N_LAYERS
    assert [use.tensor for use in model.tie_report()] == [
        "token_embd.weight",
        "output.weight",
        "output_norm.weight",
    ]
    without = load(tmp_path, {name: v for name, v in weights.items() if "nextn" not in name})
    assert "llama_nextn" not in [spec.name for spec in without.drafters]


def test_own_matrices_come_before_borrowed_ones(tmp_path):
    weights = tensors()
    weights[f"{NEXTN}.shared_head_head.weight"] = weights["output.weight"][::-1].copy()
    model = load(tmp_path, weights)
    assert f"{NEXTN}.shared_head_head.weight" in model.program("draft").weights()
    assert "output.weight" not in model.program("draft").weights()


def rms(x, weight):
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_head_computes_the_formula(tmp_path, seed):
    w = {name: values.astype(np.float64) for name, values in tensors(seed, True).items()}
    model = load(tmp_path, tensors(seed, True))
    tokens, rows = np.array([3, 1, 4, 1]), np.random.default_rng(seed).normal(size=(4, WIDTH))
    made = Runner(ReferenceBackend(), model.program("draft"), model).feed(
        tokens, place=1, hidden=rows.astype(np.float32)
    )
    token = rms(w["token_embd.weight"][tokens], w[f"{NEXTN}.enorm.weight"])
    hidden = rms(rows, w[f"{NEXTN}.hnorm.weight"])
    x = np.concatenate([token, hidden], axis=1) @ w[f"{NEXTN}.eh_proj.weight"].T
    u = rms(x, w["output_norm.weight"])
    assert np.abs(made["hidden"] - u).max() < 1e-5
    assert np.abs(made["logits"] - u @ w["output.weight"].T).max() < 1e-4


def test_the_backend_computes_the_graph(tmp_path):
    load(tmp_path, tensors())
    subject = Subject("tiny", str(tmp_path / "tiny.gguf"), drafter="llama_nextn")
    assert check_graphs(subject) > 0


def test_drafts_are_those_of_the_formula(tmp_path):
    """Without its layer the head is its formula alone."""
    w = tensors(quiet_layer=True)
    load(tmp_path, w)

    def scores(tokens, rows, drafts):
        row, found = rows["hidden"][-1], []
        for token in [tokens[-1], *drafts[:-1]]:
            x = rms(w["token_embd.weight"][token], w[f"{NEXTN}.enorm.weight"])
            x = np.concatenate([x, rms(row, w[f"{NEXTN}.hnorm.weight"])])
            row = rms(w[f"{NEXTN}.eh_proj.weight"] @ x, w["output_norm.weight"])
            found.append(w["output.weight"] @ row)
        return found

    subject = Subject("tiny", str(tmp_path / "tiny.gguf"), drafter="llama_nextn")
    assert check_drafts(subject, scores) > 0


def test_layer_of_the_head_sees_earlier_rows(tmp_path):
    model = load(tmp_path, tensors())
    rows = np.random.default_rng(2).normal(size=(3, WIDTH)).astype(np.float32)
    whole, split = (Runner(ReferenceBackend(), model.program("draft"), model) for _ in range(2))
    together = whole.feed([5, 6, 7], place=1, hidden=rows)
    apart = [split.feed([5 + i], place=1 + i, hidden=rows[i : i + 1]) for i in range(3)]
    for i, one in enumerate(apart):
        assert np.abs(one["logits"][0] - together["logits"][i]).max() < 1e-5
    alone = Runner(ReferenceBackend(), model.program("draft"), model).feed(
        [7], place=1, hidden=rows[2:]
    )
    assert np.abs(alone["logits"][0] - together["logits"][2]).max() > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_drafting_changes_no_token(tmp_path, temperature):
    model = load(tmp_path, tensors())
    sampling, prompt = Sampling(temperature=temperature, seed=7), [5, 6, 7, 5, 6]
    texts = []
    for draft in (0, 1, 4):
        context = Context(model, n_ctx=64, backend="reference", kv_dtype="f32")
        generator = Generator(link(context, "llama_nextn"), sampling=sampling, draft=draft)
        texts.append(list(generator.generate(prompt, max_tokens=12, ignore_eos=True)))
        assert bool(generator.stats.drafted) == bool(draft)
    assert texts[0] == texts[1] == texts[2]
