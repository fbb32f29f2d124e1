"""``mtpcore eval``: the same figures as a table, in Markdown and as JSON."""

import json
from pathlib import Path

import pytest
from harness.adapters import matrices_of, write_adapter

from mtpcore import Context, load_adapter, load_model
from mtpcore.evaluation import evaluate

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


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "one.gguf"
    with load_model("demo") as model:
        write_adapter(path, model.architecture, matrices_of(model), size=0.1)
    return path


def told(command, *words):
    return json.loads(command("eval", "demo", *ASKED, "--json", *words)[1])


def test_adapters_change_what_is_predicted(command, adapter):
    plain, none, half = (
        told(command, *words)["models"][0]
        for words in ((), ("--lora", f"{adapter}:0"), ("--lora", f"{adapter}:0.5"))
    )
    assert plain == none
    with load_model("demo", mtp=False) as model:
        context = Context(model, 64, adapters={"a": load_adapter(adapter)})
        text, scales = {"t": LICENSE.read_text()}, {"a": 0.5}
        wanted = evaluate(context, text, n_ctx=64, n_chunks=4, adapters=scales)
        assert (
            evaluate(context, text, n_ctx=64, n_chunks=4).figures.perplexity.value
            == (plain["perplexity"]["value"])
        )  # nothing is left of them
    assert half["perplexity"]["value"] == wanted.figures.perplexity.value
    assert half["perplexity"]["value"] != plain["perplexity"]["value"]


def test_what_merging_adapters_loses(command, adapter):
    asked = ("--lora", f"{adapter}:2", "--against", "demo")
    beside, merged = told(command, *asked), told(command, *asked, "--lora-merge")
    assert merged["adapters"] == [{"adapter": str(adapter), "scale": 2.0}]
    assert (beside["merged"], merged["merged"]) == (False, True)
    both = [one["models"][0]["divergence"] for one in (beside, merged)]
    assert both[0]["maximum"] == 0
    assert 0 < both[1]["mean"]["value"] < 0.1  # in Q8_0 and F16
    assert both[0]["reference_perplexity"] == both[1]["reference_perplexity"]


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
