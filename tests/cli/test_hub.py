"""Models by their names in commands, from a stand-in for the hub."""

import argparse
import json
import logging
from pathlib import Path

import pytest
from harness.hub import COMMIT
from harness.published import small_config, small_tensors, write_checkpoint
from huggingface_hub import constants

import mtpcore
from mtpcore.cli.options import model_path
from mtpcore.conversion import convert
from mtpcore.discovery.loading import find_model

DEMO = find_model("demo").read_bytes()


@pytest.fixture
def published(hub):
    hub.add("a/b", {"M-Q4_K_M.gguf": DEMO, "M-Q8_0.gguf": b"?", "README.md": b"# M"})
    return hub


def content(hub):
    return [path for path in hub.paths() if path.startswith("/content")]


def test_a_command_line_of_llama_cpp_fetches_and_runs(published, command):
    code, out, err = command("run", "-hf", "a/b", "-p", "def", "-n", 4, "--temp", 0)
    assert (code, out) == command("run", "demo", "-p", "def", "-n", 4, "--temp", 0)[:2]
    assert "hf:a/b is " in err
    assert len(content(published)) == 1
    n = len(published.asked)
    for words in (
        ["-hf", "a/b:q4_k_m"],
        ["hf:a/b"],
        ["-m", "hf:a/b/M-Q4_K_M.gguf"],
        ["--hf-repo=a/b", "-hff", "M-Q4_K_M.gguf", "--offline"],
    ):
        assert command("run", *words, "-p", "def", "-n", 4, "--temp", 0)[1] == out
    assert len(published.asked) == n  # what the cache holds is not asked for


def test_the_same_in_python(published):
    greedy = mtpcore.Sampling.greedy()
    with mtpcore.LM("hf:a/b", n_ctx=64) as lm, mtpcore.LM("demo", n_ctx=64) as demo:
        texts = [one.generate("def", max_tokens=4, sampling=greedy).text for one in (lm, demo)]
    assert texts[0] == texts[1]


def test_pull_names_what_lies_beside(hub, command, headless, head_alone, glm):
    trunk, head = Path(headless).read_bytes(), Path(head_alone).read_bytes()
    hub.add(
        "a/b",
        {"M-Q8_0.gguf": trunk, "mtp-M-BF16.gguf": b"?", "mtp-M-Q8_0.gguf": head,
         "mmproj-M.gguf": b"??"},
    )  # fmt: skip
    code, _, err = command("run", "-hf", "a/b", "-p", "def", "-n", 1)
    assert code == 0
    assert "drafters beside it: mtp-M-Q8_0.gguf (" in err
    assert "beside it" not in command("run", "-hf", "a/b", "-p", "def", "-n", 1)[2]
    code, out, err = command("pull", "a/b:Q8_0")
    assert code == 0
    assert "drafters beside it: mtp-M-Q8_0.gguf (" in err
    assert "only texts are read: mmproj-M.gguf (2 B)" in err
    assert len(content(hub)) == 1
    code, out, err = command("pull", "hf:a/b:Q8_0", "--drafter")
    assert code == 0
    assert "it drafts with mtp-M-Q8_0.gguf" in err
    assert len(content(hub)) == 2
    model = mtpcore.load_model(out.strip())
    assert [one.path.name for one in model.sidecars if one.used] == ["mtp-M-Q8_0.gguf"]
    assert not model.path.with_name("mmproj-M.gguf").exists()


def test_a_drafter_in_the_folder_above(hub, command, headless, head_alone):
    """As repositories of split models have it: nothing finds it, so that it is named."""
    trunk, head = Path(headless).read_bytes(), Path(head_alone).read_bytes()
    hub.add("a/b", {"Q8_0/M-Q8_0.gguf": trunk, "mtp-M.gguf": head, "other/mtp-M.gguf": b"?"})
    code, out, err = command("pull", "a/b:Q8_0", "--drafter")
    assert code == 0
    (line,) = (line for line in err.splitlines() if "--mtp-path or -md, " in line)
    found = line.partition("--mtp-path or -md, ")[2]
    asked = ("run", out.strip(), "--mtp-path", found, "-p", "def", "-n", 6, "--draft", 2, "--json")
    code, out, _ = command(*asked)
    assert code == 0
    assert json.loads(out)["settings"]["drafter"]
    assert len(content(hub)) == 2


def test_what_a_server_calls_a_model(published):
    options = argparse.Namespace(
        path="hf:a/b:Q4_K_M", model=None, hf_repo=None, hf_file=None, offline=False, alias=None
    )
    assert Path(model_path(options)).read_bytes() == DEMO
    assert options.alias == "a/b:Q4_K_M"
    options.path, options.alias = "hf:a/b", "mine"
    model_path(options)
    assert options.alias == "mine"


def test_a_draft_model_from_the_hub(published, command):
    asked = ("run", "demo", "-p", "def", "-n", 8, "--temp", 0, "--json", "--draft", 2)
    code, out, _ = command(*asked, "-hfd", "a/b")
    assert code == 0
    drafted, plain = json.loads(out), json.loads(command(*asked)[1])
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["settings"]["drafter"] != plain["settings"]["drafter"]
    assert len(content(published)) == 1


def test_list_and_rm(published, command):
    code, out, err = command("list")
    assert (code, out) == (0, "")
    assert "no models; mtpcore pull OWNER/REPO" in err
    command("pull", "a/b")
    command("pull", "a/b:Q8_0")
    store = Path(constants.HF_HUB_CACHE).parent / "home/.lmstudio/models/x/y"
    store.mkdir(parents=True)
    (store / "z-Q4_0.gguf").write_bytes(b"theirs")
    code, out, _ = command("list")
    assert [line.split()[0] for line in out.splitlines()] == [
        "hf:a/b:Q4_K_M",
        "hf:a/b:Q8_0",
        "lmstudio:x/y:Q4_0",
    ]
    assert "LM Studio's, read only" in out
    (first, *_) = json.loads(command("list", "--json")[1])
    assert first["name"] == "hf:a/b:Q4_K_M"
    assert (first["bytes"], first["owner"], first["partial"]) == (len(DEMO), None, False)
    assert Path(first["path"]).read_bytes() == DEMO
    code, _, err = command("rm", "lmstudio:x/y:Q4_0")
    assert code == 1
    assert "belongs to LM Studio, whose store is only read" in err
    code, _, err = command("rm", "a/b:Q8_0", "hf:a/b")
    assert code == 0
    assert "removed M-Q8_0.gguf" in err
    assert command("list")[1].split()[0] == "lmstudio:x/y:Q4_0"
    assert (store / "z-Q4_0.gguf").read_bytes() == b"theirs"


def test_offline(published, command, monkeypatch):
    n = len(published.asked)
    code, _, err = command("run", "hf:a/b", "-p", "x", "--offline")
    assert code == 1
    assert "the cache does not hold the model" in err
    assert "mtpcore pull a/b" in err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for words in (("run", "hf:a/b", "-p", "x"), ("pull", "a/b"), ("convert", "a/b", "x.gguf")):
        code, _, err = command(*words)
        assert code == 1
        assert "HF_HUB_OFFLINE" in err
    assert len(published.asked) == n


def test_without_a_hub_the_cache_serves(published, command, monkeypatch, caplog):
    command("pull", "a/b")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        code, out, _ = command("pull", "a/b")
    assert code == 0
    assert Path(out.strip()).read_bytes() == DEMO


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "-hf", "a/b", "demo"), "give one model"),
        (("run", "demo", "-hff", "x.gguf"), "--hf-file says which file of -hf"),
        (("run", "demo", "-md", "x", "-hfd", "a/b"), "give one draft model"),
        (("run", "demo", "-hft", "hf_secret"), "set HF_TOKEN in the environment"),
        (("download", "a/b"), "mtpcore pull OWNER/REPO fetches a model"),
        (("ls",), "mtpcore list shows"),
    ],
)
def test_words_that_are_refused(command, words, said):
    code, _, err = command(*words)
    assert code == 2
    assert said in err


def test_names_that_mean_nothing(hub, command):
    for words, said in (
        (("run", "-hf", "x", "-p", "y"), "not the name of a model"),
        (("run", "hf:a/c", "-p", "y"), "no such repository"),
        (("run", "ollama:m", "-p", "y"), "Ollama has no such model here"),
        (("pull", "ollama:m"), "only the hub's models are fetched"),
    ):
        code, out, err = command(*words)
        assert (code, out) == (1, "")
        assert said in err
        assert "fix: " in err


@pytest.mark.parametrize("given", ["a/Tiny-1B-Chat", "hf:a/Tiny-1B-Chat"])
@pytest.mark.parametrize("n_files", [1, 2])
def test_a_checkpoint_is_fetched_and_converted(hub, command, tmp_path, given, n_files, monkeypatch):
    folder = write_checkpoint(
        tmp_path / "Tiny-1B-Chat", small_config(), small_tensors(small_config()), n_files=n_files
    )
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"pytorch_model.bin": b"?", "original/model.safetensors": b"?", "M.gguf": b"?",
              "consolidated.safetensors": b"?", "images/a.png": b"?"}  # fmt: skip
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    hub.add("a/Tiny-1B-Chat", files | others)
    code, _, err = command("convert", given)
    assert code == 0, err
    assert command("convert", folder, "there.gguf")[0] == 0
    assert Path("Tiny-1B-Chat-f16.gguf").read_bytes() == Path("there.gguf").read_bytes()
    asked = {path.removeprefix(f"/a/Tiny-1B-Chat/resolve/{COMMIT}/") for path in hub.paths()}
    assert {*files} <= asked
    assert not asked & {*others}


def test_checkpoints_that_are_not_there(hub, command, tmp_path):
    hub.add("a/c", {"M.gguf": b"?", "config.json": b"{}"})
    for given, said in (
        ("a/d", "a/d is no folder here: hf:a/d: the hub has no such repository"),
        ("hf:a/c", "hf:a/c: the repository holds no checkpoint that can be converted"),
    ):
        code, _, err = command("convert", given, tmp_path / "x.gguf")
        assert code == 1
        assert said in err
    with pytest.raises(mtpcore.ModelFileError, match="the name of a published model"):
        convert("some-one/A.Model-7B", tmp_path / "x.gguf")
