"""Files of the hub, fetched from a stand-in: as a whole or not at all, and nothing else."""

import errno
import hashlib
import os
import random
import subprocess
import sys
import threading
import time

import pytest
from harness.hub import COMMIT
from huggingface_hub import constants, file_download

from mtpcore.errors import ModelFileError
from mtpcore.hub import (
    CHECKPOINT,
    ModelName,
    ask,
    cached_repository,
    choose_model,
    download,
    held_in_cache,
    remove,
)
from mtpcore.hub import downloading as fetching
from mtpcore.hub.downloading import PARTIAL, cache_root

NAME = ModelName("hf", "a/b")
MODEL = random.Random(1).randbytes(3 << 20)
PARTS = ["M-Q4_0-00001-of-00002.gguf", "M-Q4_0-00002-of-00002.gguf"]


@pytest.fixture
def model(hub):
    """A repository with a model, and much that is not asked for."""
    others = {"README.md": b"# M", "M-Q8_0.gguf": b"other", "mtp-M.gguf": b"head"}
    parts = {PARTS[0]: b"first part", PARTS[1]: b"second part"}
    hub.add("a/b", {"M-Q4_K_M.gguf": MODEL, **others, **parts})
    return hub


def fetch(tag="", report=None):
    there = ask("a/b")
    files = choose_model(there.files, ModelName("hf", "a/b", tag), [])
    return download(there, files, report)


def content_of(hub):
    return [path for path in hub.paths() if path.startswith("/content")]


def unfinished():
    return [*cache_root().glob(f"**/*{PARTIAL}")]


@pytest.fixture
def small_chunks(monkeypatch):
    """Let content come in small pieces, and no pause be made before the next try."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)


def test_what_is_fetched_and_asked_for(model):
    told = []
    (path,) = fetch(report=lambda done, total: told.append((done, total)))
    assert path.read_bytes() == MODEL
    assert path.name == "M-Q4_K_M.gguf"
    sha256 = hashlib.sha256(MODEL).hexdigest()
    assert path.resolve().name == sha256
    assert told == sorted(told)
    assert told[-1] == (len(MODEL), len(MODEL))
    file = f"/a/b/resolve/{COMMIT}/M-Q4_K_M.gguf"
    assert model.paths() == ["/api/models/a/b", file, f"/content/{sha256}"]
    assert {*model.paths("HEAD")} == {file}
    assert unfinished() == []


def test_the_second_time_nothing_is_fetched(model):
    paths, n = fetch(), len(model.asked)
    assert fetch() == paths
    assert model.paths()[-1] == "/api/models/a/b"
    assert len(model.asked) == n + 1


def test_all_parts(model):
    paths = fetch("Q4_0")
    assert [path.name for path in paths] == PARTS
    assert [path.read_bytes() for path in paths] == [b"first part", b"second part"]


def test_a_break_is_mended_in_the_same_call(model, small_chunks):
    model.breaks = [1 << 20, 1 << 19]
    (path,) = fetch()
    assert path.read_bytes() == MODEL
    begins = [given for _, way, given in model.asked if way.startswith("/content")]
    assert begins == [None, f"bytes={1 << 20}-", f"bytes={(1 << 20) + (1 << 19)}-"]


def test_the_next_call_goes_on_after_a_break(model, small_chunks):
    model.breaks = [1 << 20, *[0] * 20]
    with pytest.raises(ModelFileError, match="broke off") as caught:
        fetch()
    assert "fetching goes on from there" in caught.value.fix
    (partial,) = unfinished()
    assert partial.read_bytes() == MODEL[: 1 << 20]
    assert cached_repository("a/b") is None
    assert [one.is_partial for one in held_in_cache([])] == [True]
    model.breaks.clear()
    model.asked.clear()
    (path,) = fetch()
    assert path.read_bytes() == MODEL
    assert [given for _, way, given in model.asked if way.startswith("/content")] == [
        f"bytes={1 << 20}-"
    ]
    assert unfinished() == []


def test_a_host_that_begins_anew(model, small_chunks):
    model.breaks = [1 << 20, *[0] * 20]
    with pytest.raises(ModelFileError, match="broke off"):
        fetch()
    model.breaks.clear()
    model.continues = False
    assert fetch()[0].read_bytes() == MODEL


def test_files_that_are_too_large_for_plain_http(model, monkeypatch):
    """They come by ``hf_xet``, where the hub offers that; the stand-in does not."""
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(ModelFileError, match="larger than the hub sends by plain HTTP") as caught:
        fetch()
    assert "hf_xet" in caught.value.fix
    assert unfinished() == []
    told = []
    monkeypatch.setattr(fetching, "_fetch", None)  # small files come by the package, too
    there = ask("a/b")
    small = [one for one in there.files if one.path == "README.md"]
    download(there, small, lambda *done: told.append(done))
    assert told[-1] == (3, 3)


def test_content_that_is_another(model):
    model.wrong["M-Q4_K_M.gguf"] = bytes(len(MODEL))
    with pytest.raises(ModelFileError, match="not the file that the hub lists"):
        fetch()
    assert unfinished() == []
    assert not [*cache_root().glob("*/blobs/*")]
    assert cached_repository("a/b") is None


@pytest.mark.parametrize("size", [1000, len(MODEL) + 1000])
def test_content_of_another_size(model, size):
    model.wrong["M-Q4_K_M.gguf"] = MODEL[:size] + bytes(max(size - len(MODEL), 0))
    with pytest.raises(ModelFileError, match="another size"):
        fetch()
    assert cached_repository("a/b") is None
    model.wrong.clear()
    assert fetch()[0].read_bytes() == MODEL


def test_what_was_begun_too_long_is_begun_again(model):
    blob = cache_root() / "models--a--b" / "blobs" / hashlib.sha256(MODEL).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.with_name(blob.name + PARTIAL).write_bytes(MODEL + b"more")
    assert fetch()[0].read_bytes() == MODEL


@pytest.mark.parametrize(
    ("status", "headers", "said", "fix"),
    [
        (401, {}, "no such repository, or it is private", "HF_TOKEN"),
        (404, {}, "no such repository, or it is private", "how its page spells it"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no such repository", "HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated", "accept its terms"),
        (403, {}, "refuses", "HF_TOKEN"),
        (429, {"Retry-After": "7"}, "too many requests", "wait 7 s"),
        (503, {}, "the hub failed", "later"),
    ],
)
def test_refusals_in_words(model, status, headers, said, fix):
    model.status["/api/models/a/b"], model.headers = status, headers
    with pytest.raises(ModelFileError, match=said) as caught:
        fetch()
    assert fix in caught.value.fix
    assert caught.value.where == "hf:a/b"


def test_a_file_that_is_refused(model):
    model.status[f"/a/b/resolve/{COMMIT}/M-Q4_K_M.gguf"] = 403
    with pytest.raises(ModelFileError, match="refuses"):
        fetch()
    assert cached_repository("a/b") is None


def test_no_hub_at_all(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelFileError, match="cannot be reached") as caught:
        ask("a/b")
    assert "HF_ENDPOINT" in caught.value.fix


def test_an_address_that_is_no_hub(hub):
    hub.repositories["a/b"] = (None, {})
    with pytest.raises(ModelFileError, match="which commit"):
        ask("a/b")


def test_a_disk_without_room(model, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(ModelFileError, match="no room on the disk") as caught:
        fetch()
    assert "HF_HOME" in caught.value.fix
    assert not [path for path in model.paths() if path.startswith("/content")]


def test_a_disk_that_fills_up(model, small_chunks, monkeypatch):
    written = fetching._Counted.write

    def write(self, data):
        if self.tell() >= 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, data)

    monkeypatch.setattr(fetching._Counted, "write", write)
    with pytest.raises(ModelFileError, match="no room on the disk"):
        fetch()
    monkeypatch.undo()
    assert cached_repository("a/b") is None


def environment(hub, tmp_path):
    return {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HUB_CACHE": str(cache_root()),
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def layout():
    """Return all that the cache holds, locks and marks aside."""
    root = cache_root()
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".locks" not in path.parts and path.name != "CACHEDIR.TAG"
    }


def test_another_client_leaves_the_same_cache(model, tmp_path, monkeypatch):
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", "a/b", "M-Q4_K_M.gguf"]
    done = subprocess.run(
        command, env=environment(model, tmp_path), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    theirs, n = layout(), len(model.paths())
    (path,) = fetch()  # theirs, read by us
    assert path.read_bytes() == MODEL
    assert not [one for one in model.paths()[n:] if one.startswith("/content")]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "ours"))
    fetch()
    assert layout() == theirs
    n = len(model.paths())
    again = subprocess.run(
        command, env=environment(model, tmp_path), capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 0, again.stderr  # ours, read by them
    assert not [one for one in model.paths()[n:] if one.startswith("/content")]
    assert layout() == theirs


def test_of_two_processes_one_fetches_and_the_other_waits(model, tmp_path):
    model.pause = threading.Event()
    program = "from mtpcore.cli import main; main(['pull', 'a/b'])"
    other = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(model, tmp_path), stdout=subprocess.PIPE
    )
    found = []
    mine = threading.Thread(target=lambda: found.extend(fetch()))
    begun = time.monotonic()
    while not content_of(model) and time.monotonic() < begun + 60:
        time.sleep(0.01)  # the other one holds the lock
    mine.start()
    mine.join(0.3)
    assert mine.is_alive()
    model.pause.set()
    mine.join()
    out, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert out.decode().strip() == str(found[0])
    assert found[0].read_bytes() == MODEL
    assert len(content_of(model)) == 1
    assert unfinished() == []


def test_a_process_that_is_killed_leaves_what_the_next_one_continues(model, tmp_path):
    """The address of the hub and the cache come from the environment."""
    model.breaks = [1 << 20, *[0] * 20]
    program = (
        "from huggingface_hub import constants, file_download\n"
        "constants.DOWNLOAD_CHUNK_SIZE = 1 << 16\n"
        "import os\n"
        "file_download.time.sleep = lambda seconds: os._exit(9)\n"
        "from mtpcore.cli import main\n"
        "main(['pull', 'a/b'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(model, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 9, done.stderr
    assert [path.stat().st_size for path in unfinished()] == [1 << 20]
    model.breaks.clear()
    assert fetch()[0].read_bytes() == MODEL
    assert f"bytes={1 << 20}-" in {given for _, _, given in model.asked}


def test_the_token_is_for_the_hub_alone(model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch()
    told = {path for path, token in model.tokens.items() if token == "Bearer hf_secret"}
    assert told == {"/api/models/a/b", f"/a/b/resolve/{COMMIT}/M-Q4_K_M.gguf"}


def test_what_is_removed(model):
    fetch()
    fetch("Q8_0")
    names = [held.name for held in held_in_cache([])]
    assert names == ["hf:a/b:Q4_K_M", "hf:a/b:Q8_0"]
    assert remove(ModelName("hf", "a/b", "Q4_K_M"), []) == (["M-Q4_K_M.gguf"], len(MODEL))
    assert [held.name for held in held_in_cache([])] == ["hf:a/b:Q8_0"]
    with pytest.raises(ModelFileError, match="no such GGUF file"):
        remove(ModelName("hf", "a/b", "Q4_K_M"), [])
    remove(NAME, [])
    assert not (cache_root() / "models--a--b").exists()
    with pytest.raises(ModelFileError, match="not in the cache"):
        remove(NAME, [])


def test_files_of_others_stay(model):
    fetch()
    there = ask("a/b")
    download(there, [one for one in there.files if one.path == "README.md"], None)
    remove(NAME, [])
    assert [one.path for one in cached_repository("a/b").files] == ["README.md"]


def test_content_that_two_names_share_stays(hub):
    hub.add("a/b", {"x-Q4_0.gguf": b"same", "y-Q8_0.gguf": b"same"})
    fetch("Q4_0")
    fetch("Q8_0")
    assert remove(ModelName("hf", "a/b", "Q4_0"), [])[1] == 0
    assert fetch("Q8_0")[0].read_bytes() == b"same"


def test_names_from_the_hub_stay_in_the_cache(hub):
    hub.add("a/b", {"../../../evil-Q4_0.gguf": b"evil"})
    with pytest.raises(ModelFileError):
        fetch("Q4_0")
    assert not [*cache_root().parent.rglob("evil*")]


def test_what_a_conversion_reads():
    import re

    read = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
            "tokenizer.model", "spiece.model", "merges.txt", "vocab.json", "chat_template.jinja",
            "model.safetensors", "model.safetensors.index.json", "README.md",
            "model-00001-of-00002.safetensors", "added_tokens.json"]  # fmt: skip
    left = ["pytorch_model.bin", "original/model.safetensors", "model.gguf", "onnx/config.json",
            "tf_model.h5", ".gitattributes", "images/a.png", "config.json.bak"]  # fmt: skip
    for name in read:
        assert any(re.fullmatch(form, name) for form in CHECKPOINT), name
    for name in left:
        assert not any(re.fullmatch(form, name) for form in CHECKPOINT), name
