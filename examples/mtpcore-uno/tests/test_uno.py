"""Drafts with a random adapter are those of the formula, and change no token."""

import mtpcore_uno
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from mtpcore import Sampling, TreeShape
from mtpcore.discovery.registry import describe_plugins
from mtpcore.drafting.adapter import NoiseTokens
from mtpcore.gguf import write_model_file
from mtpcore.testing import Subject, Texts, check_drafts, check_texts
from mtpcore.testing.machine import machine_of

FEW = settings(
    max_examples=3, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
WIDTH, N_VOCAB, FFN, N_LAYERS, HEADS, KV_HEADS, RANK, ALPHA = 32, 48, 64, 2, 4, 2, 3, 6.0
HEAD = WIDTH // HEADS
EPS, BASE, K = 1e-5, 10000.0, 5
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (FFN, WIDTH),
    "ffn_up": (FFN, WIDTH),
    "ffn_down": (WIDTH, FFN),
}
METADATA = {
    "llama.block_count": N_LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": EPS,
    "llama.rope.dimension_count": HEAD,
    "llama.rope.freq_base": BASE,
}


def matrix(made, *shape):
    return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)


def names_of():
    return {
        f"blk.{n}.{name}.weight": shape for n in range(N_LAYERS) for name, shape in SHAPES.items()
    }


@pytest.fixture(scope="module")
def uno(tmp_path_factory):
    """Return a subject, the target's weights, and what the adapter adds to them."""
    folder, made = tmp_path_factory.mktemp("uno"), np.random.default_rng(0)
    weights = {name: matrix(made, *shape) for name, shape in names_of().items()}
    for n in range(N_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{n}.{name}.weight"] = made.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    weights["output_norm.weight"] = made.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    weights |= {
        name: matrix(made, N_VOCAB, WIDTH) for name in ("token_embd.weight", "output.weight")
    }
    write_model_file(folder / "target.gguf", "llama", METADATA, weights)
    pairs, changes = {}, {}
    for name, (n_out, n_in) in names_of().items():
        a, b = matrix(made, RANK, n_in), matrix(made, n_out, RANK)
        pairs |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
        changes[name] = ALPHA / RANK * b.astype(np.float64) @ a
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": ALPHA}
    write_model_file(folder / "uno.gguf", "llama", keys, pairs)
    path = str(folder / "target.gguf")
    subject = Subject("uno", path, drafter="uno", mtp_path=str(folder / "uno.gguf"))
    return subject, weights, changes


def logits_of(weights, changes, tokens, has_adapter):
    """Return the logits of all rows, of which those of noise have the adapter."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    places = np.arange(len(tokens))

    def times(x, name):
        changed = np.where(has_adapter[:, None], x @ changes[name].T, 0.0)
        return x @ w[name].T + changed

    def norm(x, name):
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * w[name]

    def rotated(x):
        angles = places[:, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    x = w["token_embd.weight"][tokens]
    for n in range(N_LAYERS):
        layer = f"blk.{n}."
        y = norm(x, f"{layer}attn_norm.weight")
        q, k, v = (
            times(y, f"{layer}attn_{name}.weight").reshape(len(x), -1, HEAD) for name in "qkv"
        )
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(one, HEADS // KV_HEADS, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
        scores += np.where(np.tri(len(x), dtype=bool), 0, -np.inf)
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1)
        x = x + times(attended, f"{layer}attn_output.weight")
        y = norm(x, f"{layer}ffn_norm.weight")
        gate, up = (times(y, f"{layer}ffn_{name}.weight") for name in ("gate", "up"))
        x = x + times(gate / (1 + np.exp(-gate)) * up, f"{layer}ffn_down.weight")
    return norm(x, "output_norm.weight") @ w["output.weight"].T


def as_tree(subject):
    return replace(subject.spec, tree=TreeShape(depth=3, width=3, n_nodes=6))


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "uno")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-uno 0.1.0",)
    assert [spec.name for spec in plugin.drafters] == ["uno"]


def test_drafts_are_those_of_the_formula(uno):
    """The pending token's row is the target's; those after it are noise, with the adapter."""
    subject, weights, changes = uno
    noise = NoiseTokens(mtpcore_uno.UNO.block.mask, subject.model)

    def scores(tokens, rows, drafts):
        n = len(tokens)
        masks = [noise.at(place) for place in range(n, n + len(drafts) - 1)]
        read = np.array([*tokens, *masks])
        return logits_of(weights, changes, read, np.arange(len(read)) >= n)[n - 1 :]

    assert check_drafts(subject, scores, k=K, n_tokens=12, kv_dtype="f32", bound=1e-3) > 100
    tree = as_tree(subject)
    assert check_drafts(subject, scores, tree, k=3, n_tokens=6, kv_dtype="f32", bound=1e-3) > 60


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("branches", [False, True])
def test_drafting_changes_no_token(uno, temperature, branches):
    subject, texts = uno[0], Texts(k=K, sampling=Sampling(temperature=temperature, seed=3))
    rate = check_texts(subject, texts, as_tree(subject) if branches else None)
    assert rate >= 0.9 / (6 if branches else K)  # the first draft is the target's own


def test_nothing_is_left_of_rejected_drafts(uno):
    run_state_machine_as_test(machine_of(uno[0]), settings=FEW)
