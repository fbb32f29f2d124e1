"""The shared tables of published names, and the small functions in them."""

import numpy as np
import pytest

from mtpcore.errors import ModelFileError
from mtpcore.plugin import (
    ATTENTION,
    INTERLEAVED_ATTENTION,
    SWIGLU,
    Config,
    block_renames,
    interleave,
    number,
    on_layers,
    optional,
)


def test_a_path_leads_into_objects_and_null_counts_as_missing():
    config = Config({"a": {"b": 3}, "c": None, "d": 4}, "x/config.json")
    assert config["a.b"] == 3
    assert config.get("c", "a.x", "d.e", "d") == 4
    assert config.get("c", default=5) == 5
    with pytest.raises(ModelFileError) as error:
        config["c"]
    assert error.value.where == "x/config.json: c"


def test_numbers_are_floats():
    assert isinstance(number("a")(Config({"a": 1})), float)
    assert number("a")(Config({})) is None
    assert number("a", "b", default=2)(Config({"b": 3})) == 3.0


def test_renames_of_blocks_and_their_variants():
    assert block_renames({"x.weight": "y.weight"})[0].source == "model.layers.{n}.x.weight"
    assert {r.tensor for r in ATTENTION} == {r.tensor for r in INTERLEAVED_ATTENTION}
    assert all(r.layers is range for r in on_layers(range, SWIGLU, ATTENTION))
    assert all(r.optional is True for r in optional(True, SWIGLU))


def test_interleaving_makes_neighbours_of_the_halves_of_each_head():
    config = Config({"num_attention_heads": 2})
    made = interleave("num_key_value_heads")(np.arange(8), config)
    assert made.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    matrix = np.arange(8)[:, None] * np.ones(3)
    assert interleave("num_attention_heads")(matrix, config)[:, 0].tolist() == made.tolist()
