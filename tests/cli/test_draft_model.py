"""A drafter in a file of its own: ``-md`` of run and bench, and inspect."""

import json
import shutil

import pytest
from harness import eagle3

import mtpcore
from mtpcore.gguf import open_model_file, write_model_file

PROMPT = ("--prompt-tokens", "3,14,15,9", "-t", "1", "--temp", "0")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A target and a head for it."""
    folder = tmp_path_factory.mktemp("pair")
    return eagle3.write_target(folder), eagle3.write_head(folder, eagle3.Variant())


def rewrite(source, path, architecture="eagle3", without=(), **changed):
    """Write a model file again with other metadata."""
    with open_model_file(source) as file:
        kept = {name: t for name, t in file.tensors.items() if name not in without}
        write_model_file(
            path,
            architecture,
            file.metadata | {f"eagle3.{key}": value for key, value in changed.items()},
            {name: t.raw() for name, t in kept.items()},
            {name: t.type for name, t in kept.items()},
        )
    return path


def test_giving_one_turns_drafting_on(command, pair):
    target, head = pair
    texts = {}
    for name, options in {
        "plain": ("--draft", 0),
        "auto": ("-md", head),
        "long": ("--model-draft", head, "--draft", 5, "--temp", 1.2, "--seed", 4),
        "plain too": ("--draft", 0, "--temp", 1.2, "--seed", 4),
    }.items():
        code, out, err = command("run", target, *PROMPT, "-n", 24, "--json", *options)
        assert code == 0, err
        texts[name] = json.loads(out)
    assert texts["auto"]["tokens"] == texts["plain"]["tokens"]
    assert texts["long"]["tokens"] == texts["plain too"]["tokens"]
    assert texts["auto"]["settings"]["drafter"] == "eagle3, lookup"
    assert texts["auto"]["stats"]["drafted"] > 0
    assert texts["plain"]["stats"]["drafted"] == 0
    assert len(texts["long"]["stats"]["accepted_per_position"]) == 5


def test_bench_measures_it(command, pair):
    target, head = pair
    code, out, err = command(
        *("bench", target, "-md", head, *PROMPT, "-n", 4, "-r", 1, "--json", "-c", 64)
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["settings"]["drafter"] == "eagle3"
    assert all(text["equal"] for text in found["texts"])


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"target_hidden_size": 48}, ["a target of another width", "wanted 48; got 32"]),
        (
            {"vocab_size": 41},
            ["'eagle3' reads rows or tables", "wanted 40 tokens, as the target has; got 41 tokens"],
        ),
        ({"target_layers": [2, 3, 9]}, ["does not offer", "layer_input:9"]),
        ({"target_layers": [2, 3]}, ["rows do not fit the matrix", "fc"]),
        ({"target_layers": [2, 3, -1]}, ["eagle3.target_layers", "wrong value"]),
        ({"block_count": 2}, ["has one layer"]),
        ({"architecture": "unheard"}, ["no plugin knows this architecture", "'unheard'"]),
        ({"without": ("d2t",)}, ["no map says"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_with_the_reason(command, pair, tmp_path, changes, reasons):
    target, head = pair
    other = rewrite(head, tmp_path / "other.gguf", **changes)
    code, out, err = command("run", target, "-md", other, *PROMPT, "-n", 4)
    assert (code, out) == (1, "")
    for reason in reasons:
        assert reason in err


def test_the_model_itself_is_refused(command, pair):
    target, _ = pair
    code, _, err = command("run", target, "-md", target, *PROMPT)
    assert code == 1
    assert "the draft model is the model itself" in err


def test_a_smaller_model_drafts(command):
    """In run, bench and inspect; another vocabulary is refused by all of them."""
    code, out, err = command("run", "demo", "-md", "demo:small", *PROMPT, "-n", 9, "--json")
    assert code == 0, err
    assert json.loads(out)["settings"]["drafter"] == "draft_model, lookup"
    assert json.loads(out)["stats"]["drafted"] > 0
    code, out, err = command("inspect", "demo", "-md", "demo:small")
    assert (code, err) == (0, "")
    assert "\n  draft_model of plugin " in out
    code, out, _ = command("inspect", "demo", "-md", "demo:small", "--graph", "draft")
    assert (code, out.splitlines()[0]) == (0, "program draft_model")
    roles = json.loads(command("inspect", "demo", "-md", "demo:small", "--json")[1])["plan"]
    assert [part["role"] for part in roles["parts"]] == ["llm", "glm_nextn", "draft_model"]


def test_a_smaller_model_with_other_tokens_is_refused(command, pair):
    target, _ = pair
    for name in ("run", "inspect"):
        code, _, err = command(name, "demo", "-md", target, *(PROMPT if name == "run" else ()))
        assert code == 1
        assert "the draft model's vocabulary is another one" in err


def test_inspect_shows_it_with_its_target(command, pair):
    """Ties are resolved, and the plan counts what is borrowed once."""
    target, head = pair
    assert "lookup, as no other fits" in command("inspect", target)[1]
    code, out, err = command("inspect", target, "-md", head)
    assert (code, err) == (0, "")
    for said in (
        f"eagle3 of plugin eagle3 in {head}: chain",
        "reads layer_input:2, layer_input:3, layer_input:3\n",
        "token_embd.weight: borrowed from target:token_embd.weight F32",
    ):
        assert said in out
    code, out, err = command("inspect", target, "-md", head, "--graph", "draft")
    assert (code, out.splitlines()[0], err) == (0, "program eagle3", "")
    found = json.loads(command("inspect", target, "--model-draft", head, "--json", "-c", 64)[1])
    assert [one["path"] for one in found["files"]] == [str(target), str(head)]
    assert [one["path"] for one in found["drafters"]] == [str(head)]
    parts = {one["role"]: one for one in found["plan"]["parts"]}
    assert list(parts) == ["llm", "eagle3", "eagle3_fusion"]
    cross = mtpcore.link(
        mtpcore.Context(mtpcore.load_model(target), 64), draft_model=mtpcore.load_model(head)
    )
    cross.prepare()
    for role, name in (("llm", "llm"), ("draft", "eagle3")):
        assert parts[name]["kv_per_sequence"] == cross.contexts[role].runner.memory.store.n_bytes
    packed = [
        {key: sum(p.nbytes for p in made) if isinstance(made, list) else made.nbytes
         for key, made in one.packed.items()}
        for one in (cross.llm.model, cross.contexts["draft"].model)
    ]  # fmt: skip
    assert parts["llm"]["weights"] == sum(packed[0].values())
    assert parts["eagle3"]["weights"] + parts["eagle3_fusion"]["weights"] == sum(packed[1].values())
    table = sum(n for key, n in packed[0].items() if key[2] == "token_embd.weight")
    assert parts["eagle3"]["shared"] == table


@pytest.mark.parametrize("changes", [{"target_hidden_size": 48}, {"target_layers": [2, 3, 9]}])
def test_inspect_refuses_what_does_not_fit(command, pair, tmp_path, changes):
    target, head = pair
    other = rewrite(head, tmp_path / "other.gguf", **changes)
    code, out, err = command("inspect", target, "-md", other)
    assert (code, out) == (1, "")
    assert "wanted 48; got 32" in err or "layer_input:9" in err
    code, _, err = command("inspect", target, "-md", target)
    assert code == 1
    assert "the draft model is the model itself" in err


def test_inspect_shows_the_file_alone(command, pair):
    _, head = pair
    code, out, err = command("inspect", head)
    assert (code, err) == (0, "")
    for said in (
        "architecture  eagle3",
        "layout        mtp-only",
        "reads layer_input:2, layer_input:3, layer_input:3\n",
        "graphs draft, fusion",
        "token_embd.weight: borrowed from target:token_embd.weight\n",
        "output.weight: its own F32",
        "no target is linked to lend it",
        "eagle3_fusion weights",
    ):
        assert said in out
    code, out, _ = command("inspect", head, "--graph", "fusion")
    assert (code, out.splitlines()[0]) == (0, "program eagle3.fusion")
    code, _, err = command("inspect", head, "--graph", "draft")
    assert code == 1
    assert "fix: link the two" in err
    err = command("inspect", head, "--graph", "nothing")[2]
    assert "wanted llm, draft, fusion" in err
    assert "fix: name one of these" in err


@pytest.fixture
def beside(pair, tmp_path):
    """The target with the head beside it, called as heads are published."""
    target, head = pair
    shutil.copy(target, tmp_path / "big-F16.gguf")
    shutil.copy(head, tmp_path / "eagle3-big-Q8_0.gguf")
    return tmp_path / "big-F16.gguf"


@pytest.mark.parametrize("name", ["run", "bench"])
def test_the_one_beside_the_target_drafts(command, beside, monkeypatch, name):
    rest = {"run": ("-n", 8), "bench": ("-n", 4, "-r", 1, "-c", 64)}[name]
    code, _, err = command(name, beside, *PROMPT, *rest)
    said = f"eagle3 is in {beside.with_name('eagle3-big-Q8_0.gguf')}"
    assert code == 0
    assert said in err
    for others in (("--draft", 0), ("--drafter", "lookup")):
        code, _, err = command(name, beside, *PROMPT, *rest, *others)
        assert code == 0
        assert " is in " not in err


def test_inspect_says_which_are_beside_the_target_and_why(command, beside, pair):
    head = beside.with_name("eagle3-big-Q8_0.gguf")
    damaged = beside.with_name("eagle3-big-Q4_0.gguf")
    damaged.write_bytes(head.read_bytes()[:1000])
    code, out, err = command("inspect", beside)
    assert code == 0
    assert "eagle3-big-Q4_0.gguf is left out" in err
    assert f"{head} (as of eagle3)\n    used\n" in out
    assert f"{damaged} (as of eagle3)\n    not used: " in out
    assert f"eagle3 of plugin eagle3 in {head}: chain" in out
    found = json.loads(command("inspect", beside, "--json")[1])
    assert [(one["path"], one["used"], one["drafters"]) for one in found["sidecars"]] == [
        (str(damaged), False, ["eagle3"]),
        (str(head), True, ["eagle3"]),
    ]
    assert found["sidecars"][1]["reason"] is None
    assert [one["path"] for one in found["drafters"]] == [str(head)]
    chosen = json.loads(command("inspect", beside, "-md", pair[1], "--json")[1])
    assert chosen["sidecars"] == []
    assert [one["path"] for one in chosen["drafters"]] == [str(pair[1])]


def test_run_counts_the_files_that_cannot_be_used(command, beside):
    head = beside.with_name("eagle3-big-Q8_0.gguf")
    head.write_bytes(head.read_bytes()[:1000])
    code, _, err = command("run", beside, *PROMPT, "-n", 4)
    assert code == 0
    wanted = "(one file beside it cannot be used: mtpcore inspect says why)"
    assert f"lookup drafts, which copies from earlier in the text {wanted}" in err
