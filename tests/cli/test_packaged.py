"""Commands on the models in the package."""

import json

import pytest

from mtpcore.cli import session
from mtpcore.errors import ModelFileError

NAMES = ["demo", "demo:deepseek", "demo:mimo", "demo:mimo2", "demo:eagle3"]
PROMPT = ("-p", "def read_config(path):", "-n", 24, "--json")


@pytest.mark.parametrize("name", NAMES)
def test_run_drafts(command, name):
    found = []
    for draft in (0, 3):
        code, out, _ = command("run", name, *PROMPT, "--draft", draft)
        assert code == 0
        found.append(json.loads(out))
        assert (found[-1]["stats"]["drafted"] > 0) == (draft > 0)
    assert found[0]["tokens"] == found[1]["tokens"]


@pytest.mark.parametrize("name", NAMES)
def test_inspect_lists_the_drafter(command, name):
    """Also one in a file beside the model, which run and bench take without being told."""
    code, out, _ = command("inspect", name, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["architecture"]
    assert found["drafters"]
    drafted = json.loads(command("run", name, *PROMPT, "--draft", 3)[1])
    assert found["drafters"][0]["name"] == drafted["settings"]["drafter"]
    assert "none fits" not in command("inspect", name)[1]
    code, out, _ = command("inspect", name, "--graph", "draft")
    assert (code, out.splitlines()[0]) == (0, f"program {found['drafters'][0]['name']}")


def test_the_drafter_beside_a_model_is_named(command):
    """Who gives the target for its drafter is told which one it is."""
    code, _, err = command("run", "demo", *PROMPT, "-md", "demo:eagle3")
    assert code == 1
    assert "the drafter that belongs to it is demo:eagle3-draft" in err


def test_bench_takes_the_drafter_beside_the_model(command):
    code, out, _ = command("bench", "demo:eagle3", *PROMPT[:2], "-n", 4, "-r", 1, "--json")
    assert code == 0
    assert json.loads(out)["settings"]["drafter"] == "eagle3"


def test_an_unknown_name_lists_the_known_ones(command):
    code, _, err = command("run", "demo:nobody")
    assert code != 0
    for name in NAMES:
        assert name in err


def test_a_missing_plugin_leaves_the_drafter_out(command, monkeypatch):
    loads = session.load_model

    def refuse_heads(path, **options):
        if str(path).endswith("-draft"):
            raise ModelFileError("no plugin knows this architecture", where=str(path))
        return loads(path, **options)

    monkeypatch.setattr(session, "load_model", refuse_heads)
    code, out, err = command("run", "demo:eagle3", *PROMPT)
    assert code == 0
    assert json.loads(out)["stats"]["drafted"] == 0
    assert "demo:eagle3-draft is left out" in err
    code, _, err = command("run", "demo:eagle3", *PROMPT, "--draft", 2)
    assert code != 0
    assert "no plugin knows" in err
