"""Checkpoints of eight bits as DeepSeek and MiMo-V2 publish them, converted by the declarations.

Blocks are 128 by 128 and no matrix consists of whole ones. Every value of the file is compared with
what the test makes of the codes by formulas of its own, to the last bit.
"""

import logging

import mtpcore_deepseek_mtp
import mtpcore_mimo_mtp
import numpy as np
import pytest
from harness.published import Raw, bf16, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import open_model_file

BLOCK, N_VOCAB, N_EXPERTS = 128, 32, 4
EIGHT_BITS = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}


def decode(codes):
    """Return float32 values: the bits lie in a half's, whose exponent is larger by 8."""
    wide = codes.astype(np.uint16)
    return ((wide & 0x80) << 8 | (wide & 0x7F) << 7).view(np.float16).astype(np.float32) * 256


class Maker:
    """Random tensors of a checkpoint, and their values by published name."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.tensors, self.values = {}, {}

    def plain(self, name, *shape):
        values = bf16(self.random.normal(0, 0.3, shape))
        self.tensors[name] = values
        self.values[name] = (values.bits.astype(np.uint32) << 16).view(np.float32)

    def scaled(self, name, n_rows, n_columns, n_ranks=1):
        """Add a matrix that was cut into so many ranks before it was scaled."""
        codes = self.random.integers(0, 256, (n_rows, n_columns), np.uint8)
        codes[codes & 0x7F == 0x7F] = 0x38  # not a number
        per_rank = n_rows // n_ranks
        n_blocks = -(-per_rank // BLOCK)
        shape = n_ranks * n_blocks, -(-n_columns // BLOCK)
        scales = self.random.uniform(1e-4, 1e-2, shape).astype(np.float32)
        self.tensors |= {name: Raw("F8_E4M3", codes), name + "_scale_inv": scales}
        i, j = np.indices(codes.shape)
        of_row = i // per_rank * n_blocks + i % per_rank // BLOCK
        self.values[name] = decode(codes) * scales[of_row, j // BLOCK]

    def swiglu(self, at, width, n_ff):
        self.scaled(f"{at}gate_proj.weight", n_ff, width)
        self.scaled(f"{at}up_proj.weight", n_ff, width)
        self.scaled(f"{at}down_proj.weight", width, n_ff)


def check(path, wanted):
    with open_model_file(path) as file:
        assert set(file.tensors) == set(wanted)
        for name, values in wanted.items():
            found = file.tensors[name].array()
            assert found.shape == values.shape, name
            np.testing.assert_array_equal(found, values, name)


def stacked(values, at, block):
    """Return the experts of a layer as files hold them."""
    return {
        f"{block}ffn_{part}_exps.weight": np.stack(
            [values[f"{at}mlp.experts.{e}.{part}_proj.weight"] for e in range(N_EXPERTS)]
        )
        for part in ("gate", "up", "down")
    }


TABLES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def add_tables(made, width):
    made.plain("model.embed_tokens.weight", N_VOCAB, width)
    made.plain("model.norm.weight", width)
    made.plain("lm_head.weight", N_VOCAB, width)


# DeepSeek-V3: a dense layer, one with experts, and a head

D, H, Q_RANK, RANK, PLAIN, N_ROT, DV, FF, EXPERT_FF = 160, 3, 150, 136, 56, 16, 40, 200, 140
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": D,
    "intermediate_size": FF,
    "kv_lora_rank": RANK,
    "max_position_embeddings": 256,
    "moe_intermediate_size": EXPERT_FF,
    "n_group": 2,
    "n_routed_experts": N_EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": H,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": H,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": Q_RANK,
    "qk_nope_head_dim": PLAIN,
    "qk_rope_head_dim": N_ROT,
    "quantization_config": EIGHT_BITS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": DV,
    "vocab_size": N_VOCAB,
}
MLA = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
}
DENSE = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
SHARED = {f"mlp.shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}
JOIN = {name: f"nextn.{name}" for name in ("eh_proj", "enorm", "hnorm")}


def deepseek():
    """Return the checkpoint and the file's tensors."""
    made, wanted = Maker(), {}
    add_tables(made, D)
    for n in range(3):
        at, block = f"model.layers.{n}.", f"blk.{n}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made.plain(f"{at}{norm}.weight", D)
        made.plain(at + "self_attn.q_a_layernorm.weight", Q_RANK)
        made.plain(at + "self_attn.kv_a_layernorm.weight", RANK)
        made.scaled(at + "self_attn.q_a_proj.weight", Q_RANK, D)
        made.scaled(at + "self_attn.q_b_proj.weight", H * (PLAIN + N_ROT), Q_RANK)
        made.scaled(at + "self_attn.kv_a_proj_with_mqa.weight", RANK + N_ROT, D)
        made.scaled(at + "self_attn.kv_b_proj.weight", H * (PLAIN + DV), RANK)
        made.scaled(at + "self_attn.o_proj.weight", D, H * DV)
        names = dict(MLA)
        if n == 0:
            made.swiglu(at + "mlp.", D, FF)
            names |= DENSE
        else:
            for e in range(N_EXPERTS):
                made.swiglu(f"{at}mlp.experts.{e}.", D, EXPERT_FF)
            made.swiglu(at + "mlp.shared_experts.", D, EXPERT_FF)
            made.plain(at + "mlp.gate.weight", N_EXPERTS, D)
            made.plain(at + "mlp.gate.e_score_correction_bias", N_EXPERTS)
            wanted |= stacked(made.values, at, block)
            wanted[block + "exp_probs_b.bias"] = made.values[
                at + "mlp.gate.e_score_correction_bias"
            ]
            names |= SHARED | {"mlp.gate": "ffn_gate_inp"}
        if n == 2:
            made.plain(at + "eh_proj.weight", D, 2 * D)
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                made.plain(f"{at}{norm}.weight", D)
            for name, trunk in (
                ("embed_tokens", "model.embed_tokens"),
                ("shared_head.head", "lm_head"),
            ):
                made.tensors[f"{at}{name}.weight"] = made.tensors[f"{trunk}.weight"]
            names |= JOIN | {"shared_head.norm": "nextn.shared_head_norm"}
        for source, tensor in names.items():
            wanted[f"{block}{tensor}.weight"] = made.values[f"{at}{source}.weight"]
        both = made.values[at + "self_attn.kv_b_proj.weight"]
        heads = [(PLAIN + DV) * h for h in range(H)]
        wanted[block + "attn_k_b.weight"] = np.array([both[i : i + PLAIN].T for i in heads])
        wanted[block + "attn_v_b.weight"] = np.array(
            [both[i + PLAIN : i + PLAIN + DV] for i in heads]
        )
    wanted |= {tensor: made.values[source] for source, tensor in TABLES.items()}
    return made.tensors, wanted


@pytest.mark.parametrize("piece", [1 << 20, 1], ids=["whole", "a row of blocks at a time"])
def test_deepseek(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("mtpcore.conversion.values._PIECE", piece)
    tensors, wanted = deepseek()
    write_checkpoint(tmp_path / "hf", DEEPSEEK, tensors, n_files=3)
    left_out = convert(
        tmp_path / "hf",
        tmp_path / "model.gguf",
        outtype="f32",
        plugins=Registry.of(mtpcore_deepseek_mtp),
    )
    assert left_out == {
        "model.layers.2.embed_tokens.weight": "a copy of model.embed_tokens.weight",
        "model.layers.2.shared_head.head.weight": "a copy of lm_head.weight",
    }
    check(tmp_path / "model.gguf", wanted)


def check_parts(tmp_path, tensors, wanted, is_head, plugin, first_block):
    """Convert trunk and heads apart; the file has its part, and every other name is said."""
    for mtp in ("drop", "only"):
        path = tmp_path / f"{mtp}.gguf"
        left_out = convert(
            tmp_path / "hf", path, outtype="f32", mtp=mtp, plugins=Registry.of(plugin)
        )
        of_heads = {name for name in tensors if is_head(name)}
        of_trunk = {name for name in tensors if name not in of_heads and ".layers." in name}
        said = {name for name, reason in left_out.items() if reason == f"--mtp {mtp}"}
        assert said == (of_heads if mtp == "drop" else of_trunk)
        assert any(name.endswith("_scale_inv") for name in said)

        def gets(name, mtp=mtp):
            if not name.startswith("blk."):
                return True
            return (int(name.split(".")[1]) >= first_block) == (mtp == "only")

        check(path, {name: values for name, values in wanted.items() if gets(name)})


def test_deepseek_in_parts(tmp_path):
    tensors, wanted = deepseek()
    write_checkpoint(tmp_path / "hf", DEEPSEEK, tensors)

    def is_head(name):
        return name.startswith("model.layers.2.")

    check_parts(tmp_path, tensors, wanted, is_head, mtpcore_deepseek_mtp, 2)


# MiMo-V2.5: q, k and v in one matrix, cut into ranks; a layer that sees all, and windows

WIDTH, N_HEADS, DK, DV2, WIDE_FF = 136, 32, 24, 16, 200
KV_HEADS = {0: 8, 1: 16, 2: 16, 3: 16}  # of each block; the last two are heads
MIMO = {
    "architectures": ["MiMoV2ForCausalLM"],
    "head_dim": DK,
    "hidden_size": WIDTH,
    "hybrid_layer_pattern": [0, 1],
    "intermediate_size": WIDE_FF,
    "layernorm_epsilon": 1e-5,
    "max_position_embeddings": 256,
    "moe_intermediate_size": EXPERT_FF,
    "moe_layer_freq": [0, 1],
    "n_routed_experts": N_EXPERTS,
    "num_attention_heads": N_HEADS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.334,
    "quantization_config": EIGHT_BITS,
    "rope_theta": 5000000,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "swa_num_key_value_heads": 16,
    "swa_rope_theta": 10000,
    "topk_method": "noaux_tc",
    "v_head_dim": DV2,
    "vocab_size": N_VOCAB,
}


def put_together(ranked, parts, n_ranks):
    """Return q, k and v rows one after the other, each fetched from the rank that has it."""
    per_rank, found, before = len(ranked) // n_ranks, [], 0
    for n_rows in parts:
        share = n_rows // n_ranks
        found += [ranked[row // share * per_rank + before + row % share] for row in range(n_rows)]
        before += share
    return np.array(found)


def mimo(trunk_ranks, head_ranks):
    """Return the checkpoint and the file's tensors."""
    made, wanted = Maker(), {}
    add_tables(made, WIDTH)
    for n, n_kv in KV_HEADS.items():
        in_trunk = n < 2
        at = f"model.layers.{n}." if in_trunk else f"model.mtp.layers.{n - 2}."
        n_ranks = trunk_ranks if in_trunk else head_ranks
        block, parts = f"blk.{n}.", (N_HEADS * DK, n_kv * DK, n_kv * DV2)
        feed_norm = "post_attention_layernorm" if in_trunk else "pre_mlp_layernorm"
        names = {
            "input_layernorm": "attn_norm",
            feed_norm: "ffn_norm",
            "self_attn.o_proj": "attn_output",
        }
        made.plain(at + "input_layernorm.weight", WIDTH)
        made.plain(f"{at}{feed_norm}.weight", WIDTH)
        made.plain(at + "self_attn.o_proj.weight", WIDTH, N_HEADS * DV2)
        made.scaled(at + "self_attn.qkv_proj.weight", sum(parts), WIDTH, n_ranks)
        ranked = made.values[at + "self_attn.qkv_proj.weight"]
        wanted[block + "attn_qkv.weight"] = put_together(ranked, parts, n_ranks)
        if n > 0:
            made.plain(at + "self_attn.attention_sink_bias", N_HEADS)
            sinks = made.values[at + "self_attn.attention_sink_bias"]
            wanted[block + "attn_sinks.weight"] = sinks
        if n == 1:
            for e in range(N_EXPERTS):
                made.swiglu(f"{at}mlp.experts.{e}.", WIDTH, EXPERT_FF)
            made.plain(at + "mlp.gate.weight", N_EXPERTS, WIDTH)
            made.plain(at + "mlp.gate.e_score_correction_bias", N_EXPERTS)
            wanted |= stacked(made.values, at, block)
            bias = made.values[at + "mlp.gate.e_score_correction_bias"]
            wanted[block + "exp_probs_b.bias"] = bias
            names["mlp.gate"] = "ffn_gate_inp"
        else:
            made.swiglu(at + "mlp.", WIDTH, WIDE_FF)
            names |= DENSE
        if not in_trunk:
            made.plain(at + "eh_proj.weight", WIDTH, 2 * WIDTH)
            for norm in ("enorm", "hnorm", "final_layernorm"):
                made.plain(f"{at}{norm}.weight", WIDTH)
            names |= JOIN | {"final_layernorm": "layer_output_norm"}
        for source, tensor in names.items():
            wanted[f"{block}{tensor}.weight"] = made.values[f"{at}{source}.weight"]
    wanted |= {tensor: made.values[source] for source, tensor in TABLES.items()}
    return made.tensors, wanted


@pytest.mark.parametrize("head_ranks", [1, 4, 8])
@pytest.mark.parametrize("trunk_ranks", [4, 8])
def test_mimo(tmp_path, trunk_ranks, head_ranks):
    tensors, wanted = mimo(trunk_ranks, head_ranks)
    write_checkpoint(tmp_path / "hf", MIMO, tensors)
    left_out = convert(
        tmp_path / "hf",
        tmp_path / "model.gguf",
        outtype="f32",
        plugins=Registry.of(mtpcore_mimo_mtp),
    )
    assert left_out == {}
    check(tmp_path / "model.gguf", wanted)


def test_mimo_without_the_heads_that_it_counts(tmp_path, caplog):
    tensors, _ = mimo(4, 1)
    trunk = {name: values for name, values in tensors.items() if not name.startswith("model.mtp.")}
    write_checkpoint(tmp_path / "hf", MIMO | {"num_nextn_predict_layers": 3}, trunk)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(tmp_path / "hf", tmp_path / "model.gguf", plugins=Registry.of(mtpcore_mimo_mtp))
    assert "the configuration counts 3 heads, the tensors are of 0" in caplog.text


def test_mimo_in_parts(tmp_path):
    tensors, wanted = mimo(4, 1)
    write_checkpoint(tmp_path / "hf", MIMO, tensors)

    def is_head(name):
        return name.startswith("model.mtp.")

    check_parts(tmp_path, tensors, wanted, is_head, mtpcore_mimo_mtp, 2)
    with open_model_file(tmp_path / "drop.gguf") as file:
        assert file.metadata["mimo2.block_count"] == 2
        assert "mimo2.nextn_predict_layers" not in file.metadata
        assert file.metadata["mimo2.attention.head_count_kv"].tolist() == [8, 16]
    with open_model_file(tmp_path / "only.gguf") as file:
        assert file.metadata["mimo2.block_count"] == 4
        assert file.metadata["mimo2.nextn_predict_layers"] == 2
        assert file.metadata["mimo2.attention.head_count_kv"].tolist() == [8, 16, 16, 16]
