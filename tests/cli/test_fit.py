"""``mtpcore fit``: a head for a model that has none."""

import re
import shutil
from pathlib import Path

import pytest

import mtpcore
from mtpcore.discovery.loading import find_demos

ROOM = Path(mtpcore.__file__).parent


def test_without_texts_it_says_which_it_needs(command, tmp_path):
    code, out, err = command("fit", "demo", "-o", tmp_path / "head.gguf")
    assert (code, out) == (2, "")
    assert "a head is fitted to texts" in err
    assert not any(tmp_path.iterdir())


def test_the_head_lies_where_run_finds_it(command, tmp_path):
    pytest.importorskip("jax")
    model = tmp_path / "model.gguf"
    shutil.copy(find_demos()["demo:eagle3"], model)
    code, out, err = command(
        *("fit", model, ROOM / "gguf", ROOM / "errors.py", "-o", tmp_path / "model-draft.gguf"),
        *("--tokens", 4000, "--epochs", 1, "--vocabulary", 400, "-t", 1),
    )  # fmt: skip
    assert code == 0, err
    kept = (
        r"wrote .*model-draft\.gguf.*: (eagle3|peagle) of eagle3, peagle, \d+ tokens read, \d+ of"
    )
    assert re.search(kept, err)
    for name, n_drafts in (("eagle3", 4), ("peagle", 2)):
        rates = r"temperature [01]: acceptance by position" + r" 0\.\d\d" * n_drafts
        assert len(re.findall(rf"{name}, {rates}; \d+\.\d tokens/s without", out)) == 2
    run = ("run", model, "-p", "def read(", "-n", 12, "--temp", 0, "--draft", 2, "-t", 1)
    drafted, plain = command(*run, "-v"), command(*run, "--drafter", "lookup")
    assert drafted[:2] == plain[:2]
    assert "model-draft.gguf" in drafted[2]
