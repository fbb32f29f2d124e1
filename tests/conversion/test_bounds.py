"""Numbers, values and shapes have bounds before anything is made of them."""

import numpy as np
import pytest
from harness.published import changed_qwen2 as plugin

from mtpcore.models import QWEN2
from mtpcore.plugin import Rename


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "hidden_size"])
@pytest.mark.parametrize("wrong", [2**64, 2**31, 1e300, -1, "x", [1], None, True])
def test_a_size_is_bounded_before_anything_is_made_of_it(refuse, config, tensors, key, wrong):
    config["architectures"] = ["LlamaForCausalLM"]
    tensors = {name: t for name, t in tensors.items() if not name.endswith(".bias")}
    if key == "vocab_size" and wrong is None:
        return  # the tokenizer's own number
    error = refuse(config | {key: wrong}, tensors)
    assert "config.json" in str(error)


@pytest.mark.parametrize("n_experts", [2**20, 2**31, 2**64, -1, 1.5, "x", [2], True])
def test_the_number_of_experts_is_bounded(refuse, config, tensors, n_experts):
    config |= {"architectures": ["MixtralForCausalLM"], "num_local_experts": n_experts}
    config["num_experts_per_tok"] = 1
    error = refuse(config, tensors)
    assert "config.json" in str(error)
    assert len(str(error)) < 10_000


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 1e39, "\ud800", [1, "a"], [2**40]])
def test_a_value_that_has_no_place_in_a_file(refuse, config, tensors, value):
    strange = (*QWEN2.checkpoint.metadata, ("{arch}.x", lambda config: value))
    error = refuse(config, tensors, plugins=plugin(metadata=strange))
    assert error.what == "a model file cannot hold this value"
    assert error.where == "metadata key 'qwen2.x'"


@pytest.mark.parametrize(
    "layers", [lambda c: 1 / 0, lambda c: range(2**64), lambda c: ["a"], lambda c: 3]
)
def test_layers_that_cannot_be(refuse, config, tensors, layers):
    norm = Rename("model.layers.{n}.x", "blk.{n}.x", layers=layers)
    error = refuse(config, tensors, plugins=plugin(tensors=(*QWEN2.checkpoint.tensors, norm)))
    assert error.where.endswith("config.json: for blk.{n}.x")


@pytest.mark.parametrize(
    "sources", [lambda c: 1 / 0, lambda c: map(str, range(2**64)), lambda c: [1], lambda c: [], len]
)
def test_sources_that_cannot_be(refuse, config, tensors, sources):
    stacked = Rename("", "x", sources=sources)
    error = refuse(config, tensors, plugins=plugin(tensors=(*QWEN2.checkpoint.tensors, stacked)))
    assert error.where.endswith("config.json: for x")


def test_sources_of_unlike_shapes(refuse, config, tensors):
    tensors |= {"a": np.zeros((2, 4), "f4"), "b": np.zeros((3, 4), "f4")}
    both = Rename("", "x", sources=lambda config: ("a", "b"))
    error = refuse(config, tensors, plugins=plugin(tensors=(*QWEN2.checkpoint.tensors, both)))
    assert (error.what, error.where) == ("parts of different shapes", "x")


def test_functions_of_declarations_may_raise_anything(refuse, config, tensors):
    def broken(config):
        raise KeyError("x" * 5000)

    optional = Rename("y", "y", optional=broken)
    for changed in (
        {"tensors": (*QWEN2.checkpoint.tensors, optional)},
        {"made": (("y", broken),)},
        {"special_tokens": broken},
    ):
        error = refuse(config, tensors, plugins=plugin(**changed))
        assert "KeyError" in error.what
        assert "config.json" in error.where
        assert len(str(error)) < 1000


@pytest.mark.parametrize("factors", [{"factor": 0.0}, {"factor": -1.0}, {"factor": "x"}])
def test_a_rotation_that_cannot_be(refuse, config, tensors, factors):
    config["architectures"] = ["LlamaForCausalLM"]
    tensors = {name: t for name, t in tensors.items() if not name.endswith(".bias")}
    scaling = {"rope_type": "llama3", "factor": 8.0} | factors
    error = refuse(config | {"rope_scaling": scaling}, tensors)
    assert "config.json: rope" in error.where


@pytest.mark.parametrize("name", ["factor", "original_max_position_embeddings"])
def test_a_zero_is_not_taken_for_none(name, refuse, config, tensors):
    """A model file has 0 for what it does not say; to transformers it is a number."""
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
    error = refuse(config | {"rope_scaling": scaling | {name: 0}}, tensors)
    assert "config.json: rope" in error.where
    assert name in error.where


def test_integers_are_no_weights(refuse, config, tensors):
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].view(np.int32)
    error = refuse(config, tensors)
    assert "no floating-point tensor" in error.what
    assert "blk.0.ffn_up.weight" in error.where
    assert error.got == "I32"


@pytest.mark.parametrize("shape", [(0, 32), (1, 1, 1, 32, 32)])
def test_shapes_that_no_model_file_holds(refuse, config, tensors, shape):
    tensors["model.layers.0.self_attn.o_proj.weight"] = np.zeros(shape, np.float32)
    error = refuse(config, tensors)
    assert error.what == "no model file holds a tensor of this shape"
    assert "o_proj" in error.where


def test_names_that_could_steer_a_terminal_are_escaped(refuse, config, tensors):
    tensors["\x1b[2J\0"] = np.zeros(1, np.float32)
    assert refuse(config, tensors).got == r"'\x1b[2J\x00'"


def test_no_such_part(refuse, config, tensors):
    error = refuse(config, tensors, mtp="without")
    assert (error.what, error.got) == ("no such part", "'without'")


def test_a_tokenizer_of_more_tokens_than_the_model_has_rows(refuse, config, tensors):
    error = refuse(config | {"vocab_size": 33}, tensors)
    assert error.what == "the tokenizer has more tokens than the model has rows"
    assert (error.wanted, error.got) == ("at most 32", 33)
