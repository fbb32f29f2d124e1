"""Small checkpoints of many families become files that compute what transformers does.

The same as llama.cpp's converter makes of them, tensor by tensor and key by key.
"""

import hashlib

import numpy as np
import pytest
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, logits, tensors, tokens

from mtpcore import Batch, Context, load_model
from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

FAMILIES = known()
NEAR = 1e-9
"""Mean square of the differences, beside that of the logits."""
APPROXIMATE = dict.fromkeys(
    ("GPTNeoXForCausalLM", "FalconForCausalLM", "FalconForCausalLM, one key head"), 1e-6
)
"""The same, where files mean GELU's approximation by tanh and the class GELU itself."""
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
