"""Commands on the models in the package."""

import json

import pytest

import mtpcore.models
from mtpcore.discovery import loading
from mtpcore.discovery.registry import Registry

NAMES = ["demo", "demo:deepseek", "demo:mimo", "demo:mimo2", "demo:eagle3"]
PROMPT = ("-p", "def read_config(path):", "--temp", 0, "-n", 24, "--json")


@pytest.mark.parametrize("name", NAMES)
def test_run_drafts(command, name):
    found = []
    for draft in (0, 3):
        code, out, _ = command("run", name, *PROMPT, "--draft", draft)
        assert code == 0
        found.append(json.loads(out))
        assert (found[-1]["stats"]["drafted"] > 0) == (draft > 0)
    assert found[0]["tokens"] == found[1]["tokens"]


def test_models_of_another_package_are_named_where_that_is_lacking(command, monkeypatch):
    monkeypatch.setattr(loading, "_MORE", "no_such_package")
    assert [*loading.find_demos()] == ["demo", "demo:small"]
    assert command("inspect", "demo")[0] == 0
    code, _, err = command("run", "demo:mimo", *PROMPT)
    assert code == 1
    assert "wanted demo, demo:small; got demo:mimo" in err
    assert "pip install mtpcore-demos" in err


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
    code, _, err = command("run", "demo:eagle3", *PROMPT, "-md", "demo:eagle3")
    assert code == 1
    assert "the drafter that belongs to it is" in err
    assert "demo-eagle3-draft.gguf" in err


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        ("demo:deepseek", "deepseek_mtp"),
        ("demo:mimo", "mimo_mtp"),
        ("demo:mimo2", "mimo2_mtp"),
        ("demo:eagle3", "eagle3"),
    ],
)
def test_bench_drafts(command, name, drafter):
    """Also with the drafter in the file beside the model."""
    code, out, _ = command("bench", name, *PROMPT[:4], "-n", 6, "-r", 1, "--draft", 2, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["settings"]["drafter"] == drafter
    assert [one["drafts"] for one in found["costs"]["drafts"]] == [1, 2]
    assert len(found["acceptance_per_position"]) == 2
    assert all(text["equal"] for text in found["texts"])


def test_variants_of_a_head_run_by_name(command):
    """Fed in other ways the head writes the same text, and other drafts are accepted."""
    accepted, texts = {}, []
    for name in ("", "_residual_fed", "_residual_recycled", "_constant"):
        drafter = f"deepseek_mtp{name}"
        options = ("--drafter", drafter, "--draft", 4, "-n", 100, "--ignore-eos")
        code, out, _ = command("run", "demo:deepseek", *PROMPT[:4], *options, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["settings"]["drafter"] == drafter
        accepted[drafter] = found["stats"]["accepted_per_position"]
        texts.append(found["tokens"])
    assert all(text == texts[0] for text in texts)
    published = accepted.pop("deepseek_mtp")
    assert all(published != other for other in accepted.values()), accepted


def test_an_unknown_name_lists_the_known_ones(command):
    code, _, err = command("run", "demo:nobody")
    assert code != 0
    for name in NAMES:
        assert name in err


def test_a_missing_plugin_leaves_the_drafter_out(command, monkeypatch):
    monkeypatch.setattr(loading, "registry", lambda: Registry.of(mtpcore.models))
    code, out, err = command("run", "demo:eagle3", *PROMPT)
    assert code == 0
    assert json.loads(out)["stats"]["drafters"].keys() <= {"lookup"}
    assert "eagle3" not in err
    code, _, err = command("run", "demo:eagle3", *PROMPT, "--drafter", "eagle3")
    assert code != 0
    assert "the model has no drafter" in err
