"""Which paths may be written."""

import os

import pytest
from harness.published import write_checkpoint

from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError


def test_a_file_of_the_checkpoint_is_not_replaced(tmp_path, config, tensors):
    folder = write_checkpoint(tmp_path / "hf", config, tensors)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        with pytest.raises(ModelFileError, match="one of the checkpoint"):
            convert(folder, folder / name)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    convert(folder, folder / "model.gguf")


@pytest.mark.parametrize("path", ["/", ".", "..", ""])
def test_a_folder_is_no_file_to_write(tmp_path, config, tensors, path):
    write_checkpoint(tmp_path / "hf", config, tensors)
    with pytest.raises(ModelFileError, match="not a regular file"):
        convert(tmp_path / "hf", path)


def test_nobody_s_link_or_pipe_is_written_through(tmp_path, config, tensors):
    write_checkpoint(tmp_path / "hf", config, tensors)
    (tmp_path / "other").write_text("of somebody else")
    part = tmp_path / "model.gguf.mtpcore-0.part"
    part.symlink_to(tmp_path / "other")
    convert(tmp_path / "hf", tmp_path / "model.gguf")
    assert (tmp_path / "other").read_text() == "of somebody else"
    assert part.is_symlink()
    part.unlink()
    os.mkfifo(part)
    convert(tmp_path / "hf", tmp_path / "model.gguf")
    assert part.is_fifo()
    assert (tmp_path / "model.gguf").is_file()
