"""What the tests of commands share."""

import pytest
from harness.fixtures import model_file
from harness.hub import taken_for_the_hub

from mtpcore.cli import main
from mtpcore.gguf import open_model_file, write_model_file

GLM = model_file("glm-11", "q8_0")


@pytest.fixture(scope="session")
def glm():
    """A small model with its head."""
    return str(GLM)


def _write_part(path, wanted, **changed):
    """Write a file with some of the model's tensors and changed metadata."""
    with open_model_file(GLM) as file:
        tensors = {name: tensor for name, tensor in file.tensors.items() if wanted(name)}
        raw = {name: tensor.raw() for name, tensor in tensors.items()}
        types = {name: tensor.type for name, tensor in tensors.items()}
        write_model_file(path, file.architecture, file.metadata | changed, raw, types)
    return str(path)


@pytest.fixture(scope="session")
def write_part():
    """Write a file with some of the model's tensors."""
    return _write_part


@pytest.fixture(scope="session")
def headless(tmp_path_factory):
    """The same model without its head."""
    return _write_part(
        tmp_path_factory.mktemp("models") / "trunk.gguf",
        lambda name: not name.startswith("blk.4."),
        **{"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 0},
    )


@pytest.fixture(scope="session")
def head_alone(tmp_path_factory):
    """The head with what it shares with the trunk."""
    shared = ("blk.4.", "token_embd.", "output.", "output_norm.")
    path = tmp_path_factory.mktemp("models") / "head.gguf"
    return _write_part(path, lambda name: name.startswith(shared))


@pytest.fixture
def command(capsys):
    """Run a command in this process; return its exit code, standard output and error."""

    def run(*argv):
        code = main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve a stand-in, which this process takes for the hub."""
    with taken_for_the_hub(tmp_path, monkeypatch) as hub:
        yield hub
