"""Checkpoints of Qwen3.5 and Qwen3-Next as model files: values, names, settings, refusals."""

import logging

import mtpcore_qwen_mtp
import numpy as np
import pytest
from harness import qwen
from harness.published import Raw, scaled, tokenizer, write_checkpoint

import mtpcore
from mtpcore.cli import main
from mtpcore.conversion import convert
from mtpcore.conversion.published import PublishedTensor
from mtpcore.declarations.checkpoint import Config
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file

PLUGIN = Registry.of(mtpcore_qwen_mtp)
FAMILIES = {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next"}
shapes = pytest.mark.parametrize("name", qwen.SHAPES)


def write(folder, name, **changed):
    """Write a shape's checkpoint, with parts of its configuration changed."""
    s = qwen.SHAPES[name]
    config = qwen.configuration(s)
    (config["text_config"] if s.nested else config).update(changed)
    tensors = qwen.published(s, qwen.weights(s))
    return write_checkpoint(folder / "hf", config, tensors, tokenizer(qwen.N_VOCAB))


def made(folder, name, **options):
    """Return the tensors and metadata of the converted file, without ``{arch}.``."""
    convert(write(folder, name), folder / "model.gguf", outtype="f32", plugins=PLUGIN, **options)
    with open_model_file(folder / "model.gguf") as file:
        assert file.architecture == FAMILIES[qwen.SHAPES[name].family]
        front = file.architecture + "."
        metadata = {k.removeprefix(front): v for k, v in file.metadata.items()}
        return {t.name: np.array(t.array()) for t in file.tensors.values()}, metadata


def heads_in_file(s):
    """Return for each V head of the file its number in the checkpoint, told head by head."""
    r = s.n_values // s.n_keys
    if s.family == "qwen3_next":
        return list(range(s.n_values))
    return [g * r + j for j in range(r) for g in range(s.n_keys)]


def expected_delta_net(s, w, at):
    """Return a layer's tensors, restated row by row."""
    order, r = heads_in_file(s), s.n_values // s.n_keys
    k, v, keys = s.k_width, s.v_width, s.n_keys * s.k_width
    conv = w[at + "conv1d.weight"][:, 0]
    channels = [*range(2 * keys), *(2 * keys + h * v + i for h in order for i in range(v))]
    found = {
        "ssm_norm.weight": w[at + "norm.weight"],
        "ssm_a": np.array([-np.exp(np.float64(w[at + "A_log"][h])) for h in order], np.float32),
        "ssm_dt.bias": w[at + "dt_bias"][order],
        "ssm_conv1d.weight": conv[channels],
        "ssm_out.weight": w[at + "out_proj.weight"][
            :, [h * v + i for h in order for i in range(v)]
        ],
    }
    if s.family == "qwen3_next":
        rows, step = w[at + "in_proj_qkvz.weight"], 2 * k + 2 * r * v
        q = [g * step + i for g in range(s.n_keys) for i in range(k)]
        values = [
            [g * step + 2 * k + part * r * v + i for g in range(s.n_keys) for i in range(r * v)]
            for part in range(2)
        ]
        found["attn_qkv.weight"] = rows[[*q, *(i + k for i in q), *values[0]]]
        found["attn_gate.weight"] = rows[values[1]]
        return found | {"ssm_ba.weight": w[at + "in_proj_ba.weight"]}
    found["attn_qkv.weight"] = w[at + "in_proj_qkv.weight"][channels]
    found["attn_gate.weight"] = w[at + "in_proj_z.weight"][
        [h * v + i for h in order for i in range(v)]
    ]
    found["ssm_alpha.weight"] = w[at + "in_proj_a.weight"][order]
    return found | {"ssm_beta.weight": w[at + "in_proj_b.weight"][order]}


def expected_layer(s, w, at, kind, n):
    """Return the tensors of one block."""
    found = {
        "attn_norm.weight": w[at + "input_layernorm.weight"] + 1,
        "post_attention_norm.weight": w[at + "post_attention_layernorm.weight"] + 1,
    }
    if kind == qwen.LINEAR:
        found |= expected_delta_net(s, w, at + "linear_attn.")
    else:
        attn = at + "self_attn."
        found |= {f"attn_{x}.weight": w[f"{attn}{x}_proj.weight"] for x in "qkv"}
        found |= {f"attn_{x}_norm.weight": w[f"{attn}{x}_norm.weight"] + 1 for x in "qk"}
        found["attn_output.weight"] = w[attn + "o_proj.weight"]
    mlp = at + "mlp."
    if s.family == "qwen3_5" or n in s.dense_layers:
        parts = ("gate", "up", "down")
        return found | {f"ffn_{part}.weight": w[f"{mlp}{part}_proj.weight"] for part in parts}
    both = w[mlp + "experts.gate_up_proj"]
    found["ffn_gate_inp.weight"] = w[mlp + "gate.weight"]
    found["ffn_gate_exps.weight"] = both[:, : qwen.N_FF_EXPERT]
    found["ffn_up_exps.weight"] = both[:, qwen.N_FF_EXPERT :]
    found["ffn_down_exps.weight"] = w[mlp + "experts.down_proj"]
    found["ffn_gate_inp_shexp.weight"] = w[mlp + "shared_expert_gate.weight"][0]
    shared = mlp + "shared_expert."
    parts = ("gate", "up", "down")
    return found | {f"ffn_{part}_shexp.weight": w[f"{shared}{part}_proj.weight"] for part in parts}


@shapes
def test_every_tensor(name, tmp_path):
    s = qwen.SHAPES[name]
    w = qwen.weights(s)
    wanted = {
        "token_embd.weight": w["model.embed_tokens.weight"],
        "output_norm.weight": w["model.norm.weight"] + 1,
    }
    if not s.tied:
        wanted["output.weight"] = w["lm_head.weight"]
    blocks = [expected_layer(s, w, f"model.layers.{n}.", k, n) for n, k in enumerate(s.kinds)]
    blocks.append(
        expected_layer(s, w, "mtp.layers.0.", qwen.FULL, None)
        | {
            "nextn.eh_proj.weight": w["mtp.fc.weight"],
            "nextn.enorm.weight": w["mtp.pre_fc_norm_embedding.weight"] + 1,
            "nextn.hnorm.weight": w["mtp.pre_fc_norm_hidden.weight"] + 1,
            "nextn.shared_head_norm.weight": w["mtp.norm.weight"] + 1,
        }
    )
    wanted |= {f"blk.{n}.{part}": v for n, block in enumerate(blocks) for part, v in block.items()}
    found, _ = made(tmp_path, name)
    assert found.keys() == wanted.keys()
    for tensor, values in wanted.items():
        np.testing.assert_array_equal(found[tensor], values, err_msg=tensor)


@shapes
def test_settings(name, tmp_path):
    s = qwen.SHAPES[name]
    _, found = made(tmp_path, name)
    wanted = {
        "block_count": s.n_layers + 1,
        "nextn_predict_layers": 1,
        "attention.key_length": qwen.HEAD_WIDTH,
        "rope.dimension_count": qwen.HEAD_WIDTH // 2,
        "full_attention_interval": s.interval,
        "attention.recurrent_layers": [kind == qwen.LINEAR for kind in s.kinds] + [False],
        "ssm.conv_kernel": s.kernel,
        "ssm.state_size": s.k_width,
        "ssm.group_count": s.n_keys,
        "ssm.time_step_rank": s.n_values,
        "ssm.inner_size": s.n_values * s.v_width,
    }
    assert {key: np.array(found[key]).tolist() for key in wanted} == wanted
    sections = [] if s.family == "qwen3_next" else [2, 1, 1, 0]
    assert list(found.get("rope.dimension_sections", ())) == sections
    assert ("expert_shared_feed_forward_length" in found) == (s.family != "qwen3_5")
    assert "expert_weights_norm" not in found


def test_experts_in_one_piece_are_read_one_by_one(tmp_path, monkeypatch):
    read, rows = [], PublishedTensor.rows

    def counted(self, begin=0, end=None):
        found = rows(self, begin, end)
        if self.name.endswith("gate_up_proj"):
            read.append(len(found))
        return found

    monkeypatch.setattr(PublishedTensor, "rows", counted)
    convert(write(tmp_path, "experts in one piece"), tmp_path / "m", plugins=PLUGIN)
    n_blocks = qwen.SHAPES["experts in one piece"].n_layers + 1
    assert read == [1] * (2 * n_blocks * qwen.N_EXPERTS)


def test_matrices_of_eight_bits(tmp_path):
    """They are multiplied by their scales before heads change places."""
    s = qwen.SHAPES["irregular layers, tied"]
    tensors = qwen.published(s, qwen.weights(s))
    for name in [n for n in tensors if "linear_attn.in_proj" in n or ".out_proj." in n]:
        codes, scales = scaled(tensors[name], 8)
        tensors |= {name: Raw("F8_E4M3", codes), name + "_scale_inv": scales}
    config = qwen.configuration(s) | {"quantization_config": {"weight_block_size": [8, 8]}}
    write_checkpoint(tmp_path / "hf", config, tensors, tokenizer(qwen.N_VOCAB))
    convert(tmp_path / "hf", tmp_path / "eight.gguf", outtype="f32", plugins=PLUGIN)
    exact, _ = made(tmp_path / "exact", "irregular layers, tied")
    with open_model_file(tmp_path / "eight.gguf") as file:
        for name, values in exact.items():
            error = np.abs(file.tensors[name].array() - values).max()
            assert error <= 0.07 * np.abs(values).max(), name


def test_a_vision_tower_is_left_out_with_one_line(tmp_path, capsys):
    s = qwen.SHAPES["experts in one piece"]
    tensors = qwen.published(s, qwen.weights(s))
    more = ("blocks.0.attn.qkv.weight", "merger.norm.bias")
    tensors |= {f"model.visual.{name}": np.zeros(4, np.float32) for name in more}
    folder = tmp_path / "hf"
    write_checkpoint(folder, qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
    assert main(["convert", str(folder), str(tmp_path / "model.gguf")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert said == ["mtpcore: left out: 3 tensors (of no use: model.visual.*)"]


def test_sections_that_a_configuration_leaves_out():
    from mtpcore_qwen_mtp.checkpoint import rotated, sections

    assert sections(Config({})) == [11, 11, 10, 0]
    assert rotated(Config({"head_dim": 256})) == 64


def test_shares_that_are_not_divided_by_their_sum(tmp_path):
    folder = write(tmp_path, "grouped", norm_topk_prob=False)
    convert(folder, tmp_path / "model.gguf", plugins=PLUGIN)
    with open_model_file(tmp_path / "model.gguf") as file:
        assert file.metadata["qwen3next.expert_weights_norm"] is False


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ([qwen.LINEAR] * 3, "layer_types has 3 entries, not 5"),
        ([qwen.LINEAR] * 6, "layer_types has 6 entries, not 5"),
        ([qwen.LINEAR] * 4 + ["sliding_attention"], "sliding_attention"),
        ([qwen.LINEAR] * 4 + [3], "layer_types"),
    ],
)
def test_layer_types_that_cannot_be_read(kinds, message, tmp_path):
    folder = write(tmp_path, "irregular layers, tied", layer_types=kinds)
    with pytest.raises(ModelFileError, match=message):
        convert(folder, tmp_path / "model.gguf", plugins=PLUGIN)


def test_heads_that_do_not_share_evenly(tmp_path):
    folder = write(tmp_path, "one K head, flat", linear_num_key_heads=2)
    with pytest.raises(ModelFileError, match="cannot make"):
        convert(folder, tmp_path / "model.gguf", plugins=PLUGIN)


# Which files hold a head


def load(folder, metadata, tensors, caplog):
    write_model_file(folder / "changed.gguf", "qwen35", metadata, tensors)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        return mtpcore.load_model(folder / "changed.gguf", plugins=PLUGIN)


@pytest.fixture
def parts(tmp_path):
    convert(write(tmp_path, "one K head, flat"), tmp_path / "f", outtype="f32", plugins=PLUGIN)
    with open_model_file(tmp_path / "f") as file:
        return dict(file.metadata), {t.name: np.array(t.array()) for t in file.tensors.values()}


def test_a_file_with_its_head(parts, tmp_path, caplog):
    with load(tmp_path, *parts, caplog) as model:
        assert [drafter.name for drafter in model.drafters if drafter.shape != "proposer"] == [
            "qwen_mtp"
        ]
        assert (model.hparams.n_layers, model.hparams.n_drafter_blocks) == (4, 1)
        assert model.hparams.recurrent == {0, 2}
        assert model.hparams.rotary_axes == 4
    assert not caplog.records


@pytest.mark.parametrize("n_blocks", [5, 4])
def test_a_key_without_a_head_is_a_plain_model(parts, n_blocks, tmp_path, caplog):
    """Fine-tunes drop the head and keep the key, some with one block less and some not."""
    metadata, tensors = parts
    metadata["qwen35.block_count"] = n_blocks
    metadata["qwen35.attention.recurrent_layers"] = [True, False, True, False, False][:n_blocks]
    tensors = {name: v for name, v in tensors.items() if not name.startswith("blk.4.")}
    with load(tmp_path, metadata, tensors, caplog) as model:
        assert [drafter for drafter in model.drafters if drafter.shape != "proposer"] == []
        assert model.hparams.n_layers == 4
    (record,) = caplog.records
    assert "says 1 heads, tensors of 0 are there" in record.getMessage()


def test_a_checkpoint_that_counts_a_head_it_lacks(tmp_path, caplog):
    s = qwen.SHAPES["one K head, flat"]
    w = {n: v for n, v in qwen.published(s, qwen.weights(s)).items() if not n.startswith("mtp.")}
    folder = write_checkpoint(tmp_path / "hf", qwen.configuration(s), w, tokenizer(qwen.N_VOCAB))
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(folder, tmp_path / "model.gguf", plugins=PLUGIN)
    (record,) = [r for r in caplog.records if "heads" in r.getMessage()]
    assert "counts 1 heads, the tensors are of 0" in record.getMessage()
    with open_model_file(tmp_path / "model.gguf") as file:
        assert file.metadata["qwen35.block_count"] == 4
        assert "qwen35.nextn_predict_layers" not in file.metadata


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ssm.group_count", 2, "3 value heads of linear attention do not share 2 key heads"),
        ("ssm.group_count", 0, "group_count"),
        ("ssm.state_size", 1 << 40, "state_size"),
        ("ssm.time_step_rank", -1, "time_step_rank"),
        ("ssm.conv_kernel", 3, "convolution of block 0 is of another length"),
        ("full_attention_interval", 0, "full_attention_interval"),
        ("attention.recurrent_layers", [True] * 4, "not one entry a layer"),
        ("attention.recurrent_layers", [2] * 5, "recurrent_layers"),
        ("attention.head_count_kv", [0, 1, 0, 2, 1], "layers of attention differ"),
        ("attention.head_count_kv", [0, 1, 0, 1], "head_count_kv"),
        ("attention.head_count_kv", [0] * 5, "head_count_kv"),
        ("attention.head_count_kv", 0, "head_count_kv"),
    ],
)
def test_settings_that_fit_nothing(parts, key, value, message, tmp_path, caplog):
    metadata, tensors = parts
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path, metadata | {f"qwen35.{key}": value}, tensors, caplog)


def test_layers_by_their_interval(parts, tmp_path, caplog):
    metadata, tensors = parts
    del metadata["qwen35.attention.recurrent_layers"]
    with load(tmp_path, metadata, tensors, caplog) as model:
        assert model.hparams.recurrent & {0, 1, 2, 3} == {0, 2}
