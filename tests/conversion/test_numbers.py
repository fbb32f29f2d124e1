"""Metadata that checkpoints hold as tensors of one value, as the parameters of an activation."""

import numpy as np
import pytest
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, tensors

from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

FAMILY = known()["ApertusForCausalLM"]
NAME = "model.layers.1.mlp.act_fn.eps"


def converted(folder, held):
    """Convert a checkpoint that holds this tensor, or lacks it; return the file's metadata."""
    arrays = tensors(FAMILY["shapes"])
    del arrays[NAME]
    if held is not None:
        arrays[NAME] = np.array(held, np.float32)
    write_checkpoint(folder / "hf", FAMILY["config"], arrays, tokenizer(N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    with open_model_file(folder / "model.gguf") as file:
        return file.metadata, set(file.tensors)


@pytest.mark.parametrize("held", [-0.25, [-0.25], [[-0.25]]])
def test_each_layer_has_its_own(tmp_path, held):
    metadata, names = converted(tmp_path, held)
    other = tensors(FAMILY["shapes"])["model.layers.0.mlp.act_fn.eps"]
    assert np.array_equal(metadata["xielu.eps"], [np.float32(other), np.float32(-0.25)])
    assert not any("act_fn" in name for name in names)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (None, "no such tensor"),
        ([0.5, 0.5], r"shape \[2\]"),
        (np.nan, "nan"),
        ([np.inf], "inf"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, held, words):
    with pytest.raises(ModelFileError, match=f"act_fn.eps(.|\n)*{words}"):
        converted(tmp_path, held)
