"""A small checkpoint that is changed and then refused."""

import pytest
from harness.published import small_config, small_tensors, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError


@pytest.fixture
def config():
    return small_config()


@pytest.fixture
def tensors(config):
    return small_tensors(config)


@pytest.fixture
def refuse(tmp_path):
    """Convert; return the error, having seen that no file is left."""

    def run(config, tensors, **options):
        write_checkpoint(tmp_path / "hf", config, tensors)
        with pytest.raises(ModelFileError) as error:
            convert(tmp_path / "hf", tmp_path / "model.gguf", **options)
        assert [path.name for path in tmp_path.iterdir()] == ["hf"]
        return error.value

    return run
