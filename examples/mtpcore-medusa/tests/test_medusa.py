"""Random checkpoints are converted; drafts are those of the formula, and change no token."""

import json
import struct

import mtpcore_medusa
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Context, Sampling, link
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

WIDTH, N_VOCAB, N_HEADS, N_DRAFT = 32, 48, 4, 20
KINDS = ["own output", "one output", "the target's output", "biases", "reduced"]
DTYPES = {"float32": "F32", "int64": "I64"}


def matrix(made, *shape):
    return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)


def weights_of(kind, seed=0):
    """Return random weights by their published names."""
    made, found = np.random.default_rng(seed), {}
    n_out = N_DRAFT if kind == "reduced" else N_VOCAB
    for i in range(N_HEADS):
        found[f"blocks.{i}.layers.0.weight"] = 2 * matrix(made, WIDTH, WIDTH)
        if kind == "biases":
            found[f"blocks.{i}.layers.0.bias"] = matrix(made, WIDTH)
        if "output" not in kind or kind == "own output":
            found[f"lm_heads.{i}.weight"] = matrix(made, n_out, WIDTH)
    if kind == "one output":
        found["lm_head.weight"] = matrix(made, N_VOCAB, WIDTH)
    if kind == "reduced":
        found["token_map"] = np.sort(made.permutation(N_VOCAB)[:N_DRAFT])
    return found


def write_checkpoint(folder, weights):
    folder.mkdir()
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": WIDTH,
        "num_heads": N_HEADS,
        "num_hidden_layers": 1,
        "vocab_size": N_VOCAB,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, values in weights.items():
        header[name] = {
            "dtype": DTYPES[str(values.dtype)],
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
def medusa(request, tmp_path_factory):
    """A target with heads beside it, and their published weights."""
    kind, folder = request.param, tmp_path_factory.mktemp("medusa")
    weights = weights_of(kind)
    write_checkpoint(folder / "published", weights)
    write_target(folder)
    convert(folder / "published", folder / "draft.gguf", outtype="f32", target=folder / "target")
    files = str(folder / "llama.gguf"), str(folder / "draft.gguf")
    subjects = {
        name: Subject(name, files[0], draft_path=files[1], drafter=name)
        for name in ("medusa", "medusa_tree")
    }
    if kind == "the target's output":
        weights["lm_head.weight"] = subjects["medusa"].model.tensors["output.weight"].array()
    return subjects, weights


def logits_of(weights, row, head):
    """As the reference code computes them; -inf for tokens that cannot be drafted."""
    linear = f"blocks.{head}.layers.0"
    z = weights[f"{linear}.weight"] @ row + weights.get(f"{linear}.bias", 0.0)
    x = row + z / (1 + np.exp(-z))
    made = weights.get(f"lm_heads.{head}.weight", weights.get("lm_head.weight")) @ x
    if "token_map" not in weights:
        return made
    every = np.full(N_VOCAB, -np.inf)
    every[weights["token_map"]] = made
    return every


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "medusa")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-medusa 0.1.0",)
    assert [spec.name for spec in plugin.drafters] == ["medusa", "medusa_tree"]


def test_drafts_are_those_of_the_formula(medusa):
    subjects, weights = medusa

    def scores(tokens, rows, drafts):
        return [logits_of(weights, rows["hidden"][-1], head) for head in range(len(drafts))]

    assert check_drafts(subjects["medusa"], scores, k=N_HEADS, n_tokens=12, bound=1e-3) > 60


def test_a_tree_holds_the_best_tokens_of_each_head(medusa):
    subjects, weights = medusa
    model, draft_model = subjects["medusa"].model, subjects["medusa"].draft_model
    llm = Context(model, 64, taps=["hidden"])
    cross = link(llm, "medusa_tree", draft_model=draft_model)
    row = llm.process(Batch.of([5, 6, 7])).tap("hidden")[-1]
    tree = cross.draft(0, N_HEADS)
    best = [np.argsort(-logits_of(weights, row, head))[:3] for head in range(N_HEADS)]
    paths = mtpcore_medusa.MEDUSA_TREE.tree.paths
    assert len(tree) == len(paths) == 24
    for path, node in zip(paths, range(len(tree)), strict=True):
        tokens = []
        while node >= 0:
            tokens.append(tree.tokens[node])
            node = tree.parent[node]
        assert tokens[::-1] == [best[head][rank] for head, rank in enumerate(path)]


def test_the_backend_computes_the_graphs(medusa):
    assert check_graphs(medusa[0]["medusa"]) > 0


def test_what_others_ask_makes_no_difference(medusa):
    check_rows(medusa[0]["medusa"], Batching(chunk=4, n_batch=3, neighbours=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["medusa", "medusa_tree"])
def test_drafting_changes_no_token(medusa, temperature, name):
    texts = Texts(k=N_HEADS, sampling=Sampling(temperature=temperature, seed=3))
    assert 0 <= check_texts(medusa[0][name], texts) <= 1


def test_nothing_is_left_of_rejected_drafts(medusa):
    """Whatever is drafted, verified, taken back and copied, every role is as one that is new."""
    for subject in medusa[0].values():
        run_state_machine_as_test(machine_of(subject), settings=FEW)
