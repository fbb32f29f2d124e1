"""``mtpcore vocabulary``, and what it is for: ``--draft-vocabulary``."""

import json
import shutil

import pytest

from mtpcore.discovery.loading import load_model

TEXT = "def read_config(path):"
PROMPT = ("-p", TEXT, "--temp", "0", "-t", "1", "-n", "40", "--draft", "3", "--json")


@pytest.fixture
def model(tmp_path):
    """The demo in a folder of its own."""
    with load_model("demo") as demo:
        return shutil.copy(demo.path, tmp_path / "demo.gguf")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("def read(path):\n    return open(path).read()\n" * 40)
    return path


def test_a_vocabulary_beside_the_model_is_found(command, model, text, tmp_path):
    code, out, err = command("vocabulary", model, "-f", text)
    assert (code, out) == (0, "")
    assert "of 2048 tokens" in err
    beside = tmp_path / "demo.vocabulary.json"
    n_tokens = len(json.loads(beside.read_text())["tokens"])
    texts = {}
    for few in (None, "12", str(n_tokens + 1), str(beside)):
        given = () if few is None else ("--draft-vocabulary", few)
        code, out, err = command("run", model, *PROMPT, *given)
        assert code == 0, err
        texts[few] = json.loads(out)
    assert len({tuple(one["tokens"]) for one in texts.values()}) == 1
    drafted = {few: one["stats"]["drafted"] for few, one in texts.items()}
    assert drafted["12"] > drafted[None]  # more passes
    assert drafted[str(beside)] == drafted[str(n_tokens + 1)]


def test_it_can_be_cut_and_put_elsewhere(command, model, text, tmp_path):
    out = tmp_path / "few.json"
    assert command("vocabulary", model, "-f", text, "-n", "7", "-o", out)[0] == 0
    assert len(json.loads(out.read_text())["tokens"]) == 7


def test_what_is_missing_is_said(command, model, text, tmp_path):
    code, _, err = command("run", model, *PROMPT, "--draft-vocabulary", "100")
    assert code == 1
    assert "demo.vocabulary.json" in err
    assert "mtpcore vocabulary" in err
    code, _, err = command("vocabulary", model, "-f", tmp_path / "none.txt")
    assert code == 1
    assert "none.txt" in err
    for endless in ("/dev/zero", "a\0b"):
        code, _, err = command("vocabulary", model, "-f", endless)
        assert code == 1
        assert "Traceback" not in err
    code, _, err = command("run", model, *PROMPT, "--draft-vocabulary", text)
    assert code == 1
    assert "not a draft vocabulary" in err
    assert command("run", model, *PROMPT, "--draft-vocabulary", "0")[0] == 2
    code, _, err = command("run", model, *PROMPT, "--draft", "0", "--draft-vocabulary", "100")
    assert code == 0
    assert "vocabulary is not used" in err


def test_that_of_a_model_in_the_package_lies_in_the_current_folder(
    command, text, tmp_path, monkeypatch
):
    with load_model("demo") as demo:
        package = demo.path.parent
    before = sorted(package.iterdir())
    monkeypatch.chdir(tmp_path)
    code, out, err = command("vocabulary", "demo", "-f", text, "-n", 100000)
    assert (code, out) == (0, "")
    assert "mtpcore: demo.vocabulary.json: " in err
    assert "-n 100000: all " in err
    assert (tmp_path / "demo.vocabulary.json").exists()
    assert sorted(package.iterdir()) == before
    code, out, err = command("run", "demo", *PROMPT, "--draft-vocabulary", "100000")
    assert code == 0, err
    assert err.count("--draft-vocabulary 100000: all ") == 1


def test_it_takes_no_option_without_effect(command, model, text):
    code, _, err = command("vocabulary", model, "-f", text, "--no-repack")
    assert code == 2
    assert "unknown argument --no-repack" in err
