"""MTP heads of Qwen3.5 and Qwen3-Next that speculators trained: its folder becomes a head's file.

The layout is that of the package ``speculators`` 0.9.0 (``MTPConverter``, ``MTPDraftModel``): the
names below, experts in one piece, no tables, and the text model's configuration nested.
"""

import json

import mtpcore_qwen_mtp
import numpy as np
import pytest
from harness import fixtures, qwen
from harness.published import tokenizer, write_checkpoint

from mtpcore import Context, Generator, Sampling, link, load_model
from mtpcore.conversion import convert
from mtpcore.conversion.published import read_tensors
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

PLUGIN = Registry.of(mtpcore_qwen_mtp)
NAMES = {
    "mtp.fc.": "mtp_layers.0.input_proj.",
    "mtp.norm.": "mtp_layers.0.final_layernorm.",
    "mtp.pre_fc_norm_hidden.": "mtp_layers.0.hidden_layernorm.",
    "mtp.pre_fc_norm_embedding.": "mtp_layers.0.token_layernorm.",
    "mtp.layers.0.": "mtp_layers.0.",
}
TYPES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_next": "qwen3_next"}
shapes = pytest.mark.parametrize("name", qwen.SHAPES)


def write_target(folder, name):
    s = qwen.SHAPES[name]
    tensors = qwen.published(s, qwen.weights(s))
    config = qwen.configuration(s)
    return write_checkpoint(folder / "target", config, tensors, tokenizer(qwen.N_VOCAB))


def write_head(folder, name, **changed):
    """Write the head of a shape."""
    s = qwen.SHAPES[name]
    config = qwen.text_config(s) | {"model_type": TYPES[s.family]} | changed
    tensors = {name: one for name, one in qwen.weights(s).items() if name.startswith("mtp.")}
    return save_head(folder, tensors, config)


def save_head(folder, published, text_config):
    """Write what ``MTPDraftModel.save_pretrained`` does, which is no tokenizer."""
    tensors = {}
    for name, values in published.items():
        begin = next(old for old in NAMES if name.startswith(old))
        tensors[NAMES[begin] + name.removeprefix(begin)] = values
    config = {
        "architectures": ["MTPDraftModel"],
        "auto_map": {"": "mtp.MTPSpeculatorConfig"},
        "dtype": "float32",
        "has_no_defaults_at_init": False,
        "num_nextn_predict_layers": 1,
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["Qwen3_5ForCausalLM"], "name_or_path": "a/target"},
        },
        "speculators_model_type": "mtp",
        "speculators_version": "0.9.0",
        "tie_word_embeddings": False,
        "transformer_layer_config": text_config,
        "transformers_version": "5.23.0",
    }
    written = write_checkpoint(folder / "head", config, tensors)
    (written / "tokenizer.json").unlink()
    return written


def contents(path):
    with open_model_file(path) as file:
        tensors = {name: tensor.array().copy() for name, tensor in file.tensors.items()}
        settings = {k: str(v) for k, v in file.metadata.items() if not k.startswith("general.")}
        return file.architecture, settings, tensors


@shapes
def test_the_file_is_that_of_the_heads_alone(name, tmp_path):
    """As ``--mtp only`` makes it of a checkpoint that has both."""
    target, head = write_target(tmp_path, name), write_head(tmp_path, name)
    convert(target, tmp_path / "only.gguf", outtype="f32", mtp="only", plugins=PLUGIN)
    convert(head, tmp_path / "head.gguf", outtype="f32", target=target, plugins=PLUGIN)
    known, made = (contents(tmp_path / f"{one}.gguf") for one in ("only", "head"))
    assert made[:2] == known[:2]
    assert made[2].keys() == known[2].keys()
    assert all(np.array_equal(made[2][n], known[2][n]) for n in known[2])


def test_it_drafts_beside_the_trunk(tmp_path):
    """As the head in the whole file does; the reference model's drafts are accepted."""
    target = fixtures.checkpoint("qwen35-16")
    config = json.loads((target / "config.json").read_text())["text_config"]
    names = read_tensors(target)
    tensors = {name: names[name].rows() for name in names if "mtp." in name}
    head = save_head(tmp_path, tensors, config)
    convert(target, tmp_path / "all.gguf", outtype="f32")
    convert(target, tmp_path / "trunk.gguf", outtype="f32", mtp="drop")
    convert(head, tmp_path / "head.gguf", outtype="f32", target=target)
    prompt, found = fixtures.references("qwen35-16")["prompts"][0], []
    for path, mtp_path in (("all", None), ("trunk", tmp_path / "head.gguf")):
        with load_model(tmp_path / f"{path}.gguf", mtp_path=mtp_path) as model:
            cross = link(Context(model, 128, kv_dtype="f32"), drafter="qwen_mtp")
            generator = Generator(cross, sampling=Sampling.greedy(), draft=3)
            tokens = list(generator.generate(prompt, max_tokens=32))
            found.append((tokens, generator.stats.accepted))
    assert found[0] == found[1]
    assert found[0][1] > 0


def test_it_takes_its_target_s_tokenizer(tmp_path):
    with pytest.raises(ModelFileError, match="its target's tokenizer") as error:
        convert(write_head(tmp_path, "experts in one piece"), tmp_path / "head.gguf")
    assert "--target" in error.value.fix


@pytest.mark.parametrize("mtp", ["only", "drop"])
def test_there_is_nothing_to_take_apart(mtp, tmp_path):
    name = "experts in one piece"
    head, target = write_head(tmp_path, name), write_target(tmp_path, name)
    with pytest.raises(ModelFileError, match="drafter alone"):
        convert(head, tmp_path / "head.gguf", mtp=mtp, target=target)


def test_another_layer_is_refused_by_name(tmp_path):
    """speculators also makes heads of Qwen3's layers, which no trunk here has."""
    name = "experts in one piece"
    head, target = write_head(tmp_path, name, model_type="qwen3"), write_target(tmp_path, name)
    with pytest.raises(ModelFileError, match="lacks what tells such") as error:
        convert(head, tmp_path / "head.gguf", target=target)
    assert "model_type=" in error.value.wanted
