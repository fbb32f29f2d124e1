"""What is refused before a fit begins; JAX is not needed to say so."""

import shutil
import sys
from contextlib import contextmanager

import pytest

from mtpcore.discovery.loading import find_model
from mtpcore.errors import ModelFileError, MtpcoreError, PluginError
from mtpcore.fitting.fit import fit_head
from mtpcore.fitting.settings import Settings


@contextmanager
def watch(title):
    yield lambda done, total: None


@pytest.fixture
def folder(tmp_path):
    shutil.copy(find_model("demo:eagle3"), tmp_path / "model.gguf")
    return tmp_path


@pytest.mark.parametrize("out", ["none/head.gguf", ".", "model.gguf"])
def test_a_place_that_cannot_be_written_is_refused_at_once(folder, out):
    before = (folder / "model.gguf").read_bytes()
    with pytest.raises(ModelFileError, match="cannot be written there"):
        fit_head(folder / "model.gguf", [], folder / out, Settings(), watch)
    assert (folder / "model.gguf").read_bytes() == before


@pytest.mark.parametrize("shapes", [["medusa"], ["eagle3", "medusa"], [""]])
def test_shapes_are_known_by_name(folder, shapes):
    with pytest.raises(PluginError, match="wanted eagle3, peagle"):
        fit_head(
            folder / "model.gguf", [], folder / "refused.gguf", Settings(), watch, shapes=shapes
        )


@pytest.mark.parametrize("lacking", ["a shape's", "for training"])
def test_a_missing_package_is_named(folder, monkeypatch, lacking):
    def import_module(name):
        raise ModuleNotFoundError("No module named 'jax'")

    if lacking == "for training":
        monkeypatch.setitem(sys.modules, "jax", None)
        monkeypatch.delitem(sys.modules, "mtpcore.fitting.training", raising=False)
    else:
        monkeypatch.setattr("mtpcore.fitting.shape.import_module", import_module)
    with pytest.raises(MtpcoreError, match=r"jax[\s\S]*mtpcore\[fit\]"):
        fit_head(folder / "model.gguf", [], folder / "refused.gguf", Settings(), watch)
