"""``mtpcore eval``: the same figures as a table, in Markdown and as JSON."""

import json
from pathlib import Path

import pytest

LICENSE = Path(__file__).parents[2] / "LICENSE"
ASKED = ("-f", LICENSE, "-c", 64, "--chunks", 4)


@pytest.fixture(scope="module")
def coarse(tmp_path_factory):
    from mtpcore.conversion import quantize

    path = tmp_path_factory.mktemp("models") / "coarse.gguf"
    quantize("demo", path, outtype="q4_0")
    return path


def test_perplexity(command):
    code, out, err = command("eval", "demo", *ASKED)
    assert code == 0
    head, row = out.splitlines()
    assert head.split() == ["model", "size", "perplexity"]
    assert "4 chunks of 64 tokens, 124 predicted" in err
    (found,) = json.loads(command("eval", "demo", *ASKED, "--json")[1])["models"]
    assert f"{found['perplexity']['value']:.4f}" in row
    assert found["divergence"] is None
    assert found["n_tokens"] == 124


def test_divergence_of_several_files(command, coarse):
    asked = ("eval", "demo", coarse, "--against", "demo", *ASKED)
    code, out, _ = command(*asked, "--markdown")
    assert code == 0
    head, rule, first, second = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()
    )
    assert {*rule[0]} == {"-"}
    assert first[-1] == "100.00 %"
    told = json.loads(command(*asked, "--json")[1])
    assert told["against"] == "demo"
    own, other = told["models"]
    assert own["divergence"]["maximum"] == 0
    assert second[head.index("KLD mean")].startswith(f"{other['divergence']['mean']['value']:.5f}")
    assert second[head.index("99 %")] == f"{other['divergence']['percentiles']['99']:.4f}"
    assert other["bytes"] == coarse.stat().st_size


def test_several_texts_have_rows_of_their_own(command, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Once upon a time there was a model. " * 40)
    code, out, _ = command("eval", "demo", "-f", LICENSE, other, "-c", 64)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "demo", str(LICENSE), str(other),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("demo", "-f", "nowhere.txt"), "nowhere.txt"),
        (("demo", "-f", LICENSE, "-c", "2"), "too few tokens"),
        (("demo", "-f", LICENSE, "-c", "100000"), "too short"),
    ],
)
def test_errors_are_for_people(command, words, said):
    code, out, err = command("eval", *words)
    assert (code, out) == (1, "")
    assert said in err
