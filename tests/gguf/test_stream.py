"""Files that are written tensor by tensor."""

import os

import numpy as np
import pytest

from mtpcore import ModelFileError
from mtpcore.gguf import StreamedFile, StreamedTensor, open_model_file, stream_model_files


def file(path, blocks):
    return StreamedFile(path, "toy", {}, [StreamedTensor("a", (2, 3), 0, blocks)])


def zeros():
    yield np.zeros((2, 3), np.float32)


def short():
    yield np.zeros(3, np.float32)


def lost():
    raise OSError("the source is gone")


@pytest.mark.parametrize("wrong", [short, lost])
@pytest.mark.parametrize("where", [0, 1])
def test_of_two_files_both_are_written_or_none(tmp_path, wrong, where):
    paths = tmp_path / "model.gguf", tmp_path / "rest.gguf"
    for path in paths:
        path.write_text("old")
    files = [file(path, zeros) for path in paths]
    files[where] = file(paths[where], wrong)
    with pytest.raises(ModelFileError) as error:
        stream_model_files(files)
    assert error.value.where == ("tensor 'a'" if wrong is short else str(paths[where]))
    assert [path.read_text() for path in paths] == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "rest.gguf"]
    stream_model_files([file(path, zeros) for path in paths])
    for path in paths:
        with open_model_file(path) as found:
            assert found.tensors["a"].shape == (2, 3)
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "rest.gguf"]
