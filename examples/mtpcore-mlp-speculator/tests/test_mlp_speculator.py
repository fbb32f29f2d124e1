"""Random checkpoints are converted; drafts are those of the formulas, and change no token."""

import json
import math
import struct

import msgspec
import mtpcore_mlp_speculator
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Sampling
from mtpcore.conversion import convert
from mtpcore.discovery.registry import describe_plugins
from mtpcore.gguf import write_model_file
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_drafts,
    check_graphs,
    check_rows,
    check_texts,
)
from mtpcore.testing.machine import machine_of

FEW = settings(
    max_examples=3, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)

WIDTH, INNER, N_VOCAB, N_STEPS, EPS = 32, 64, 48, 3, 1e-6
KINDS = ["mlp", "tied mlp", "scaled mlp", "lstm", "scaled lstm"]


def matrix(made, *shape):
    return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)


def weights_of(kind, seed=0):
    """Return random weights by their published names."""
    made = np.random.default_rng(seed)
    if "lstm" in kind:
        found = {"forget_emb.0.weight": matrix(made, N_VOCAB, INNER)}
        found["head.0.weight"] = matrix(made, N_VOCAB, INNER)
        norms, projs, rows = ("cell_ln.0", "state_ln.0"), ("projs.0", "projs.1"), 4 * INNER
    else:
        own = 1 if "tied" in kind else N_STEPS
        found = {f"emb.{i}.weight": matrix(made, N_VOCAB, INNER) for i in range(own)}
        found |= {f"head.{i}.weight": matrix(made, N_VOCAB, INNER) for i in range(own)}
        norms, rows = [f"ln.{i}" for i in range(own)], INNER
        projs = [f"proj.{i}" for i in range(2 if "tied" in kind else N_STEPS)]
    for i, name in enumerate(projs):
        found[f"{name}.weight"] = matrix(made, rows, INNER if i else WIDTH)
    for name in norms:
        found[f"{name}.weight"] = made.uniform(0.5, 1.5, INNER).astype(np.float32)
        found[f"{name}.bias"] = made.normal(0, 0.1, INNER).astype(np.float32)
    return found


def write_checkpoint(folder, kind, weights):
    folder.mkdir()
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": WIDTH,
        "inner_dim": f"{INNER}.{INNER}" if "lstm" in kind else INNER,
        "n_predict": N_STEPS,
        "vocab_size": N_VOCAB,
        "tie_weights": "mlp" not in kind or "tied" in kind,
        "scale_input": "scaled" in kind,
        **({"method": "sum_lstm", "tie_lstm_embs": True} if "lstm" in kind else {}),
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, values in weights.items():
        header[f"speculator.{name}"] = {
            "dtype": "F32",
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_target(folder):
    """Write a Llama of random weights, and its checkpoint as far as converting needs it."""
    made = np.random.default_rng(7)
    tensors = {
        "token_embd.weight": matrix(made, N_VOCAB, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": matrix(made, N_VOCAB, WIDTH),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        **{f"blk.0.attn_{x}.weight": matrix(made, WIDTH, WIDTH) for x in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{x}.weight": matrix(made, WIDTH, WIDTH) for x in ("gate", "up", "down")},
    }
    metadata = {
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 8,
    }
    write_model_file(folder / "llama.gguf", "llama", metadata, tensors)
    (folder / "target").mkdir()
    sizes = {"num_hidden_layers": 1, "hidden_size": WIDTH, "vocab_size": N_VOCAB}
    (folder / "target" / "config.json").write_text(json.dumps({"architectures": ["Any"], **sizes}))
    words = {word: i for i, word in enumerate(["a", "b", "ab", *map(chr, range(99, 144))])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": words, "merges": ["a b"]},
    }
    (folder / "target" / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.fixture(scope="module", params=KINDS)
def speculator(request, tmp_path_factory):
    """A target with one of the speculators beside it, and its published weights."""
    kind, folder = request.param, tmp_path_factory.mktemp("speculator")
    weights = weights_of(kind)
    write_checkpoint(folder / "published", kind, weights)
    write_target(folder)
    convert(folder / "published", folder / "draft.gguf", outtype="f32", target=folder / "target")
    name = "lstm_speculator" if "lstm" in kind else "mlp_speculator"
    subject = Subject(
        name, str(folder / "llama.gguf"), draft_path=str(folder / "draft.gguf"), drafter=name
    )
    return kind, subject, {name: values.astype(np.float64) for name, values in weights.items()}


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, w, name):
    return x / np.sqrt(np.mean(x**2) + EPS) * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp_scores(kind, w, state, tokens):
    """As the reference code computes them, step by step."""
    state_weight = 0.5 ** (0.5 / N_STEPS)
    token_weight = math.sqrt((1 - state_weight**2) * (INNER / 2))
    for i, token in enumerate(tokens):
        own, projection = (0, min(i, 1)) if "tied" in kind else (i, i)
        z = w[f"emb.{own}.weight"][token]
        state = w[f"proj.{projection}.weight"] @ state + z * (token_weight / state_weight)
        state = gelu(norm(state, w, f"ln.{own}"))
        yield w[f"head.{own}.weight"] @ state


def lstm_scores(kind, w, state, tokens):
    state_weight = 0.5 ** (0.5 / N_STEPS)
    token_weight = math.sqrt((1 - state_weight**2) * (INNER / 2))
    cell = np.zeros(INNER)
    for i, token in enumerate(tokens):
        z = np.tile(w["forget_emb.0.weight"][token], 4)
        added = w[f"projs.{min(i, 1)}.weight"] @ state + z * (token_weight / state_weight)
        forget, write, read, new = np.split(added, 4)
        cell = cell * sigmoid(forget) + gelu(norm(new, w, "cell_ln.0")) * sigmoid(write)
        state = gelu(norm(cell, w, "state_ln.0")) * sigmoid(read)
        yield w["head.0.weight"] @ state


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "mlp_speculator")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-mlp-speculator 0.1.0",)
    assert mtpcore_mlp_speculator.MLP in plugin.drafters or len(plugin.drafters) == 4


def test_drafts_are_those_of_the_formula(speculator):
    kind, subject, w = speculator
    follow = lstm_scores if "lstm" in kind else mlp_scores

    def scores(tokens, rows, drafts):
        row = rows["hidden"][-1].astype(np.float64)
        if "scaled" in kind:
            row = row / np.sqrt(np.mean(row**2) + EPS) / math.sqrt(2)
        return [*follow(kind, w, row, [tokens[-1], *drafts[:-1]])]

    assert check_drafts(subject, scores, k=N_STEPS, bound=1e-3) > 100


def test_the_backend_computes_the_graphs(speculator):
    assert check_graphs(speculator[1]) > 0


def test_what_others_ask_makes_no_difference(speculator):
    check_rows(speculator[1], Batching(chunk=4, n_batch=3, neighbours=2))


few_kinds = pytest.mark.parametrize("speculator", ["tied mlp", "scaled lstm"], indirect=True)
"""Which tokens are drafted differs among kinds, and nothing of how they are verified."""


@few_kinds
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("as_tree", [False, True])
def test_drafting_changes_no_token(speculator, temperature, as_tree):
    subject, spec = speculator[1], speculator[1].spec
    if as_tree:
        spec = msgspec.structs.replace(spec, shape="tree", tree=mtpcore_mlp_speculator.TREE)
    texts = Texts(k=N_STEPS, sampling=Sampling(temperature=temperature, seed=3))
    assert 0 <= check_texts(subject, texts, spec) <= 1


@few_kinds
def test_nothing_is_left_of_rejected_drafts(speculator):
    """Whatever is drafted, verified, taken back and copied, every role is as one that is new."""
    run_state_machine_as_test(machine_of(speculator[1]), settings=FEW)
