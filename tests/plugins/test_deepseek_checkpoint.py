"""What the file of a DeepSeek checkpoint says, by configuration; tensors: tests/conversion."""

import json

import mtpcore_deepseek_mtp
import numpy as np
import pytest
from harness.fixtures import checkpoint

from mtpcore.conversion import convert
from mtpcore.conversion.metadata import family_metadata
from mtpcore.gguf import open_model_file, read_tokenizer
from mtpcore.plugin import Config

TRUNK = mtpcore_deepseek_mtp.TRUNK.checkpoint
V3 = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "vocab_size": 100,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_theta": 10000,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
V2_LITE = V3 | {
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1,
    "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
}


def metadata(values):
    made = family_metadata("deepseek2", [TRUNK], Config(values))
    return {key.removeprefix("deepseek2."): value for key, value in made.items()}


def test_sizes_of_both_forms():
    made = metadata(V3)
    assert made["attention.head_count_kv"] == 1
    assert (made["attention.key_length"], made["attention.value_length"]) == (20, 16)
    assert (made["attention.key_length_mla"], made["attention.value_length_mla"]) == (10, 5)
    assert made["rope.dimension_count"] == 4
    assert made["expert_gating_func"] == 2
    assert not {key for key in made if "scaling" in key}


@pytest.mark.parametrize("group", ["rope_scaling", "rope_parameters"])
def test_yarn(group):
    made = metadata(V3 | {group: YARN | {"rope_type": "yarn", "rope_theta": 10000}})
    assert made["rope.scaling.type"] == "yarn"
    assert made["rope.scaling.factor"] == 40.0
    assert made["rope.scaling.original_context_length"] == 4096
    assert made["rope.scaling.yarn_log_multiplier"] == pytest.approx(0.1)
    assert "rope.scaling.attn_factor" not in made


def test_two_mscales_leave_a_magnitude():
    made = metadata(V3 | {"rope_scaling": YARN | {"mscale": 0.8, "mscale_all_dim": 1.3}})
    rise = 0.1 * np.log(40)
    wanted = (1 + 0.8 * rise) / (1 + 1.3 * rise)
    assert made["rope.scaling.attn_factor"] == pytest.approx(wanted)
    made = metadata(V3 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0}})
    assert not made.keys() & {"rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"}


def test_v2_lite():
    made = metadata(V2_LITE)
    assert "attention.q_lora_rank" not in made
    assert made["expert_gating_func"] == 1
    assert made["expert_weights_norm"] is False
    assert made["expert_weights_scale"] == 1.0
    assert made["rope.scaling.yarn_log_multiplier"] == pytest.approx(0.0707)


@pytest.mark.parametrize(
    ("values", "present", "absent"),
    [(V3, "attn_q_b", "attn_q."), (V2_LITE, "attn_q.weight", "exp_probs_b")],
    ids=["V3", "V2-Lite"],
)
def test_what_a_checkpoint_may_lack(values, present, absent):
    config = Config(values)

    def may_lack(part):
        return [
            r.optional(config) if callable(r.optional) else r.optional
            for r in TRUNK.tensors
            if part in r.tensor
        ]

    assert not any(may_lack(present))
    assert all(may_lack(absent))


def test_matrices_of_heads():
    """Rows of ``kv_b_proj`` are each head's keys, then its values."""
    both = np.arange(2 * (6 + 5) * 16, dtype=np.float32).reshape(22, 16)
    made = {r.tensor[8:]: r.change(both, Config(V3)) for r in TRUNK.tensors if "_b.w" in r.tensor
            and "kv_b_proj" in r.source}  # fmt: skip
    q, c = np.arange(6.0), np.arange(16.0)
    for head in range(2):
        rows = both[11 * head : 11 * (head + 1)]
        assert np.allclose(made["attn_k_b.weight"][head] @ q, rows[:6].T @ q)
        assert np.allclose(made["attn_v_b.weight"][head] @ c, rows[6:] @ c)


def test_a_turn_of_glm_ends_with_the_next_speaker(tmp_path):
    """GLM-4.7-Flash has this trunk and GLM's vocabulary, whose checkpoint names one end alone."""
    folder, source = tmp_path / "hf", checkpoint("ds-12")
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (folder / name).symlink_to(source / name)
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = ["Glm4MoeLiteForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    convert(folder, tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        tokenizer = read_tokenizer(file.metadata)
        ids = {
            kind: tokenizer.vocabulary.tokens[file.metadata[f"tokenizer.ggml.{kind}_token_id"]]
            for kind in ("bos", "eos", "eot", "eom", "unknown")
        }
    assert ids == {
        "bos": "[gMASK]",
        "eos": "<|endoftext|>",
        "eot": "<|user|>",
        "eom": "<|observation|>",
        "unknown": "<|endoftext|>",
    }
    ends = {tokenizer.vocabulary.tokens[token] for token in tokenizer.end_tokens}
    assert ends == {"<|endoftext|>", "<|user|>", "<|observation|>"}
