"""Mamba: sizes in the metadata that the tensors do not have."""

import pytest
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, tensors

from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"conv_kernel": 3}, "ssm.conv_kernel'.*: the convolution of block 0 is of another length"),
        ({"state_size": 4}, "ssm.state_size'.*: a channel's state of block 0 is of another length"),
        ({"time_step_rank": 2}, "ssm.time_step_rank'.*: the row of dt of block 0"),
    ],
    ids=str,
)
def test_sizes_that_no_tensor_has_are_refused(tmp_path, said, words):
    family = known()["MambaForCausalLM"]
    config = family["config"] | said
    write_checkpoint(tmp_path / "hf", config, tensors(family["shapes"]), tokenizer(N_VOCAB))
    with pytest.raises(ModelFileError, match=words):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
