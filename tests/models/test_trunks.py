"""Trunks against an independent restatement of the published formulas, in float64.

``to_gguf`` renames and reorders a checkpoint's weights by hand; ``tests/conversion`` holds what
``convert`` does against the same witness.
"""

import numpy as np
import pytest
from harness.restated import EPS
from harness.trunks import (
    CONFIGS,
    N_CTX_ORIGINAL,
    N_EXPERTS,
    N_FF,
    N_LAYERS,
    N_USED,
    N_VOCAB,
    ROPE_FACTOR,
    Config,
    checkpoint,
    inverse_frequencies,
    witness,
)

from mtpcore.backends.reference import ReferenceBackend
from mtpcore.declarations.spec import Tap
from mtpcore.gguf import Fields, open_model_file, write_model_file
from mtpcore.graph import GraphBuilder
from mtpcore.models import LLAMA, QWEN2, QWEN3, QWEN3_MOE
from mtpcore.testing import Runner, Weights

SPECS = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "qwen3moe": QWEN3_MOE}

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def to_gguf(c: Config, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename tensors; for llama interleave the halves of q's and k's rotary pairs."""
    made = {}
    for name, value in weights.items():
        kind = "bias" if name.endswith(".bias") else "weight"
        stem = name.removesuffix(".bias")
        if stem in OUTER:
            made[f"{OUTER[stem]}.{kind}"] = value
            continue
        _, layer, rest = stem.split(".", 2)
        if c.family == "llama" and rest in ("self_attn.q_proj", "self_attn.k_proj"):
            pairs = value.reshape(-1, 2, c.head_width // 2, *value.shape[1:])
            value = pairs.swapaxes(1, 2).reshape(value.shape)
        suffix = "_exps" if value.ndim == 3 else ""
        made[f"blk.{layer}.{NAMES[rest]}{suffix}.{kind}"] = value
    if c.scaling == "llama3":
        plain = 1.0 / c.rope_base ** (np.arange(0, c.head_width, 2) / c.head_width)
        made["rope_freqs.weight"] = (plain / inverse_frequencies(c)[0]).astype(np.float32)
    return made


def metadata(c: Config) -> dict[str, object]:
    made: dict[str, object] = {
        "block_count": N_LAYERS,
        "context_length": 512,
        "embedding_length": c.width,
        "feed_forward_length": N_FF,
        "attention.head_count": c.n_heads,
        "attention.head_count_kv": c.n_kv_heads,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.freq_base": c.rope_base,
    }
    if c.head_width != c.width // c.n_heads:
        made["attention.key_length"] = made["attention.value_length"] = c.head_width
    if c.experts:
        made |= {"expert_count": N_EXPERTS, "expert_used_count": N_USED}
        if not c.normalised:
            made["expert_weights_norm"] = False
    if c.scaling in ("linear", "yarn"):
        made |= {"rope.scaling.type": c.scaling, "rope.scaling.factor": ROPE_FACTOR}
        made["rope.scaling.original_context_length"] = N_CTX_ORIGINAL
    return {f"{c.family}.{key}": value for key, value in made.items()}


TAPS = ("hidden", "residual", "layer_input:0", "layer_input:1")


def runner(c: Config, path, dtype: str) -> Runner:
    file = open_model_file(path)
    spec = SPECS[c.family]
    hparams = spec.hparams(Fields.of(file), file.tensors)
    g = GraphBuilder(c.family, file.tensors, ties=spec.ties, taps=[Tap.parse(t) for t in TAPS])
    program = g.finish(spec.build(g, g.inputs, hparams))
    return Runner(ReferenceBackend(dtype), program, Weights(file.tensors), kv_dtype=dtype)


@pytest.mark.parametrize("name", CONFIGS)
def test_trunk_equals_the_witness(name, tmp_path):
    c = CONFIGS[name]
    weights = checkpoint(c, seed=list(CONFIGS).index(name))
    write_model_file(tmp_path / "model.gguf", c.family, metadata(c), to_gguf(c, weights))
    tokens = np.random.default_rng(1).integers(0, N_VOCAB, 20)
    wanted = witness(c, weights, tokens)
    # Frequency factors are stored in float32.
    tolerance = 1e-5 if c.scaling == "llama3" else 1e-10

    exact = runner(c, tmp_path / "model.gguf", "f64")
    first, rest = exact.feed(tokens[:7]), exact.feed(tokens[7:])
    rounded = runner(c, tmp_path / "model.gguf", "f32").feed(tokens)
    for output in ("logits", *TAPS):
        assert np.abs(wanted[output]).max() > 0.5
        made = np.concatenate([first[output], rest[output]])
        assert np.abs(made - wanted[output]).max() < tolerance
        assert rounded[output].dtype == np.float32
        assert np.abs(rounded[output] - wanted[output]).max() < 1e-3


@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen2"])
@pytest.mark.parametrize("fused_biases", [True, False])
def test_queries_keys_and_values_of_one_matrix(name, fused_biases, tmp_path):
    """Biases may be one tensor, too, or three, as in files of llama.cpp's first converters."""
    c = CONFIGS[name]
    tensors = to_gguf(c, checkpoint(c, seed=5))
    write_model_file(tmp_path / "apart.gguf", c.family, metadata(c), tensors)
    for block in range(N_LAYERS):
        for kind in ("weight", "bias") if c.qkv_bias and fused_biases else ("weight",):
            parts = [tensors.pop(f"blk.{block}.attn_{x}.{kind}") for x in "qkv"]
            tensors[f"blk.{block}.attn_qkv.{kind}"] = np.concatenate(parts)
    write_model_file(tmp_path / "fused.gguf", c.family, metadata(c), tensors)
    apart, fused = (
        runner(c, tmp_path / f"{file}.gguf", "f64").feed(np.arange(12))["logits"]
        for file in ("apart", "fused")
    )
    assert np.abs(apart - fused).max() < 1e-10


def test_embedding_rows_stand_for_tokens(tmp_path):
    c = CONFIGS["qwen2"]
    weights = checkpoint(c, seed=3)
    write_model_file(tmp_path / "model.gguf", c.family, metadata(c), to_gguf(c, weights))
    tokens = np.arange(12)
    by_token = runner(c, tmp_path / "model.gguf", "f32").feed(tokens)
    mixed = np.where(tokens % 2, tokens, -1)
    rows = weights["embed_tokens"][tokens].copy()
    rows[tokens % 2 == 1] = 1e6  # not read where a token stands
    by_row = runner(c, tmp_path / "model.gguf", "f32").feed(mixed, embeddings=rows)
    assert np.array_equal(by_token["logits"], by_row["logits"])
