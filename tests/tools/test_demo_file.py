"""The shipped demo models are what they say they are; only the `gguf` reader looks at them."""

import json
import tomllib
from pathlib import Path

import gguf
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ROOT / "mtpcore/data", ROOT / "demos/mtpcore_demos"
MODELS = {path.name: path for folder in FOLDERS for path in folder.glob("*.gguf")}
PROMPTS = ROOT / "tests/data/demo/prompts.json"
I64 = gguf.GGMLQuantizationType.I64
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32

FAMILIES = {
    "glm": ["demo.gguf"],
    "deepseek": ["demo-deepseek.gguf"],
    "mimo": ["demo-mimo.gguf"],
    "mimo2": ["demo-mimo2.gguf"],
    "eagle3": ["demo-eagle3.gguf", "demo-eagle3-draft.gguf"],
    "dflash": ["demo-dflash-draft.gguf"],
    "small": ["demo-small.gguf"],
}
EVERY = [(family, name) for family, names in FAMILIES.items() for name in names]
ARCHITECTURES = {
    "demo.gguf": "glm4moe",
    "demo-deepseek.gguf": "deepseek2",
    "demo-mimo.gguf": "mimo",
    "demo-mimo2.gguf": "mimo2",
    "demo-eagle3.gguf": "llama",
    "demo-eagle3-draft.gguf": "eagle3",
    "demo-dflash-draft.gguf": "dflash",
    "demo-small.gguf": "llama",
}
DRAFTERS = [name for name in ARCHITECTURES if name.endswith("-draft.gguf")]


class Content:
    """A file's metadata and tensors."""

    def __init__(self, name):
        self.reader = gguf.GGUFReader(MODELS[name])
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self["general.architecture"]

    def __getitem__(self, key):
        return self.reader.fields[key].contents()

    def own(self, key):
        return self[f"{self.arch}.{key}"]


@pytest.fixture(scope="module")
def contents():
    return {name: Content(name) for _, name in EVERY}


each = pytest.mark.parametrize(("family", "name"), EVERY)


def test_both_packages_have_one_version():
    files = ROOT / "pyproject.toml", ROOT / "demos/pyproject.toml"
    versions = {tomllib.loads(f.read_text("utf-8"))["project"]["version"] for f in files}
    assert len(versions) == 1


def test_every_packaged_file_is_a_familys():
    assert MODELS.keys() == {name for _, name in EVERY}


@pytest.mark.parametrize("family", FAMILIES)
def test_files_are_small(family):
    size = sum(MODELS[name].stat().st_size for name in FAMILIES[family])
    assert size <= {"glm": 4_000_000, "eagle3": 3_000_000, "small": 1_000_000}.get(
        family, 2_200_000
    )


def test_the_demo_has_two_to_four_million_parameters(contents):
    """Counted with its head, as the file holds them; at most 5 MB."""
    tensors = contents["demo.gguf"].tensors
    n_parameters = sum(int(t.n_elements) for t in tensors.values())
    n_head = sum(int(t.n_elements) for name, t in tensors.items() if name.startswith("blk.4."))
    assert 2_000_000 <= n_parameters <= 4_000_000
    assert 0 < n_head < n_parameters / 2
    assert MODELS["demo.gguf"].stat().st_size <= 5_000_000


@each
def test_matrices_are_q8_0_and_the_rest_f32(contents, family, name):
    for tensor in contents[name].tensors.values():
        is_plain = len(tensor.shape) == 1 or "ffn_gate_inp." in tensor.name
        wanted = F32 if is_plain else Q8_0
        assert tensor.tensor_type == (I64 if tensor.name == "d2t" else wanted), tensor.name


@each
def test_correction_biases_were_moved_by_load(contents, family, name):
    tensors = contents[name].tensors
    biases = [t.data for key, t in tensors.items() if key.endswith("exp_probs_b.bias")]
    assert len(biases) == sum(key.endswith("ffn_gate_inp.weight") for key in tensors)
    assert all(b.std() > 1e-3 for b in biases)


@each
def test_all_have_one_tokenizer_that_covers_the_table(contents, family, name):
    one = contents[name]
    tokens = one["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == 2048
    assert one["tokenizer.ggml.model"] == "gpt2"
    assert one["tokenizer.ggml.pre"] == "qwen2"
    known = set(tokens)
    for merge in one["tokenizer.ggml.merges"]:
        assert merge.replace(" ", "") in known
    assert tokens == contents["demo.gguf"]["tokenizer.ggml.tokens"]
    assert one["tokenizer.ggml.merges"] == contents["demo.gguf"]["tokenizer.ggml.merges"]


@each
def test_file_says_where_it_comes_from(contents, family, name):
    one = contents[name]
    assert one["general.license"] == "PSF-2.0"
    assert one["general.license.link"].startswith("https://docs.python.org/")
    description = one["general.description"]
    tool = "train_dflash" if family == "dflash" else "train_demo"
    assert f"tools/{tool}.py" in description
    assert "seed 17" in description
    assert "standard library of CPython" in description
    assert family in ("glm", "dflash") or f"--family {family}," in description


@each
def test_architecture(contents, family, name):
    assert contents[name].arch == ARCHITECTURES[name]


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n not in DRAFTERS])
def test_table_and_output_matrix_are_not_the_same(contents, name):
    tensors = contents[name].tensors
    table, output = tensors["token_embd.weight"], tensors["output.weight"]
    assert table.shape.tolist() == output.shape.tolist()
    assert (table.data != output.data).any()


def test_glm_has_one_nextn_block(contents):
    one = contents["demo.gguf"]
    assert one.own("nextn_predict_layers") == 1
    assert one.own("leading_dense_block_count") == 1
    assert one.own("expert_gating_func") == gguf.ExpertGatingFuncType.SIGMOID
    assert 0 < one.own("rope.dimension_count") < one.own("attention.key_length")
    assert one.own("attention.head_count_kv") < one.own("attention.head_count")


def test_glm_tensors_are_those_of_a_complete_file(contents):
    attention = ["attn_norm.weight", "attn_output.weight", "post_attention_norm.weight"]
    attention += [f"attn_{x}.{kind}" for x in "qkv" for kind in ("weight", "bias")]
    dense = ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]
    routed = ["ffn_gate_inp.weight", "exp_probs_b.bias"]
    routed += [f"ffn_{x}_{s}.weight" for x in ("gate", "up", "down") for s in ("exps", "shexp")]
    nextn = [f"nextn.{x}.weight" for x in ("eh_proj", "enorm", "hnorm", "shared_head_norm")]
    last = contents["demo.gguf"].own("block_count") - 1
    wanted = {"token_embd.weight", "output_norm.weight", "output.weight"}
    for i in range(last + 1):
        parts = attention + (dense if i == 0 else routed) + (nextn if i == last else [])
        wanted |= {f"blk.{i}.{part}" for part in parts}
    assert set(contents["demo.gguf"].tensors) == wanted


def test_deepseek_shows_latent_attention_and_groups(contents):
    one = contents["demo-deepseek.gguf"]
    assert one.own("attention.q_lora_rank") > 0
    assert one.own("attention.key_length_mla") != one.own("attention.value_length_mla")
    assert 1 < one.own("expert_group_used_count") < one.own("expert_group_count")
    last = one.own("block_count") - one.own("nextn_predict_layers")
    for part in ("attn_k_b", "attn_v_b", "ffn_gate_exps", "nextn.eh_proj"):
        assert f"blk.{last}.{part}.weight" in one.tensors


def test_mimo_has_a_dense_trunk_with_biases(contents):
    one = contents["demo-mimo.gguf"]
    assert one.own("nextn_predict_layers") == 1
    for i in range(one.own("block_count")):
        assert {f"blk.{i}.attn_{x}.bias" for x in "qkv"} <= set(one.tensors)


def test_mimo2_shows_windows_sinks_and_three_heads(contents):
    one = contents["demo-mimo2.gguf"]
    slides = one.own("attention.sliding_window_pattern")
    n_heads = one.own("nextn_predict_layers")
    assert n_heads == 3
    assert all(slides[-n_heads:])
    assert 0 < sum(slides[:-n_heads]) < len(slides) - n_heads
    assert len(set(one.own("attention.head_count_kv"))) == 2
    assert one.own("attention.key_length") != one.own("attention.value_length")
    assert one.own("attention.sliding_window") < one.own("context_length")
    for i, slide in enumerate(slides):
        assert (f"blk.{i}.attn_sinks.weight" in one.tensors) == bool(slide)
        if slide:
            assert one.tensors[f"blk.{i}.attn_sinks.weight"].data.std() > 1e-3


def test_eagle3_head_fits_its_target(contents):
    target, head = contents["demo-eagle3.gguf"], contents["demo-eagle3-draft.gguf"]
    assert head.own("target_hidden_size") == target.own("embedding_length")
    taps = head.own("target_layers")
    assert len(set(taps)) == 3
    assert max(taps) < target.own("block_count")
    ids = head.tensors["d2t"].data.tolist()
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] <= ids[-1] < 2048
    assert len(ids) == head.tensors["output.weight"].shape[1] < 2048


def test_dflash_drafter_fits_the_demo(contents):
    target, drafter = contents["demo.gguf"], contents["demo-dflash-draft.gguf"]
    assert drafter.own("embedding_length") == target.own("embedding_length")
    taps = drafter.own("target_layers")
    n_layers = target.own("block_count") - target.own("nextn_predict_layers")
    assert len(set(taps)) == 3
    assert max(taps) == n_layers  # what leaves the last layer
    assert drafter.tensors["fc.weight"].shape[0] == 3 * target.own("embedding_length")
    assert drafter["tokenizer.ggml.mask_token_id"] < 2048
    assert "token_embd.weight" not in drafter.tensors


def test_twenty_held_out_prompts():
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    assert len(prompts) == 20
    assert len({p["text"] for p in prompts}) == 20
    for prompt in prompts:
        assert prompt["file"].endswith(".py")
        assert prompt["text"].endswith("\n")
        assert 60 <= len(prompt["text"]) <= 400
