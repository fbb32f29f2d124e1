"""``mtpcore lookup``, and what it is for: ``--lookup``."""

import json

import pytest

PROMPT = ("-p", "import os\n\n\ndef ", "--temp", "0", "-t", "1", "-n", "60", "--draft", "8")


@pytest.fixture
def written(command, tmp_path):
    """What the model writes, in a file."""
    code, out, err = command("run", "demo", *PROMPT, "--json", "--drafter", "lookup")
    assert code == 0, err
    path = tmp_path / "yesterday.txt"
    path.write_text("import os\n\n\ndef " + json.loads(out)["text"])
    return path, json.loads(out)


def test_what_was_written_before_is_drafted(command, written, tmp_path):
    path, alone = written
    (tmp_path / "other.txt").write_text("class A:\n    pass\n")
    index = tmp_path / "index"
    code, out, err = command("lookup", "demo", "-f", path, tmp_path / "other.txt", "-o", index)
    assert (code, out) == (0, "")
    assert "tokens of 2 texts" in err
    for given in (path, index):
        code, out, err = command("run", "demo", *PROMPT, "--json", "--lookup", given)
        assert code == 0, err
        answer = json.loads(out)
        assert answer["text"] == alone["text"]
        _, _, accepted = answer["stats"]["drafters"]["lookup"]
        assert accepted > 30 > alone["stats"]["accepted"]


def test_lookup_drafts_where_the_drafters_say(command, written):
    path, _ = written
    for drafters, wanted in {
        "lookup": "lookup",
        "glm_nextn,lookup": "glm_nextn",  # which always drafts
        "glm_nextn": "lookup",
    }.items():
        given = "--lookup", path, "--drafter", drafters
        code, out, err = command("run", "demo", *PROMPT, "--json", *given)
        assert code == 0, err
        assert next(iter(json.loads(out)["stats"]["drafters"])) == wanted


def test_what_cannot_be_looked_into_is_said(command, tmp_path):
    for missing in (tmp_path / "none.txt", tmp_path, "/dev/zero"):
        code, _, err = command("run", "demo", *PROMPT, "--lookup", missing)
        assert (code, "Traceback" in err) == (1, False)
    (tmp_path / "damaged").write_bytes(b"mtpcore lookup 1")
    code, _, err = command("run", "demo", *PROMPT, "--lookup", tmp_path / "damaged")
    assert (code, "not a whole lookup index" in err) == (1, True)
    code, _, err = command("run", "demo", *PROMPT[:-1], "0", "--lookup", tmp_path / "none.txt")
    assert (code, "lookup, tree or vocabulary is not used" in err) == (0, True)
    assert command("lookup", "demo", "-f", tmp_path / "none.txt", "-o", tmp_path / "index")[0] == 1
    assert command("lookup", "demo", "-f", tmp_path / "none.txt")[0] == 2
