"""Random checkpoints are converted; drafts are those of the formula, and change no token."""

import json
import struct

import mtpcore_hydra
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import ModelFileError, Sampling
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

WIDTH, N_VOCAB, FFN, N_HEADS, N_BLOCKS, EPS = 32, 48, 64, 4, 3, 1e-5
ATTENTION_HEADS, KV_HEADS = 4, 2
KINDS = ["mlp", "prefix-mlp"]
TARGET = {
    "architectures": ["Any"],
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "max_position_embeddings": 256,
    "num_attention_heads": ATTENTION_HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "vocab_size": N_VOCAB,
}


def matrix(made, *shape):
    return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)


def layer_of(made, prefix):
    """Return the weights of a layer of Llama by their published names."""
    kv = KV_HEADS * WIDTH // ATTENTION_HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (kv, WIDTH),
        "self_attn.v_proj": (kv, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (FFN, WIDTH),
        "mlp.up_proj": (FFN, WIDTH),
        "mlp.down_proj": (WIDTH, FFN),
    }
    found = {f"{prefix}{name}.weight": matrix(made, *shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        found[f"{prefix}{name}.weight"] = made.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    return found


def weights_of(kind, seed=0):
    """Return random weights by their published names: blocks after the first are one module."""
    made, found = np.random.default_rng(seed), {}
    first, step = (0, 1) if kind == "mlp" else (1, 2)
    for i in range(N_HEADS):
        read, later = (i + 2) * WIDTH, 2 * matrix(made, WIDTH, WIDTH)
        bias = matrix(made, WIDTH)
        for b in range(N_BLOCKS):
            name = f"hydra_mlp.{i}.{first + step * b}"
            found[f"{name}.linear.weight"] = later if b else 2 * matrix(made, WIDTH, read)
            found[f"{name}.linear.bias"] = bias if b else matrix(made, WIDTH)
        entry = f"hydra_mlp.{i}.{first}.res_connection"
        found[f"{entry}.weight"], found[f"{entry}.bias"] = matrix(made, WIDTH, read), bias
        output = f"hydra_lm_head.{i}" if kind == "mlp" else f"hydra_lm_head.{i}.1"
        found[f"{output}.weight"] = matrix(made, N_VOCAB, WIDTH)
        found[f"{output}.bias"] = matrix(made, N_VOCAB)
    if kind == "prefix-mlp":
        prefix = "prefix_embeding_layer."
        found |= layer_of(made, f"{prefix}layers.0.")
        found[f"{prefix}norm.weight"] = made.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        found[f"{prefix}embed_tokens.weight"] = matrix(made, N_VOCAB, WIDTH)  # never read
    return found


def write_checkpoint(folder, kind, weights, **changed):
    folder.mkdir()
    config = {
        "base_model_name_or_path": "somebody/some-model",
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "hydra_head_arch": kind,
        "hydra_num_heads": N_HEADS,
        "hydra_num_layers": N_BLOCKS,
        "transformers_version": "4.36.2",
    }
    (folder / "config.json").write_text(json.dumps(config | changed))
    header, data = {}, b""
    for name, values in weights.items():
        header[name] = {
            "dtype": "F32",
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + data
    (folder / "hydra_lm_head.safetensors").write_bytes(content)


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
    (folder / "target" / "config.json").write_text(json.dumps(TARGET))
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
def hydra(request, tmp_path_factory):
    """A target with heads beside it, as a chain and as a tree, and their published weights."""
    kind, folder = request.param, tmp_path_factory.mktemp("hydra")
    weights = weights_of(kind)
    write_checkpoint(folder / "published", kind, weights)
    write_target(folder)
    convert(folder / "published", folder / "draft.gguf", outtype="f32", target=folder / "target")
    files = str(folder / "llama.gguf"), str(folder / "draft.gguf")
    name = "hydra" if kind == "mlp" else "hydra_prefix"
    chain, tree = (
        Subject(one, files[0], draft_path=files[1], drafter=one) for one in (name, f"{name}_tree")
    )
    weights["embed_tokens.weight"] = chain.model.tensors["token_embd.weight"].array()
    return chain, tree, {key: values.astype(np.float64) for key, values in weights.items()}


def silu(x):
    return x / (1 + np.exp(-x))


def norm(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * weight


def rotated(x):
    """Turn the pairs (i, i + width / 2) of heads [rows, heads, width], row p by its position."""
    half = x.shape[2] // 2
    angles = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)


def prefixed(w, rows):
    """Return the rows as the authors' layer before the heads makes them: one layer of Llama."""
    layer = "prefix_embeding_layer.layers.0."

    def heads(x, name, n):
        return (x @ w[f"{layer}self_attn.{name}_proj.weight"].T).reshape(len(x), n, -1)

    x = norm(rows, w[f"{layer}input_layernorm.weight"])
    q = rotated(heads(x, "q", ATTENTION_HEADS))
    k, v = (
        np.repeat(one, ATTENTION_HEADS // KV_HEADS, axis=1)
        for one in (rotated(heads(x, "k", KV_HEADS)), heads(x, "v", KV_HEADS))
    )
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[2])
    scores += np.where(np.tri(len(rows), dtype=bool), 0, -np.inf)
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, v).reshape(len(rows), -1)
    rows = rows + attended @ w[f"{layer}self_attn.o_proj.weight"].T
    x = norm(rows, w[f"{layer}post_attention_layernorm.weight"])
    gate, up = (x @ w[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    rows = rows + (silu(gate) * up) @ w[f"{layer}mlp.down_proj.weight"].T
    return norm(rows, w["prefix_embeding_layer.norm.weight"])


def logits_of(w, row, tokens, head):
    """As the authors' code computes them of a row and all tokens after it."""
    dropouts = int("hydra_mlp.0.0.linear.weight" not in w)
    path = np.concatenate([row, *w["embed_tokens.weight"][tokens]])
    x = path
    for b in range(N_BLOCKS):
        name = f"hydra_mlp.{head}.{b * (1 + dropouts) + dropouts}"
        y = silu(w[f"{name}.linear.weight"] @ x + w[f"{name}.linear.bias"])
        if b == 0:
            x = w[f"{name}.res_connection.weight"] @ x + w[f"{name}.res_connection.bias"]
        x = x + y
    name = f"hydra_lm_head.{head}" + ".1" * dropouts
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "hydra")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-hydra 0.1.0",)
    assert mtpcore_hydra.HYDRA in plugin.drafters or len(plugin.drafters) == 4


def test_drafts_are_those_of_the_formula(hydra):
    """Of chains and trees: each draft reads those on its own path."""
    chain, tree, w = hydra

    def scores(tokens, rows, drafts):
        hidden = rows["hidden"].astype(np.float64)
        row = (prefixed(w, hidden) if "prefix_embeding_layer.norm.weight" in w else hidden)[-1]
        read = [tokens[-1], *drafts]
        return [logits_of(w, row, read[: head + 1], head) for head in range(len(drafts))]

    assert check_drafts(chain, scores, k=N_HEADS, n_tokens=12, kv_dtype="f32", bound=1e-3) > 60
    assert check_drafts(tree, scores, k=N_HEADS, n_tokens=6, kv_dtype="f32", bound=1e-3) > 60


def test_the_backend_computes_the_graphs(hydra):
    assert check_graphs(hydra[0]) > 0


def test_what_others_ask_makes_no_difference(hydra):
    check_rows(hydra[0], Batching(chunk=4, n_batch=3, neighbours=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("as_tree", [False, True])
def test_drafting_changes_no_token(hydra, temperature, as_tree):
    texts = Texts(k=N_HEADS, sampling=Sampling(temperature=temperature, seed=3))
    assert 0 <= check_texts(hydra[as_tree], texts) <= 1


def test_nothing_is_left_of_rejected_drafts(hydra):
    """Whatever is drafted, verified, taken back and copied, every role is as one that is new."""
    for subject in hydra[:2]:
        run_state_machine_as_test(machine_of(subject), settings=FEW)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hydra_head_arch": "cross-attn"}, "hydra_head_arch"),
        ({"hydra_head_arch": "prefix-mlp"}, "hydra_head_arch"),
        ({"grounded_heads": False}, "grounded_heads"),
        ({"hidden_state_offset": 1}, "hidden_state_offset"),
        ({"hydra_num_layers": 9}, "hydra_num_layers is 9"),
        ({"hydra_num_layers": 2}, "hydra_mlp.0.2.linear"),
    ],
)
def test_other_heads_are_refused(tmp_path, changed, said):
    write_target(tmp_path)
    write_checkpoint(tmp_path / "published", "mlp", weights_of("mlp"), **changed)
    with pytest.raises(ModelFileError) as error:
        convert(tmp_path / "published", tmp_path / "draft.gguf", target=tmp_path / "target")
    assert said in str(error.value)
    assert not (tmp_path / "draft.gguf").exists()
