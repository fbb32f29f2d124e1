"""``--lora``: files, scales and names, and the text that it makes."""

import json

import pytest
from harness.adapters import matrices_of, write_adapter

from mtpcore import LM, load_model
from mtpcore.cli import main


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    with load_model("demo") as model:
        shapes, architecture = matrices_of(model), model.architecture
    for seed, name in enumerate(("one", "two:3")):
        write_adapter(folder / f"{name}.gguf", architecture, shapes, seed=seed, size=0.1)
    return folder / "one.gguf", folder / "two:3.gguf"


def written(capsys, *options):
    assert main(["run", "demo", "def f(", "-n", "8", "--seed", "3", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["tokens"]


def test_scales_and_several_files(capsys, paths):
    one, two = map(str, paths)
    with LM("demo", draft=0, adapters={"one": one, "two": two}) as lm:

        def alone(**scales):
            return [*lm.generate("def f(", max_tokens=8, seed=3, adapters=scales).tokens]

        wanted = [alone(), alone(one=1.0), alone(one=0.5), alone(two=1.0), alone(one=1.0, two=-2.0)]
    both = ["--lora", one, "--lora", f"{two}:-2"]
    given = [[], ["--lora", one], ["--lora", f"{one}:0.5"], ["--lora", two], both]
    assert [written(capsys, *options) for options in given] == wanted
    assert written(capsys, "--lora-scaled", f"{one}:1,{two}:-2.0") == wanted[4]
    assert written(capsys, "--lora", f"{one}:0.5", "--draft", "0") == wanted[2]
    assert len({*map(tuple, wanted)}) > 2


def test_comparing_runs_both_with_adapters(capsys, paths):
    assert main(["run", "demo", "def f(", "-n", "8", "--lora", str(paths[0]), "--compare"]) == 0
    assert "equal" in capsys.readouterr().err


def test_what_is_no_adapter(capsys, paths):
    assert main(["run", "demo", "x", "--lora", "none.gguf"]) == 1
    assert "none.gguf" in capsys.readouterr().err
    with load_model("demo") as model:
        assert main(["run", "demo", "x", "--lora", str(model.path)]) == 1
    assert "no adapter" in capsys.readouterr().err
    assert main(["run", "demo", "x", "--lora", str(paths[0]), "--lora", str(paths[0])]) == 1
    assert "two adapters of one name" in capsys.readouterr().err
    assert main(["run", str(paths[0]), "x"]) == 1
    assert "--lora" in capsys.readouterr().err
