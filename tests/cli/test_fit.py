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
    assert re.search(r"wrote .*model-draft\.gguf.*\d+ of them written by the model", err)
    rows = r"temperature [01]: acceptance by position( 0\.\d\d){4}; \d+\.\d tokens/s without"
    assert len(re.findall(rows, out)) == 2
    run = ("run", model, "-p", "def read(", "-n", 12, "--temp", 0, "--draft", 2, "-t", 1)
    drafted, plain = command(*run, "-v"), command(*run, "--drafter", "lookup")
    assert drafted[:2] == plain[:2]
    assert "model-draft.gguf" in drafted[2]
