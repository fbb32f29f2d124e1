"""Every setting of transformers' configuration classes is read, refused or declared harmless."""

import json
from itertools import islice
from pathlib import Path

import pytest
from harness.fixtures import DATA
from harness.published import small_config, small_tensors, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.conversion.family import open_config
from mtpcore.conversion.metadata import table_metadata
from mtpcore.conversion.unread import unread
from mtpcore.discovery.registry import load_registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

CLASSES = json.loads((DATA / "configurations" / "transformers.json").read_text())["classes"]
GIVEN = {
    # Refused without: see ``test_windows``.
    "MistralForCausalLM": {"sliding_window": None},
    "Exaone4ForCausalLM": {"sliding_window": None},
    # No default.
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
    # As published, beside what transformers makes of it.
    "MiMoV2FlashForCausalLM": {
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 1],
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "num_hidden_layers": 2,
        "swa_num_key_value_heads": 8,
        "swa_rope_theta": 10000.0,
        "rope_theta": 5000000.0,
        "partial_rotary_factor": 0.334,
    },
}
"""What is not as by default, by class."""
KNOWN = load_registry("")


def nested(paths):
    """Return a configuration as it is in a file, of values by path."""
    made = {}
    for path, value in paths.items():
        *objects, name = path.split(".")
        at = made
        for one in objects:
            at = at.setdefault(one, {})
        at[name] = value
    return made


def tables_of(name):
    """Return the spec of a published class, and the tables of trunk, companion and heads."""
    spec, main = next(
        (spec, table)
        for spec in (*KNOWN.models, *(one for one in KNOWN.drafters if one.standalone))
        for table in (spec.checkpoint, *getattr(spec, "layouts", ()))
        if table is not None
        and name in table.architectures
        and not table.has
        and set(table.requires) <= CLASSES[name].keys()
    )
    heads = [
        drafter.checkpoint
        for drafter in KNOWN.drafters
        if not drafter.standalone
        and drafter.checkpoint is not None
        and name in drafter.checkpoint.architectures
    ]
    return spec, [main, *([main.companion] if main.companion else []), *heads[:1]]


def opened(name, values):
    """Return a configuration of which everything has been read that its tables ask for."""
    spec, tables = tables_of(name)
    config = open_config(tables[0], values | {"architectures": [name]}, Path("hf"))
    metadata = {}
    for table in tables:
        metadata |= table_metadata(min(spec.fit.architectures), table, config)
        for rename in table.tensors:
            for function in (rename.layers, rename.sources):
                if function is not None:
                    [*islice(function(config), 9)]
            if callable(rename.optional):
                rename.optional(config)
        for _, make in table.made:
            make(config)
    return config, tables, metadata


@pytest.mark.parametrize("name", CLASSES)
def test_every_setting_is_accounted_for(name):
    """Whatever its value, of those that the class reads without being told of others."""
    config, tables, _ = opened(name, nested(CLASSES[name] | GIVEN.get(name, {})))
    assert dict(unread(tables, config)) == {}


def changed(name, **paths):
    """Return the metadata of a class with these settings, dots as two underscores."""
    given = {path.replace("__", "."): value for path, value in paths.items()}
    return opened(name, nested(CLASSES[name] | GIVEN.get(name, {}) | given))[2]


WIDE = {f"per_layer_config__{n:02}__head_dim": 384 for n in (5, 11, 17, 23, 29)}


@pytest.mark.parametrize(
    ("name", "said", "key", "value"),
    [
        ("Gemma4ForCausalLM", WIDE, "gemma4.attention.key_length", 384),
        ("Glm4MoeLiteForCausalLM", {}, "deepseek2.leading_dense_block_count", 1),
        ("Glm4MoeLiteForCausalLM", {"first_k_dense_replace": 1},
         "deepseek2.leading_dense_block_count", 1),
        ("GptOssForCausalLM", {"num_experts_per_tok": None, "experts_per_token": 3},
         "gpt-oss.expert_used_count", 3),
        ("MiMoV2FlashForCausalLM", {"sliding_window_size": 128},
         "mimo2.attention.sliding_window", 129),
        ("MiMoV2FlashForCausalLM", {"sliding_window": None, "sliding_window_size": 128},
         "mimo2.attention.sliding_window", 129),
    ],
)  # fmt: skip
def test_settings_in_either_spelling(name, said, key, value):
    assert changed(name, **said)[key] == value


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("Gemma4ForCausalLM", WIDE | {"per_layer_config__11__head_dim": 8}, "differ in head_dim"),
        ("Gemma4ForCausalLM", {"global_head_dim": 8}, "differ in head_dim"),
        ("Glm4MoeLiteForCausalLM", {"first_k_dense_replace": 2}, "mlp_layer_types"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types"),
        ("GptOssForCausalLM", {"rope_parameters__truncate": True}, "rope_parameters.truncate"),
        ("MiMoV2FlashForCausalLM", {"layer_types": ["full_attention"] * 2}, "disagree"),
        ("MiMoV2FlashForCausalLM", {"mlp_layer_types": ["dense"] * 2}, "disagree"),
        ("MiMoV2FlashForCausalLM", {"swa_head_dim": 8}, "another head_dim"),
        ("MiMoV2FlashForCausalLM", {"sliding_window_size": 7}, "sliding_window_size 7"),
    ],
)
def test_settings_that_disagree_are_refused(name, said, words):
    with pytest.raises(ModelFileError, match=words):
        changed(name, **said)


OWN = """
    ArcticForCausalLM BaiChuanForCausalLM BaichuanForCausalLM BailingMoeForCausalLM
    BailingMoeV2ForCausalLM BailingMoeV3ForCausalLM ChatGLMForConditionalGeneration ChatGLMModel
    CodeShellForCausalLM CogVLMForCausalLM DFlash2DraftModel DFlashDraftModel DFlashSpeculator
    DSparkDraftModel DSparkSpeculator DeciLMForCausalLM DeepseekForCausalLM Dots3NoteForCausalLM
    Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM Eagle3DraftModel
    Eagle3LlamaForCausalLM Eagle3Speculator Ernie4_5_ForCausalLM ExaoneForCausalLM
    ExaoneMoEForCausalLM GPTRefactForCausalLM Grok1ForCausalLM GrokForCausalLM
    GroveMoeForCausalLM InternLM2ForCausalLM JAISLMHeadModel LFM2ForCausalLM Lfm2DSparkDraftModel
    LiLiCorrDraftModel LlamaEagle3DraftModel LlamaForCausalLMEagle3 MPTForCausalLM MTPDraftModel
    MaincoderForCausalLM MapleForCausalLM MiMoForCausalLM MiMoV2ForCausalLM MiniCPMForCausalLM
    MiniMaxM1ForCausalLM MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration
    MiniMaxText01ForCausalLM NanbeigeForCausalLM OpenELMForCausalLM OrionForCausalLM
    PEagleDraftModel PEagleSpeculator PLaMo2ForCausalLM PLaMo3ForCausalLM
    PanguEmbeddedForCausalLM PhiMoEForCausalLM Plamo2ForCausalLM Plamo3ForCausalLM
    PlamoForCausalLM QWenLMHeadModel Qwen3DSparkModel Qwen3TTSForConditionalGeneration
    Qwen3XPressForCausalLM Qwen3XPressModel SmallThinkerForCausalLM Spark2_5ForCausalLM
    Step3p5ForCausalLM T5WithLMHeadModel TalkieForCausalLM XPressDraftModel XPressSpeculator
    XverseForCausalLM
"""
"""Published classes without one of transformers' own, or with one that spells settings anew."""


def test_every_published_class_is_walked():
    """A new one is, too, once ``tools/configuration_keys.py`` has run."""
    tables = (
        table
        for spec in (*KNOWN.models, *KNOWN.drafters)
        for table in (spec.checkpoint, *spec.layouts)
        if table is not None
    )
    published = {name for table in tables for name in table.architectures}
    assert published - CLASSES.keys() == {*OWN.split()}


def refused(tmp_path, config, tensors, **options):
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError) as error:
        convert(tmp_path / "hf", tmp_path / "model.gguf", **options)
    assert not (tmp_path / "model.gguf").exists()
    return error.value


def converted(tmp_path, config, tensors, **options):
    """Return the metadata of a file."""
    write_checkpoint(tmp_path / "hf", config, tensors)
    convert(tmp_path / "hf", tmp_path / "model.gguf", **options)
    with open_model_file(tmp_path / "model.gguf") as file:
        return dict(file.metadata)


@pytest.fixture
def tensors():
    return small_tensors(small_config())


@pytest.mark.parametrize(
    ("said", "named", "wanted"),
    [
        ({"hidden_act": "gelu"}, ["hidden_act = gelu"], "hidden_act: 'silu' or 'swish'"),
        ({"logit_scale": 0.5}, ["logit_scale = 0.5"], None),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}},
         ["rope_scaling.truncate = False"], "rope_scaling.truncate: True"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
         ["rope_parameters.partial_rotary_factor = 0.5"], None),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}}, ["rope_theta = 500000.0"],
         None),
        ({"mup": {"a": 1, "b": [2]}, "x": "y"}, ["mup.a = 1", "mup.b = [2]", "x = y"], None),
    ],
)  # fmt: skip
def test_what_the_file_would_not_hold_is_refused(tmp_path, tensors, said, named, wanted):
    error = refused(tmp_path, small_config(**said), tensors)
    assert error.where.endswith("config.json")
    assert error.got == ", ".join(named)
    assert error.wanted == wanted
    first = named[0].partition(" = ")[0]
    assert error.fix.endswith(f"convert with --ignore {first}")


@pytest.mark.parametrize(
    "said",
    [
        {"residual_multiplier": None, "use_logit_scale": False, "k": 0, "experts": [], "m": {}},
        {"hidden_act": "silu", "torch_dtype": "bfloat16", "unsloth_version": "2026.1"},
        {"rope_parameters": {"rope_type": "default", "factor": 2.0, "beta_fast": 32}},
        {"rope_theta": 10000, "rope_parameters": {"rope_theta": 10000.0}},
        {"quantization_config": {"quant_method": "none", "modules_to_not_convert": ["lm_head"]}},
        {"vision_config": {"hidden_act": "gelu", "hidden_size": 3}},
    ],
)
def test_what_says_nothing_or_changes_nothing_passes(tmp_path, tensors, said):
    said_nothing = converted(tmp_path, small_config(), tensors)
    assert converted(tmp_path, small_config(**said), tensors).keys() == said_nothing.keys()


def test_settings_may_be_ignored_by_name_or_path(tmp_path, tensors):
    config = small_config(hidden_act="gelu", mup={"a": 1, "b": {"a": 2}, "c": 3})
    assert refused(tmp_path, config, tensors, ignore=["hidden_act", "a"]).got == "mup.c = 3"
    assert refused(tmp_path, config, tensors, ignore=["hidden_act", "mup.a", "mup.c"]).got == (
        "mup.b.a = 2"
    )
    error = refused(tmp_path, config, tensors, ignore=["hidden_akt"])
    assert (error.what, error.got) == ("no setting of this name is to be ignored", "hidden_akt")
    assert converted(tmp_path, config, tensors, ignore=["hidden_act", "mup"])


def test_objects_in_objects_have_an_end(tmp_path, tensors):
    deep = 1
    for _ in range(400):
        deep = {"a": deep}
    assert "objects in objects" in refused(tmp_path, small_config(deep=deep), tensors).what
    assert (
        "objects in objects"
        in refused(tmp_path, small_config(deep=deep, x=1), tensors, ignore=["x"]).what
    )


WINDOW = {"sliding_window": 16}
SWITCHED = {"use_sliding_window": True, **WINDOW}


@pytest.mark.parametrize(
    ("name", "said", "layers"),
    [
        ("Qwen2ForCausalLM", {**SWITCHED, "max_window_layers": 0}, 2),
        ("Qwen2ForCausalLM", {**SWITCHED, "max_window_layers": 1}, 1),
        ("Qwen2ForCausalLM", {**SWITCHED, "max_window_layers": 28}, 0),
        ("Qwen2ForCausalLM", {**SWITCHED, "sliding_window": 64, "max_window_layers": 0}, 0),
        ("Qwen2ForCausalLM", {**SWITCHED, "sliding_window": None}, 0),
        ("Qwen2ForCausalLM", SWITCHED, 0),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "max_window_layers": 0, "max_position_embeddings": 32768},
            2,
        ),
        ("Qwen2ForCausalLM", {**WINDOW, "max_window_layers": 0, "use_sliding_window": False}, 0),
        ("Qwen2ForCausalLM", WINDOW, 0),
        ("Qwen2ForCausalLM", {**SWITCHED, "layer_types": ["full_attention"] * 2}, 0),
        ("Qwen3ForCausalLM", {**SWITCHED, "layer_types": ["full_attention"] * 2}, 0),
        ("Qwen3ForCausalLM", {**SWITCHED, "layer_types": ["sliding_attention"] * 2}, 2),
        ("MiMoForCausalLM", {**SWITCHED, "layer_types": ["sliding_attention"] * 2}, 2),
        ("Qwen3MoeForCausalLM", SWITCHED, 2),
        ("MistralForCausalLM", WINDOW, 2),
        ("MistralForCausalLM", {"max_position_embeddings": 32768}, 2),
        ("MistralForCausalLM", {}, 0),
        ("MistralForCausalLM", {"sliding_window": None, "max_position_embeddings": 32768}, 0),
        ("MixtralForCausalLM", WINDOW, 2),
        ("MixtralForCausalLM", {"max_position_embeddings": 32768}, 0),
        ("LlamaForCausalLMEagle3", {**SWITCHED, "max_window_layers": 0}, 2),
    ],
)
def test_windows_of_trunks_that_see_all_are_refused(name, said, layers):
    """As transformers' classes understand the settings, each layer for itself."""
    table = next(
        table
        for spec in (*KNOWN.models, *KNOWN.drafters)
        for table in (spec.checkpoint, *spec.layouts)
        if table is not None and name in table.architectures and not table.heads
    )
    config = open_config(table, small_config() | {"architectures": [name]} | said, Path("hf"))
    read = dict(table.metadata)["{arch}.attention.sliding_window"]
    if not layers:
        assert read(config) is None
        return
    with pytest.raises(ModelFileError, match=rf"^hf/config.json: sliding_window: {layers} layers"):
        read(config)


def test_a_window_that_is_ignored(tmp_path, tensors):
    config = small_config(**SWITCHED, max_window_layers=0)
    error = refused(tmp_path, config, tensors)
    assert error.fix.endswith("up to 16 tokens it changes nothing: convert with --ignore "
                              "sliding_window")  # fmt: skip
    made = converted(tmp_path, config, tensors, ignore=["sliding_window"])
    assert "qwen2.attention.sliding_window" not in made
