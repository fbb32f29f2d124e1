"""Published checkpoints of every trunk, converted, against the restatement of their formulas."""

import numpy as np
import pytest
from harness.published import write_checkpoint
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
    checkpoint,
    witness,
)

import mtpcore
from mtpcore.conversion import convert

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def configuration(c):
    """Return ``config.json`` as transformers writes it."""
    made = {
        "architectures": [ARCHITECTURES[c.family]],
        "hidden_size": c.width,
        "intermediate_size": N_FF,
        "max_position_embeddings": 512,
        "num_attention_heads": c.n_heads,
        "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": c.n_kv_heads,
        "rms_norm_eps": EPS,
        "rope_theta": int(c.rope_base),
        "tie_word_embeddings": c.tied,
        "vocab_size": N_VOCAB,
        "attention_bias": c.other_biases,
        "mlp_bias": c.other_biases,
    }
    if c.head_width * c.n_heads != c.width:
        made["head_dim"] = c.head_width
    if c.scaling:
        made["rope_scaling"] = {
            "rope_type": c.scaling,
            "factor": ROPE_FACTOR,
            "original_max_position_embeddings": N_CTX_ORIGINAL,
        }
    if c.scaling == "llama3":
        made["rope_scaling"] |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if c.experts and c.family == "llama":
        made["architectures"] = ["MixtralForCausalLM"]
        made |= {"num_local_experts": N_EXPERTS, "num_experts_per_tok": N_USED}
    elif c.experts:
        made |= {
            # As published, and as transformers 5 writes it.
            "num_experts" if c.normalised else "num_local_experts": N_EXPERTS,
            "num_experts_per_tok": N_USED,
            "moe_intermediate_size": N_FF,
            "norm_topk_prob": c.normalised,
            "mlp_only_layers": list(c.dense_layers),
            "decoder_sparse_step": 1,
        }
    return made


def published(c, weights):
    """Return weights by the names and in the pieces of a published checkpoint."""
    made = {}
    for name, values in weights.items():
        stem, kind = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
        front = "" if stem == "lm_head" else "model."
        if c.family == "llama" and c.experts:
            stem = stem.replace(".mlp.", ".block_sparse_moe.")
        if stem.endswith(".router"):
            made[f"{front}{stem.removesuffix('router')}gate.weight"] = values
        elif values.ndim == 3:
            block, _, part = stem.rpartition(".")
            part = MIXTRAL[part] if c.family == "llama" else part
            for e, one in enumerate(values):
                made[f"{front}{block}.experts.{e}.{part}.weight"] = one
        else:
            made[f"{front}{stem}.{kind}"] = values
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_checkpoint_computes_what_it_should(name, tmp_path):
    c = CONFIGS[name]
    weights = checkpoint(c, seed=list(CONFIGS).index(name))
    write_checkpoint(tmp_path / "hf", configuration(c), published(c, weights))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    tokens = np.random.default_rng(1).integers(0, N_VOCAB, 20).astype(np.int32)
    wanted = witness(c, weights, tokens)
    with mtpcore.load_model(tmp_path / "model.gguf") as model:
        assert ("output.weight" in model.tensors) == (not c.tied)
        context = mtpcore.Context(model, 64, kv_dtype="f32", threads=1, taps=["hidden"])
        out = context.process(mtpcore.Batch.of(tokens, outputs="all"))
        assert np.abs(out.logits - wanted["logits"]).max() < 1e-3
        assert np.abs(out.tap("hidden") - wanted["hidden"]).max() < 1e-3
