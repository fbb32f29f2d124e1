"""What may be a path, and which files are opened."""

import os

import pytest
from harness.generated import TINY, write_generated

import mtpcore
from mtpcore.boundary.paths import (
    cache_folder,
    open_regular,
    open_stream,
    read_regular,
    take_path,
)
from mtpcore.conversion import convert, quantize
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

NO_PATHS = ("a\0b", "\ud800", 3, None, b"a", ["a"])


@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
def test_what_no_file_can_be_called_is_no_path(path):
    with pytest.raises(ModelFileError, match="not a path") as error:
        take_path(path)
    assert "\0" not in str(error.value)


@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
@pytest.mark.parametrize(
    "act",
    [
        mtpcore.load_model,
        open_model_file,
        DraftVocabulary.read,
        DraftVocabulary([1], tokenizer="").write,
        lambda path: convert(path, "out.gguf"),
        lambda path: convert(".", path),
        lambda path: quantize(path, "out.gguf", outtype="f16"),
        lambda path: quantize("demo", path, outtype="f16"),
    ],
    ids=["load", "open", "read", "write", "convert", "convert to", "quantize", "quantize to"],
)
def test_every_door_takes_paths_alike(act, path):
    with pytest.raises(ModelFileError, match="not a path"):
        act(path)


def test_a_target_and_a_head_are_paths_too(tmp_path):
    trunk = write_generated(tmp_path / "trunk.gguf", "llama", "F32", sizes=TINY)
    with pytest.raises(ModelFileError, match="not a path"):
        convert(tmp_path, tmp_path / "out.gguf", target="a\0b")
    with pytest.raises(ModelFileError, match="not a path"):
        mtpcore.load_model(trunk, mtp_path="a\0b")


def odd_files(folder):
    """Yield what is no regular file, and what the error says."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "nowhere").symlink_to(folder / "missing")
    (folder / "round").symlink_to(folder / "round")
    (folder / "zeros").symlink_to("/dev/zero")
    return {
        "pipe": "not a regular file",
        "folder": "a folder",
        "nowhere": "No such file",
        "round": "symbolic links",
        "zeros": "not a regular file",
    }


def test_only_regular_files_are_opened(tmp_path):
    for name, what in odd_files(tmp_path).items():
        for act in (open_regular, lambda path: read_regular(path, 9), DraftVocabulary.read):
            with pytest.raises(ModelFileError, match=what) as error:
                act(tmp_path / name)
            assert error.value.where == str(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"123456789")
    assert read_regular(tmp_path / "link", 9) == b"123456789"
    with pytest.raises(ModelFileError, match="too long"):
        read_regular(tmp_path / "link", 8)


def test_what_is_read_once_may_be_a_pipe(tmp_path):
    odd = odd_files(tmp_path)
    for name in ("folder", "nowhere", "zeros"):
        with pytest.raises(ModelFileError, match=odd[name]):
            open_stream(tmp_path / name)
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    os.close(writer)
    with open_stream(take_path(f"/dev/fd/{reader}")) as file:
        assert file.read() == b"abc"
    os.close(reader)


@pytest.mark.parametrize("given", [None, "", "cache", "./cache"])
def test_a_relative_cache_folder_is_none(given, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == tmp_path / ".cache" / "mtpcore"


def test_a_cache_folder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mtpcore"
