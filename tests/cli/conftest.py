"""What the tests of commands share."""

from pathlib import Path

import pytest

from mtpcore.cli import main
from mtpcore.gguf import open_model_file, write_model_file

GLM = Path(__file__).parents[1] / "data" / "glm-11" / "glm-11-q8_0.gguf"


@pytest.fixture(scope="session")
def glm():
    """A small model with its head."""
    return str(GLM)


@pytest.fixture(scope="session")
def headless(tmp_path_factory):
    """The same model without its head."""
    path = tmp_path_factory.mktemp("models") / "trunk.gguf"
    with open_model_file(GLM) as file:
        metadata = {**file.metadata, "glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 0}
        tensors = {n: t for n, t in file.tensors.items() if not n.startswith("blk.4.")}
        raw = {name: tensor.raw() for name, tensor in tensors.items()}
        types = {name: tensor.type for name, tensor in tensors.items()}
        write_model_file(path, file.architecture, metadata, raw, types)
    return str(path)


@pytest.fixture
def command(capsys):
    """Run a command in this process; return its exit code, standard output and error."""

    def run(*argv):
        code = main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return run
