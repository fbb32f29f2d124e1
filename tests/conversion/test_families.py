"""Small checkpoints of many families become files that compute what transformers does.

The same as llama.cpp's converter makes of them, tensor by tensor and key by key.
"""

import hashlib

import numpy as np
import pytest
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, logits, tensors, tokens

from mtpcore import Batch, Context, Generator, link, load_model
from mtpcore.conversion import convert
from mtpcore.declarations.checkpoint import Config
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file
from mtpcore.models.checkpoints.own_code import BAICHUAN

FAMILIES = known()
NEAR = 1e-9
"""Mean square of the differences, beside that of the logits."""
APPROXIMATE = dict.fromkeys(
    (
        *("GPTNeoXForCausalLM", "FalconForCausalLM", "FalconForCausalLM, one key head"),
        *("MptForCausalLM", "MiniMaxForCausalLM", "CodeShellForCausalLM", "Spark2_5ForCausalLM"),
        *("GrokForCausalLM", "Grok1ForCausalLM"),
    ),
    1e-6,
)
"""The same, where files mean GELU's approximation by tanh and the class GELU itself, or llama.cpp
has a table of it in half precision; or where rates of lightning attention differ in the sixth digit
(MiniMax-01)."""
ROUNDED = "ssm_a"
"""Tensors that are exponentials, whose last bits are those of PyTorch in the peer's files."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """Return the name of a class, and the file of its checkpoint."""
    folder = tmp_path_factory.mktemp("families")
    family = FAMILIES[request.param]
    write_checkpoint(folder / "hf", family["config"], tensors(family["shapes"]), tokenizer(N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return request.param, folder / "model.gguf"


def test_logits_are_those_of_transformers(model):
    """Or of llama.cpp, where transformers has no class or weights experts in a way of its own."""
    name, path = model
    wanted = logits(name).astype(np.float64)
    with load_model(path) as loaded:
        context = Context(loaded, n_ctx=64, kv_dtype="f32", threads=1)
        found = context.process(Batch.of(tokens(), outputs="all")).logits
    near = APPROXIMATE.get(name, NEAR)
    assert np.square(found - wanted).mean() < near * np.square(wanted).mean()


def test_tensors_are_those_of_the_peer(model):
    name, path = model
    peer = FAMILIES[name].get("peer")
    if peer is None:
        pytest.skip("llama.cpp's converter did not run")
    with open_model_file(path) as file:
        found = {tensor.name: digest(tensor.raw()) for tensor in file.tensors.values()}
    assert found.keys() == peer["tensors"].keys()
    differing = [one for one, wanted in peer["tensors"].items() if found[one] != wanted]
    assert all(one.endswith(ROUNDED) for one in differing), differing


HEADED = [
    name
    for name, family in FAMILIES.items()
    if any(one.endswith((".eh_proj.weight", "mtp.fc.weight")) for one in family["shapes"])
]


@pytest.mark.parametrize("model", HEADED, indirect=True)
def test_heads_draft(model):
    """One after the trunk, or several in a row."""
    with load_model(model[1]) as loaded:
        cross = link(Context(loaded, n_ctx=64, threads=1), drafter="auto")
        generator = Generator(cross, draft=2)
        [*generator.generate(tokens().tolist(), max_tokens=6, ignore_eos=True)]
    assert generator.stats.drafted > 0


def digest(values):
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def test_metadata_is_that_of_the_peer(model):
    name, path = model
    peer = FAMILIES[name].get("peer")
    if peer is None:
        pytest.skip("llama.cpp's converter did not run")
    with open_model_file(path) as file:
        found = {key: as_plain(file.metadata.get(key)) for key in peer["metadata"]}
    assert found == {key: as_plain(value) for key, value in peer["metadata"].items()}


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 0, 1]}, "layers that rotate are"),
        ("SmolLM3ForCausalLM", {"sliding_window": 8, "use_sliding_window": True,
                                "layer_types": ["sliding_attention"] * 4}, "sliding window"),
        ("Exaone4ForCausalLM", {"sliding_window": 8, "layer_types": ["sliding_attention"] * 2},
         "windows in a model of 2 layers"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional"),
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [1, 2]}, "layers differ in moe_topk"),
        ("HunYuanDenseV1ForCausalLM",
         {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
         "without alpha"),
        ("Qwen2MoeForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("FalconForCausalLM", {"alibi": True}, "alibi"),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
        ("GraniteMoeHybridForCausalLM", {"position_embedding_type": "alibi"}, "kind 'alibi'"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["mamba"]}, "layer_types has 1 entries"),
        ("GraniteMoeHybridForCausalLM", {"time_step_limit": [0.0, 1.0]}, "time_step_limit"),
        ("FalconH1ForCausalLM", {"mamba_norm_before_gate": True}, "mamba_norm_before_gate"),
        ("FalconH1ForCausalLM", {"tie_word_embeddings": True}, "one table with two factors"),
        ("NemotronHForCausalLM", {"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        ("AfmoeForCausalLM", {"mup_enabled": False}, "mup_enabled"),
        ("AfmoeForCausalLM", {"layer_types": ["full_attention"] * 4}, "windows in other layers"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [4]}, "_per_layer has 1 entries"),
        ("LagunaForCausalLM", {"mlp_layer_types": ["sparse", "dense", *["sparse"] * 3]},
         "mlp_layer_types says other layers"),
        ("KimiLinearForCausalLM", {"linear_attn_config": {"full_attn_layers": [2]}},
         "layer_types says other layers of latent attention"),
        ("KimiLinearForCausalLM", {"linear_num_heads": 8}, "8 heads of delta attention"),
        ("BailingHybridForCausalLM", {"kda_safe_gate": False}, "kda_safe_gate"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1e4, 5e5, 5e5, 5e5]}, "not rotate by one"),
        ("Llama4ForCausalLM", {"use_qk_norm": False}, "use_qk_norm is False"),
        ("Llama4ForCausalLM", {"moe_layers": [0]}, "moe_layers says other layers"),
        ("Llama4ForCausalLM", {"attention_chunk_size": 4096}, "attention_chunk_size"),
        ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        ("BailingHybridForCausalLM", {"layer_group_size": 2}, "other layers of latent attention"),
        ("BailingMoeV2ForCausalLM", {"use_qkv_bias": True}, "use_qkv_bias"),
        ("InternLM2ForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "scaling"),
        ("PhimoeForCausalLM",
         {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0] * 4, "rope_theta": 1e4,
                              "short_factor": [1.0] * 4, "long_mscale": 1.2, "short_mscale": 1.1,
                              "original_max_position_embeddings": 32}},
         "depends on the length of a text"),
        ("GlmMoeDsaForCausalLM", {"indexer_types": ["full", "shared", "shared"]},
         "without an indexer of their own"),
        ("MiniCPM3ForCausalLM", {"scale_emb": 10}, "scale_emb"),
        ("HrmTextForCausalLM", {"num_hidden_layers": 6}, "num_hidden_layers is 6, of 12 passes"),
        ("MptForCausalLM", {"attn_config": {"alibi": True, "qk_ln": True}}, "attn_config.qk_ln"),
        ("MptForCausalLM", {"logit_scale": 0.5}, "logit_scale"),
        ("MiniMaxForCausalLM", {"mlp_alpha_factor": 2.0}, "inputs of branches are multiplied by"),
        ("MiniMaxForCausalLM", {"layer_types": ["linear_attention"]}, "kinds of 1 layers, not 3"),
        ("MiniMaxText01ForCausalLM", {"layernorm_mlp_beta": 2.0}, "inputs of branches"),
        ("MiniMaxM3SparseForConditionalGeneration", {"swiglu_limit": 5.0}, "swiglu_limit"),
        ("MiniMaxM3SparseForConditionalGeneration", {"moe_layer_freq": [1, 0, 1]},
         "moe_layer_freq says other layers"),
        ("MiniMaxM3SparseForConditionalGeneration", {"rotary_dim": 4}, "rotary_dim is 4, and by"),
        ("Step3p7ForConditionalGeneration", {"moe_layers_enum": "0,2"}, "dense layers after one"),
        ("Step3p7ForConditionalGeneration", {"rope_theta": [1e4, 1e4, 5e5, 1e4, 1e4]},
         "blocks of one kind rotate by several bases"),
        ("Step3p7ForConditionalGeneration", {"layer_types": ["full_attention"] * 2},
         "layer_types has 2 entries, fewer than 5"),
        ("Step3p7ForConditionalGeneration", {"query_pre_attn_scalar": 8}, "query_pre_attn_scalar"),
        ("Step3p7ForConditionalGeneration", {"attention_other_setting": {"head_dim": 8}},
         "heads of blocks with a window are 8 wide"),
        ("MuseGlimmerForConditionalGeneration", {"layer_rope_theta": [5e5] * 4},
         "layers with a window are not those that rotate"),
        ("PlamoForCausalLM", {"n_shared_head": 3}, "4 heads, of which 3 share one key head"),
        ("Grok1ForCausalLM", {"rope_type": "dynamic"}, "another scaling of the rotation"),
        ("GrokForCausalLM", {"hidden_act": "silu"}, "hidden_act"),
        ("Dots3NoteForCausalLM", {"swa_q_lora_rank": 16}, "swa_q_lora_rank is 16"),
        ("Dots3NoteForCausalLM", {"swa_head_dim": 24}, "swa_head_dim is not 16"),
        ("Dots3NoteForCausalLM", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("Dots3NoteForCausalLM", {"layer_types": ["indexed_attention"] * 2}, "layer_types"),
        ("Dots3NoteForCausalLM", {"n_group": 2}, "n_group"),
        ("CogVLMForCausalLM", {"num_multi_query_heads": 2}, "num_multi_query_heads"),
        ("HunYuanVLForConditionalGeneration",
         {"rope_parameters": {"rope_type": "xdrope", "rope_theta": 1e4}}, "without alpha"),
        ("Plamo3ForCausalLM", {"rope_scaling_factor": 4}, "initial_context_length"),
        ("ChatGLMModel", {"kv_channels": 16}, "kv_channels is 16"),
        ("ChatGLMModel", {"rmsnorm": False}, "rmsnorm"),
        ("QWenLMHeadModel", {"kv_channels": 16}, "kv_channels is 16"),
        ("CodeShellForCausalLM", {"n_inner": 64}, "n_inner is 64, not 128"),
        ("NanbeigeForCausalLM", {"num_loops": 2}, "num_loops"),
        ("OpenELMForCausalLM", {"num_query_heads": [4]}, "num_query_heads has 1 entries, not 2"),
        ("DeepseekForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("SmallThinkerForCausalLM", {"rope_layout": [1] * 5}, "windows, rotation and experts"),
        ("SmallThinkerForCausalLM", {"sliding_window_size": 512}, "a window of 512"),
        ("Spark2_5ForCausalLM", {"headwise_attn_output_gate": False}, "headwise_attn_output"),
        ("JAISLMHeadModel", {"alibi_scaling": {"type": "linear"}}, "alibi_scaling"),
        ("GPTRefactForCausalLM", {"multi_query": False}, "multi_query"),
        ("ArcticForCausalLM", {"moe_layer_frequency": 2}, "moe_layer_frequency"),
        ("MapleForCausalLM", {"nope_on_global_attention": False}, "nope_on_global_attention"),
        ("DeciLMForCausalLM", {"block_configs": []}, "block_configs describes 0 layers"),
        ("DeciLMForCausalLM",
         {"block_configs": [{"attention": {"window_length": 8}, "ffn": {"ffn_mult": 1.0}}] * 5},
         "block_configs"),
    ],
)  # fmt: skip
def test_settings_that_files_cannot_hold_are_refused(tmp_path, name, said, words):
    family = FAMILIES[name]
    config = family["config"] | said
    write_checkpoint(tmp_path / "hf", config, tensors(family["shapes"]), tokenizer(N_VOCAB))
    with pytest.raises(ModelFileError, match=words):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")


ROTATION = {"rope_parameters": None, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GPTNeoXForCausalLM",
         {"rope_parameters": None, "rotary_emb_base": 10000, "rotary_pct": 0.25}),
        ("Gemma3ForCausalLM",
         {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
          "layer_types": None, "_sliding_window_pattern": None, "sliding_window_pattern": 6}),
        ("Olmo3ForCausalLM", {"rope_parameters": None, "rope_theta": 5e5, "layer_types": None}),
        ("HunYuanDenseV1ForCausalLM, long",
         ROTATION | {"rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 1}}),
        ("Phi3ForCausalLM, long",
         ROTATION | {"rope_scaling": {"type": "longrope",
                                      "long_factor": [1.5, 2.0, 3.0, 4.0],
                                      "short_factor": [1.0, 1.25, 1.5, 1.75]}}),
        ("Glm4ForCausalLM", ROTATION | {"partial_rotary_factor": 0.5}),
        ("SmolLM3ForCausalLM", {"no_rope_layers": None, "layer_types": None}),
        ("GraniteMoeHybridForCausalLM",
         {"layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "nope",
          "time_step_limit": None, "mamba_d_head": "auto", "normalization_function": "rmsnorm",
          "init_method": "mup"}),
        ("KimiLinearForCausalLM",
         {"layer_types": None, "mlp_layer_types": None, "first_k_dense_replace": 1,
          "linear_head_dim": None, "linear_num_heads": None, "linear_conv_kernel_dim": None,
          "linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 16,
                                 "num_heads": 4, "short_conv_kernel_size": 4},
          "moe_layer_freq": 1, "mla_use_nope": True, "use_grouped_topk": True,
          "moe_router_activation_func": "sigmoid", "rope_theta": 1e4, "rope_scaling": None}),
        ("AfmoeForCausalLM",
         ROTATION | {"route_norm": True, "score_func": "sigmoid", "n_group": 1, "topk_group": 1,
                     "load_balance_coeff": 0.001, "layer_types": None}),
        ("ExaoneMoeForCausalLM",
         ROTATION | {"layer_types": None, "sliding_window_pattern": "LLLG", "mlp_layer_types": None,
                     "is_moe_layer": [False, True, True, True], "scoring_func": "sigmoid"}),
        ("LagunaForCausalLM", {"gating": "per-head"}),
        ("BloomForCausalLM",
         {"hidden_size": None, "n_embed": 32, "n_head": None, "num_attention_heads": 4,
          "seq_length": 32, "offset_alibi": 100, "skip_bias_add": True}),
        ("DbrxForCausalLM", {"rope_parameters": None, "num_key_value_heads": None}),
        ("GraniteSWAForCausalLM",
         {"layer_rope_theta": None, "no_rope_layers": [1] * 4, "layer_types": None}),
        ("HYV3ForCausalLM",
         ROTATION | {"rope_theta": 11158840.0, "mlp_layer_types": None, "first_k_dense_replace": 1,
                     "qk_norm": True, "route_norm": True, "moe_router_use_sigmoid": True,
                     "moe_router_enable_expert_bias": True}),
        ("GlmMoeDsaForCausalLM",
         ROTATION | {"mlp_layer_types": None, "indexer_types": None, "layer_types": None,
                     "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1,
                     "indexer_rope_interleave": True}),
        ("HrmTextForCausalLM", ROTATION | {"num_hidden_layers": 2, "num_layers_per_stack": None}),
        ("Step3p7ForConditionalGeneration",
         FAMILIES["Step3p7ForConditionalGeneration"]["config"]["text_config"]
         | {"architectures": ["Step3p5ForCausalLM"], "moe_layers_enum": [1, 2],
            "text_config": {}}),
        ("MiniMaxM3SparseForConditionalGeneration",
         {"architectures": ["MiniMaxM3SparseForCausalLM"], "mlp_layer_types": None,
          "moe_layer_freq": [0, 1, 1], "n_shared_experts": 1, "scoring_func": "sigmoid",
          "hidden_act": "swigluoai", "use_gemma_norm": True, "partial_rotary_factor": 0.5,
          "sparse_attention_config":
          {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 8,
           "sparse_topk_blocks": 8, "sparse_local_block": 1,
           "sparse_attention_freq": [0, 1, 1], "sparse_score_type": "max"}}),
        ("NemotronHForCausalLM, experts",
         {"layers_block_type": None, "hybrid_override_pattern": "M*EM", "num_hidden_layers": 4,
          "time_step_limit": [0.0, float("inf")]}),
    ],
)  # fmt: skip
def test_older_spellings_mean_the_same(tmp_path, name, said):
    family = FAMILIES[name]
    held = []
    for config in (family["config"], family["config"] | said):
        write_checkpoint(tmp_path / "hf", config, tensors(family["shapes"]), tokenizer(N_VOCAB))
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
        with open_model_file(tmp_path / "model.gguf") as file:
            held.append({key: as_plain(value) for key, value in file.metadata.items()})
    assert held[0] == held[1]


def as_plain(value):
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return float(np.float32(value)) if isinstance(value, float) else value


def test_windows_of_plamo_2_are_read(tmp_path):
    """Files of llama.cpp's converter have none, and its graph sees all tokens."""
    name, window = "Plamo2ForCausalLM", 6
    family, found = FAMILIES[name], {}
    for listed in ([], [1]):
        config = family["config"] | {"attention_window_size": window, "full_attention_idx": listed}
        write_checkpoint(tmp_path / "hf", config, tensors(family["shapes"]), tokenizer(N_VOCAB))
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
        with load_model(tmp_path / "model.gguf") as loaded:
            context = Context(loaded, n_ctx=64, kv_dtype="f32", threads=1)
            found[len(listed)] = context.process(Batch.of(tokens(), outputs="all")).logits
            assert [kind.window for kind in loaded.hparams.kinds] == [0, 0 if listed else window, 0]
    wanted = logits(name)
    np.testing.assert_allclose(found[1], wanted, atol=1e-3)
    np.testing.assert_allclose(found[0][:window], wanted[:window], atol=1e-3)
    assert (np.abs(found[0] - wanted)[window:].max(1) > 1e-2).all()


def test_the_ramp_of_plamo_3_is_not_rounded(tmp_path):
    """YaRN's begins and ends between pairs; layers with a window are not scaled."""
    family, n_ctx = FAMILIES["Plamo3ForCausalLM, long"], 4096
    config = family["config"] | {"initial_context_length": n_ctx}
    write_checkpoint(tmp_path / "hf", config, tensors(family["shapes"]), tokenizer(N_VOCAB))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    with load_model(tmp_path / "model.gguf") as loaded:
        near, far = (kind.rope.frequencies for kind in loaded.hparams.kinds)
    base, pairs = config["rope_theta"], np.arange(8)
    ends = [8 * np.log(n_ctx / (turns * 2 * np.pi)) / np.log(base) for turns in (32, 1)]
    share = np.clip((pairs - ends[0]) / (ends[1] - ends[0]), 0, 1)
    assert (share % 1 > 0).any()
    plain = base ** -(pairs / 8)
    np.testing.assert_allclose(far, plain * (1 - share + share / 8), rtol=1e-6)
    np.testing.assert_allclose(near, 1e4 ** -(pairs / 8), rtol=1e-6)


def of_output(tmp_path, name, **said):
    """Return the output matrix of a file, and that of its checkpoint."""
    family = FAMILIES[name]
    weights = tensors(family["shapes"])
    write_checkpoint(tmp_path / "hf", family["config"] | said, weights, tokenizer(N_VOCAB))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    with open_model_file(tmp_path / "model.gguf") as file:
        return np.array(file.tensors["output.weight"].array()), weights["lm_head.weight"]


def test_a_normed_output_matrix_of_ling(tmp_path):
    """As llama.cpp's converter divides it: columns by their lengths."""
    found, given = of_output(tmp_path, "BailingMoeForCausalLM", norm_head=True)
    wanted = given / (np.sqrt(np.square(given).sum(0)) + 1e-7)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_normed_output_matrix_of_baichuan_2():
    """As its code divides it: rows by their lengths; Baichuan 2 is told by its vocabulary."""
    name = "BaichuanForCausalLM"
    matrix = next(one for one in BAICHUAN.tensors if one.tensor == "output.weight")
    given = tensors(FAMILIES[name]["shapes"])["lm_head.weight"]
    found = matrix.change(given, Config({"vocab_size": 125696}))
    np.testing.assert_allclose(np.sqrt(np.square(found).sum(1)), 1, rtol=1e-6)
    assert np.array_equal(matrix.change(given, Config({"vocab_size": 64000})), given)
