"""Heads of every trainer, converted from its own layout, are those of the layout known before."""

import numpy as np
import pytest
from harness import eagle3
from harness.eagle3_trainers import TRAINERS

from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

trainers = pytest.mark.parametrize("name", TRAINERS)


def contents(path):
    with open_model_file(path) as file:
        tensors = {name: tensor.array().copy() for name, tensor in file.tensors.items()}
        settings = {k: v for k, v in file.metadata.items() if not k.startswith("general.")}
    return settings, tensors


@trainers
def test_the_model_file_is_the_same(name, tmp_path):
    """Nothing that a trainer writes is refused or lost, and each layer is the one it means."""
    write, head = TRAINERS[name]
    known = contents(eagle3.write_head(tmp_path / "known", head))
    made = contents(eagle3.convert_head(tmp_path / "made", head, *write(head)))
    assert {k: str(v) for k, v in made[0].items()} == {k: str(v) for k, v in known[0].items()}
    assert made[1].keys() == known[1].keys()
    assert all(np.array_equal(made[1][name], known[1][name]) for name in known[1])


def test_layers_by_input_go_before_those_by_output(tmp_path):
    """As for vLLM and llama.cpp, which read the top level."""
    head = eagle3.Variant(layers=(0, 2, 4))
    config = eagle3.config_of(head) | {"eagle_config": {eagle3.LAYERS: [1, 2, 3]}}
    path = eagle3.convert_head(tmp_path, head, config, eagle3.tensors_of(head))
    with open_model_file(path) as file:
        assert list(file.metadata["eagle3.target_layers"]) == [0, 2, 4]


@pytest.mark.parametrize(
    "setting",
    [
        {"use_last_layernorm": False},
        {"use_input_layernorm_in_first_layer": False},
        {"use_aux_hidden_state": False},
        {"parallel_draft_step": 4},
        {"use_mtp_layernorm": True},
        {"eh_proj_before_attn": True},
    ],
)
def test_what_a_graph_does_not_do_is_refused_by_name(setting, tmp_path):
    head = eagle3.Variant()
    config = eagle3.config_of(head) | {"eagle_config": setting}
    (name,) = setting
    with pytest.raises(ModelFileError, match="would not hold") as error:
        eagle3.convert_head(tmp_path, head, config, eagle3.tensors_of(head))
    assert f"eagle_config.{name}" in str(error.value.got)
